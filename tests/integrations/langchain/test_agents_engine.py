"""Agents with memory on the real engine: facts are injected on every step, users stay apart, and no handle shows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from agent_steps import (
    Everything,
    Listener,
    Steered,
    answers_in,
    holds_handle,
    injected,
    look_up_first,
    not_prefilled,
    recalled,
    short_answer,
    tool_call,
)
from asking import QUESTION, remember
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware, SummarizationMiddleware, dynamic_prompt
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver

from inferscale_memory import LocalEngine, Memory, StoreError
from langchain_inferscale import InferScaleMemoryMiddleware, InferScaleRetriever, memory_tools
from langchain_inferscale.retriever import format_handles, kv_handles

pytestmark = pytest.mark.engine

TURNS = 25
SYSTEM = "You are a helpful assistant."
MemoryFor = Callable[..., Memory]


@dataclass
class Context:
    user_id: str


def steered(
    engine: LocalEngine, shape: Callable[[Sequence[BaseMessage]], str] = short_answer, **fields: Any
) -> Steered:
    return Steered(engine=engine, shape=shape, temperature=0, max_tokens=120, **fields)


def facts_of(who: str) -> list[str]:
    return [
        f"The dog of {who} is called {who}-Rex and he is four years old.",
        f"{who} plays the cello every Sunday morning in the old town hall.",
        f"{who} is allergic to peanuts and carries an injector.",
    ]


def ask(text: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, **fields)]}


def thread(name: str, **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}, **more}


def everything_in(saver: InMemorySaver) -> list[Any]:
    """All that a checkpointer holds: checkpoints, pending writes, blobs."""
    return [list(saver.list(None)), dict(saver.storage), dict(saver.writes), dict(saver.blobs)]


@pytest.fixture
def memory(memory_for: MemoryFor) -> Memory:
    return memory_for("preceding:5:fact")


@pytest.fixture
def users(memory: Memory, user: str) -> dict[str, set[str]]:
    """Two users and the ids of their facts, which are encoded."""
    return {f"{name}-{user}": set(remember(memory, facts_of(name), f"{name}-{user}")) for name in ("Alice", "Bob")}


# -- fifty turns -------------------------------------------------------------------------------------------------------


def test_two_users_of_one_agent_at_once_get_their_own_facts_on_every_step_and_no_handle_shows(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    saver, trace, heard = InMemorySaver(), Everything(), Listener()
    agent = create_agent(
        steered(engine, look_up_first),
        memory_tools(memory),
        system_prompt=SYSTEM,
        middleware=[InferScaleMemoryMiddleware(memory, k=3, timeout=60)],
        context_schema=Context,
        checkpointer=saver,
    )

    def talk(user: str) -> list[dict[str, Any]]:
        states = []
        for turn in range(TURNS):
            words = f"Look up my dog, number {turn}." if turn % 5 == 0 else f"What is my dog called, number {turn}?"
            states.append(agent.invoke(ask(words), thread(user, callbacks=[trace, heard]), context=Context(user)))
        return states

    with ThreadPoolExecutor(2) as pool:
        talks = dict(zip(users, pool.map(talk, users), strict=True))

    for user, states in talks.items():
        said = answers_in(states[-1]["messages"])
        tools = [message for message in states[-1]["messages"] if isinstance(message, ToolMessage)]
        assert len(said) == TURNS + TURNS // 5
        assert len(tools) == TURNS // 5
        assert all(message.status == "success" for message in tools)
        # The preamble, with the tools in it, and the facts: injected at first, and never prefilled.
        facts_and_preamble = injected(said[0])
        assert facts_and_preamble > 400
        assert said[0].response_metadata["kv"]["local_hit"] == 0
        assert all(not_prefilled(message) >= facts_and_preamble for message in said)
        assert all(recalled(message) == users[user] for message in said)
        other = next(name for name in users if name != user).split("-")[0]
        assert f"{other}-Rex" not in repr(states)
        assert {fact.text for fact in memory.list(user_id=user, limit=1000).facts} >= set(facts_of(user.split("-")[0]))
    assert len(trace.events) == 2 * TURNS
    assert trace.seen
    assert heard.seen
    assert not holds_handle([talks, everything_in(saver), trace.seen, trace.events, heard.seen])
    assert holds_handle(memory.recall(QUESTION, user_id=next(iter(users)))), "the look for handles finds none at all"


# -- awaited and streamed ----------------------------------------------------------------------------------------------


async def test_awaited_and_streamed_turns_of_two_users_hold_their_facts_and_no_handle(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    agent = create_agent(
        steered(engine, look_up_first),
        memory_tools(memory),
        middleware=[InferScaleMemoryMiddleware(memory, k=3, timeout=60)],
        context_schema=Context,
        checkpointer=InMemorySaver(),
    )

    async def talk(user: str) -> list[Any]:
        words = ask("Look up my dog.")
        return [event async for event in agent.astream_events(words, thread(user), context=Context(user))]

    talks = dict(zip(users, await asyncio.gather(*map(talk, users)), strict=True))
    for user, events in talks.items():
        state = (await agent.aget_state(thread(user))).values
        said = answers_in(state["messages"])
        assert len(said) == 2
        assert [recalled(message) for message in said] == [users[user]] * 2
        assert 0 < injected(said[0]) <= not_prefilled(said[1])
        assert any(event["event"] == "on_custom_event" and event["name"] == "inferscale_recall" for event in events)
        assert not holds_handle([events, state])


def test_a_streamed_turn_injects_and_its_chunks_hold_no_handle(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    user = next(iter(users))
    agent = create_agent(
        steered(engine), system_prompt=SYSTEM, middleware=[InferScaleMemoryMiddleware(memory, k=3, timeout=60)]
    )
    config = {"configurable": {"user_id": user}}
    chunks = list(agent.stream(ask(), config, stream_mode=["messages", "values", "updates", "custom"]))
    [said] = answers_in(chunks[-1][1]["messages"] if "messages" in chunks[-1][1] else _last_values(chunks)["messages"])
    assert len([mode for mode, _ in chunks if mode == "messages"]) > 1
    assert injected(said) > 30
    assert not holds_handle(chunks)


def _last_values(chunks: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return next(chunk for mode, chunk in reversed(chunks) if mode == "values")


def unreadable(*_: Any) -> Any:
    raise StoreError("the table of KV handles cannot be read")


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raises", "hangs", "closed", "breaks after the search"])
def test_the_agent_answers_while_memory_is_down_and_with_facts_afterwards(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, released = next(iter(users)), threading.Event()
    middleware = InferScaleMemoryMiddleware(memory, k=3, timeout=4, save=False)
    agent = create_agent(steered(engine), system_prompt=SYSTEM, middleware=[middleware])
    config = {"configurable": {"user_id": user}}
    with monkeypatch.context() as patch:
        if kind == "closed":
            memory.close()
        elif kind == "breaks after the search":
            patch.setattr(memory.handles, "open", unreadable)
        elif kind == "raises":
            patch.setattr(memory.retriever, "search", lambda *_, **__: 1 / 0)
        else:
            patch.setattr(memory.retriever, "search", lambda *_, **__: released.wait(60))
        [down] = answers_in(agent.invoke(ask(), config)["messages"])
        released.set()
    assert down.text
    assert recalled(down) == set()
    if kind != "closed":
        [up] = answers_in(agent.invoke(ask(), config)["messages"])
        assert recalled(up) == users[user]
        assert injected(up) > 30


# -- beside others -----------------------------------------------------------------------------------------------------


def test_a_persons_and_a_teams_memory_both_inject_and_two_alike_add_nothing(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]], user: str
) -> None:
    who, team = next(iter(users)), f"team-{user}"
    [shared] = memory.add("The dog of the team is called Bello.", agent_id=team).facts
    memory.flush(120)
    options: dict[str, Any] = {"k": 3, "timeout": 60, "save": False}
    agent = create_agent(
        steered(engine),
        system_prompt=SYSTEM,
        middleware=[
            InferScaleMemoryMiddleware(memory, **options),
            InferScaleMemoryMiddleware(memory, name="again", **options),
            InferScaleMemoryMiddleware(memory, name="team", agent_id=team, per_run=False, **options),
        ],
    )
    [said] = answers_in(agent.invoke(ask(), {"configurable": {"user_id": who}})["messages"])
    ids = [fact["id"] for fact in said.response_metadata["recalled"]]
    assert sorted(ids) == sorted([*users[who], shared.id])
    assert injected(said) > 60


def test_a_memory_that_is_narrower_than_the_run_is_injected(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    who = next(iter(users))
    middleware = InferScaleMemoryMiddleware(memory, k=3, timeout=60, agent_id="helper")
    agent = create_agent(steered(engine), system_prompt=SYSTEM, middleware=[middleware])
    [said] = answers_in(agent.invoke(ask(), {"configurable": {"user_id": who}})["messages"])
    assert recalled(said) == users[who]
    assert injected(said) > 30


def test_a_model_of_another_person_gets_no_facts(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    alice, bob = users
    agent = create_agent(
        steered(engine, user_id=bob), middleware=[InferScaleMemoryMiddleware(memory, k=3, timeout=60, user_id=alice)]
    )
    [said] = answers_in(agent.invoke(ask())["messages"])
    assert recalled(said) == set()


@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_prompts_summaries_and_redaction_leave_the_facts_whole(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]], first: bool
) -> None:
    @dynamic_prompt
    def in_rhyme(request: Any) -> str:
        return f"Answer in rhyme, message {len(request.messages)}."

    who = next(iter(users))
    summary = SummarizationMiddleware(steered(engine), trigger=("messages", 4), keep=("messages", 2))
    others = [in_rhyme, PIIMiddleware("email"), PIIMiddleware("ip"), PIIMiddleware("url"), summary]
    own = InferScaleMemoryMiddleware(memory, k=3, timeout=60, save=False)
    agent = create_agent(
        steered(engine),
        system_prompt=SYSTEM,
        middleware=[own, *others] if first else [*others, own],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"user_id": who, "thread_id": "one"}}
    for turn in range(4):
        state = agent.invoke(ask(f"What is my dog called, number {turn}?"), config)
        said = state["messages"][-1]
        assert isinstance(said, AIMessage)
        assert recalled(said) == users[who]
        assert not_prefilled(said) > 60
        assert injected(said) > 0 or turn > 0
    assert any(message.additional_kwargs.get("lc_source") == "summarization" for message in state["messages"])


def test_an_agent_saves_with_its_tool_and_finds_it_in_another_conversation(
    engine: LocalEngine, memory: Memory, user: str
) -> None:
    def save_first(messages: Sequence[BaseMessage]) -> str:
        last = messages[-1]
        if isinstance(last, HumanMessage) and last.text.startswith("Remember"):
            return tool_call("save_memory", '{"text": "My dog is called Rex."}')
        return short_answer(messages)

    agent = create_agent(
        steered(engine, save_first),
        memory_tools(memory),
        middleware=[InferScaleMemoryMiddleware(memory, timeout=60, save=False)],
        context_schema=Context,
    )
    saved = agent.invoke(ask("Remember my dog's name."), context=Context(user))["messages"]
    [told] = [message for message in saved if isinstance(message, ToolMessage)]
    assert told.content.startswith("Saved: [")
    memory.flush(120, user_id=user)
    said = agent.invoke(ask(), context=Context(user))["messages"][-1]
    assert recalled(said) == {told.artifact["id"]}
    assert injected(said) > 60


def test_a_fact_that_is_forgotten_by_a_tool_is_gone_on_the_next_step_and_the_others_are_injected(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    who = next(iter(users))
    unwanted = memory.search("allergic to peanuts", 1, user_id=who)[0].fact.id

    def forget_first(messages: Sequence[BaseMessage]) -> str:
        if isinstance(messages[-1], HumanMessage):
            return tool_call("forget_memory", f'{{"fact_id": "{unwanted}"}}')
        return short_answer(messages)

    middleware = InferScaleMemoryMiddleware(memory, k=3, timeout=60, save=False)
    agent = create_agent(steered(engine, forget_first), memory_tools(memory), middleware=[middleware])
    state = agent.invoke(ask("Forget about my allergy."), {"configurable": {"user_id": who}})
    before, after = answers_in(state["messages"])
    assert recalled(before) == users[who]
    assert recalled(after) == users[who] - {unwanted}
    # A deletion moves the salt, so nothing is found in native blocks and every step has its facts injected.
    assert [message.response_metadata["kv"]["local_hit"] for message in (before, after)] == [0, 0]
    assert injected(before) > injected(after) > 400


# -- the retriever -----------------------------------------------------------------------------------------------------


def test_a_chain_injects_the_documents_it_retrieved_and_those_that_were_kept_only(
    engine: LocalEngine, memory: Memory, users: dict[str, set[str]]
) -> None:
    user = next(iter(users))
    retriever = InferScaleRetriever(memory=memory, k=3)
    prompt = ChatPromptTemplate([("system", "Use what you know. {context}"), ("human", "{input}")])
    config = {"configurable": {"user_id": user}}
    for kept in (3, 2):
        context = retriever | (lambda documents, kept=kept: documents[:kept]) | format_handles
        chain = {"context": context, "input": RunnablePassthrough()} | prompt | steered(engine)
        said = chain.invoke(QUESTION, config)
        best = [found.fact.id for found in memory.search(QUESTION, kept, user_id=user)]
        assert [fact["id"] for fact in said.response_metadata["recalled"]] == best[::-1]
        assert injected(said) > 20 * kept
        assert not holds_handle(said)


def test_documents_handles_go_by_keyword_too(engine: LocalEngine, memory: Memory, users: dict[str, set[str]]) -> None:
    user = next(iter(users))
    documents = InferScaleRetriever(memory=memory, user_id=user, refresh=1).invoke(QUESTION)
    said = steered(engine).invoke(QUESTION, kv_handles=kv_handles(documents), user_id=user)
    assert [fact["id"] for fact in said.response_metadata["recalled"]][-1] == documents[0].id
    assert injected(said) > 30
    foreign = steered(engine).invoke(QUESTION, kv_handles=kv_handles(documents), user_id="somebody else")
    assert recalled(foreign) == set()
