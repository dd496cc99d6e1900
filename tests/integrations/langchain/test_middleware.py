"""The memory middleware's plumbing in ``create_agent``: whose memory, one search, what is saved, and outages.

That its facts are injected is shown on the real engine, in ``test_agents_engine.py``; the models here follow a script.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_steps import Everything, Scripted, holds_handle, plain_memory, says
from asking import FACTS, eventually
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware, SummarizationMiddleware, before_model, wrap_model_call
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from inferscale_memory import Memory, metrics
from inferscale_memory.errors import ConfigError, InvalidInputError, ScopeError
from langchain_inferscale import InferScaleMemoryMiddleware
from langchain_inferscale.context import call_scope, placed, placed_handles, placed_scopes
from langchain_inferscale.middleware import RECALL_EVENT

ALICE = {"configurable": {"user_id": "alice", "thread_id": "of alice"}}
QUESTION = "What is my dog called?"


@dataclass
class Context:
    user_id: str | None = None
    agent_id: str | None = None


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with plain_memory(tmp_path) as memory:
        memory.add(list(FACTS), user_id="alice")
        memory.add("Bob has a cat called Tom.", user_id="bob")
        yield memory


@pytest.fixture
def searches(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Query and scope of each recall."""
    seen: list[tuple[str, dict[str, Any]]] = []
    recall = memory.recall

    def counted(query: str, k: int | None = None, refresh: int | None = None, **options: Any) -> Any:
        seen.append((query, {name: value for name, value in options.items() if name.endswith("_id")}))
        return recall(query, k, refresh, **options)

    monkeypatch.setattr(memory, "recall", counted)
    return seen


@tool
def weather(place: str) -> str:
    """What the weather is like."""
    return f"Sunny in {place}."


def calls_weather(number: int = 1) -> AIMessage:
    calls = [{"name": "weather", "args": {"place": f"Oslo {n}"}, "id": f"{n}"} for n in range(number)]
    return AIMessage("Let me look.", tool_calls=calls)


class Placed:
    """A middleware behind the memory's, which notes what is placed beside each model call."""

    def __init__(self) -> None:
        self.handles: list[tuple[str, ...]] = []
        self.scopes: list[dict[str, Any]] = []

        @wrap_model_call(name="noting")
        def noting(request: Any, handler: Callable[[Any], Any]) -> Any:
            self.handles.append(placed_handles())
            self.scopes.append(placed_scopes({}))
            return handler(request)

        self.middleware = noting


def agent(model: Scripted, *middleware: Any, **options: Any) -> Any:
    return create_agent(model, [weather], middleware=list(middleware), context_schema=Context, **options)


def ask(text: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, **fields)]}


def texts(memory: Memory, user: str = "alice") -> list[str]:
    """What is remembered beyond the facts that were there."""
    return [fact.text for fact in memory.list(user_id=user).facts if fact.text not in FACTS]


def failures(work: str, reason: str) -> float:
    return metrics.AGENT_MEMORY_FAILURES.labels(work, reason)._value.get()


# -- one search per user message ---------------------------------------------------------------------------------------


def test_one_search_serves_every_step_of_a_turn(memory: Memory, searches: list[Any]) -> None:
    noted = Placed()
    model = says(calls_weather(), calls_weather(2), "Rex.")
    agent(model, InferScaleMemoryMiddleware(memory, k=2), noted.middleware).invoke(ask(), ALICE)
    assert searches == [(QUESTION, {"user_id": "alice"})]
    assert len(noted.handles) == 3
    assert len(set(noted.handles)) == 1
    [[handle]] = {tuple(handles) for handles in noted.handles}
    assert len(memory.explain(handle, user_id="alice").facts) == 2


def test_the_next_message_is_searched_anew(memory: Memory, searches: list[Any]) -> None:
    running = agent(says("Rex.", "Oslo."), InferScaleMemoryMiddleware(memory), checkpointer=InMemorySaver())
    running.invoke(ask(), ALICE)
    running.invoke(ask("Where do I live?"), ALICE)
    assert [query for query, _ in searches] == [QUESTION, "Where do I live?"]


def test_the_same_message_asked_again_is_searched_anew_since_more_may_be_known(
    memory: Memory, searches: list[Any]
) -> None:
    running = agent(says("Rex.", "Rex."), InferScaleMemoryMiddleware(memory))
    for _ in range(2):
        running.invoke(ask(id="one"), ALICE)
    assert len(searches) == 2


async def test_steps_that_search_at_once_share_one_search(memory: Memory, searches: list[Any]) -> None:
    middleware = InferScaleMemoryMiddleware(memory, user_id="alice")
    noted: list[tuple[str, ...]] = []

    async def handler(request: Any) -> Any:
        noted.append(placed_handles())

    await asyncio.gather(*(middleware.awrap_model_call(request_of(ask(id="one")), handler) for _ in range(20)))
    assert len(searches) == 1
    assert len(noted) == 20
    assert len(set(noted)) == 1


def request_of(state: dict[str, Any], model: Any = None) -> Any:
    from langchain.agents.middleware import ModelRequest

    return ModelRequest(model=model or says(), messages=state["messages"], state=state)


def test_a_message_without_words_is_not_searched_for(memory: Memory, searches: list[Any]) -> None:
    picture = HumanMessage([{"type": "image", "url": "https://example.org/a.png"}])
    agent(says("A cat."), InferScaleMemoryMiddleware(memory)).invoke({"messages": [picture]}, ALICE)
    assert searches == []
    assert texts(memory) == ["Assistant: A cat."]


def test_facts_that_the_conversation_holds_as_text_take_no_slot(memory: Memory) -> None:
    noted = Placed()
    running = agent(
        says("I see.", "Rex."), InferScaleMemoryMiddleware(memory), noted.middleware, checkpointer=InMemorySaver()
    )
    running.invoke(ask("The dog of my sister is called Fido."), ALICE)
    running.invoke(ask("What are the dogs called?"), ALICE)
    known = {shown.fact.text for shown in memory.explain(noted.handles[1][0]).facts}
    assert known == set(FACTS)
    elsewhere = {"configurable": {"user_id": "alice", "thread_id": "another"}}
    other = agent(says("Rex and Fido."), InferScaleMemoryMiddleware(memory), noted.middleware)
    other.invoke(ask("What are the dogs called?"), elsewhere)
    known = {shown.fact.text for shown in memory.explain(noted.handles[2][0]).facts}
    assert "User: The dog of my sister is called Fido." in known


def test_nothing_is_placed_where_nothing_is_known(memory: Memory) -> None:
    noted = Placed()
    agent(says("Hello."), InferScaleMemoryMiddleware(memory), noted.middleware).invoke(
        ask(), {"configurable": {"user_id": "carol"}}
    )
    assert noted.handles == [()]


def test_callbacks_learn_what_was_recalled_once_per_turn(memory: Memory) -> None:
    trace = Everything()
    middleware = InferScaleMemoryMiddleware(memory, k=1)
    [found] = memory.search(QUESTION, 1, user_id="alice")
    agent(says(calls_weather(), "Rex."), middleware).invoke(ask(), {**ALICE, "callbacks": [trace]})
    recalled = [{"id": found.fact.id, "score": pytest.approx(found.score)}]
    assert trace.events == [(RECALL_EVENT, {"middleware": "InferScaleMemoryMiddleware", "recalled": recalled})]
    assert not holds_handle(trace.seen)


# -- whose memory ------------------------------------------------------------------------------------------------------


def test_the_context_says_whose_memory_it_is(memory: Memory, searches: list[Any]) -> None:
    running = agent(says("Tom.", "Rex."), InferScaleMemoryMiddleware(memory))
    running.invoke(ask("What is my cat called?"), context=Context("bob"))
    running.invoke(ask(), context={"user_id": "alice"})
    assert [ids for _, ids in searches] == [{"user_id": "bob"}, {"user_id": "alice"}]
    assert texts(memory, "bob")[1:] == ["User: What is my cat called?", "Assistant: Tom."]
    assert texts(memory) == [f"User: {QUESTION}", "Assistant: Rex."]


def test_ids_of_all_sources_come_together(memory: Memory, searches: list[Any]) -> None:
    middleware = InferScaleMemoryMiddleware(memory, agent_id="helper")
    agent(says("Rex."), middleware).invoke(
        ask(), {"configurable": {"session_id": "monday"}}, context=Context(user_id="alice", agent_id="helper")
    )
    assert searches[0][1] == {"user_id": "alice", "agent_id": "helper", "session_id": "monday"}


@pytest.mark.parametrize(
    ("given", "context", "configured"),
    [
        ({"user_id": "alice"}, Context("bob"), {}),
        ({"user_id": "alice"}, Context(), {"user_id": "bob"}),
        ({}, Context("alice"), {"user_id": "bob"}),
    ],
    ids=["constructor and context", "constructor and config", "context and config"],
)
def test_sources_that_disagree_are_refused_before_the_model_is_called(
    memory: Memory, given: dict[str, str], context: Context, configured: dict[str, str]
) -> None:
    model = says("never said")
    running = agent(model, InferScaleMemoryMiddleware(memory, **given))
    with pytest.raises(ScopeError, match=r"different ids for user_id: 'alice' and 'bob'.*Give each id in one place"):
        running.invoke(ask(), {"configurable": configured}, context=context)
    assert next(model.messages).text == "never said"


@pytest.mark.parametrize("context", [None, Context(), Context(user_id=" ")])
def test_a_run_for_nobody_is_refused(memory: Memory, context: Context | None) -> None:
    with pytest.raises(ScopeError, match=r"Pass (at least one|a real id)"):
        agent(says("Rex."), InferScaleMemoryMiddleware(memory)).invoke(ask(), context=context)


async def test_a_run_for_nobody_is_refused_when_awaited(memory: Memory) -> None:
    with pytest.raises(ScopeError, match="Pass at least one"):
        await agent(says("Rex."), InferScaleMemoryMiddleware(memory)).ainvoke(ask())


def test_a_shared_memory_leaves_the_runs_ids_aside(memory: Memory, searches: list[Any]) -> None:
    shared = InferScaleMemoryMiddleware(memory, agent_id="team", per_run=False)
    agent(says("Rex."), shared).invoke(ask(), ALICE)
    assert searches[0][1] == {"agent_id": "team"}


def test_a_shared_memory_of_nobody_is_refused(memory: Memory) -> None:
    with pytest.raises(ScopeError, match="Pass at least one"):
        InferScaleMemoryMiddleware(memory, per_run=False)


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"k": 0}, InvalidInputError, "k is 0; wanted a number of facts, 1 to"),
        ({"refresh": -1}, InvalidInputError, "refresh is -1; wanted a number of facts, 0 to"),
        ({"threshold": 2}, InvalidInputError, "threshold is 2; wanted a cosine"),
        ({"timeout": 0}, InvalidInputError, "timeout is 0; wanted seconds"),
    ],
)
def test_arguments_out_of_range_are_refused_and_not_taken_for_an_outage(
    memory: Memory, options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        InferScaleMemoryMiddleware(memory, **options)


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory is a str; give the inferscale_memory\.Memory"):
        InferScaleMemoryMiddleware("memory")  # type: ignore[arg-type]


# -- what is saved -----------------------------------------------------------------------------------------------------


def test_the_users_message_and_the_final_answer_are_saved_and_no_tool_chatter(memory: Memory) -> None:
    agent(says(calls_weather(), "It is sunny."), InferScaleMemoryMiddleware(memory)).invoke(ask("How is Oslo?"), ALICE)
    assert texts(memory) == ["User: How is Oslo?", "Assistant: It is sunny."]


async def test_an_awaited_run_saves_the_same(memory: Memory) -> None:
    running = agent(says(calls_weather(), "It is sunny."), InferScaleMemoryMiddleware(memory))
    await running.ainvoke(ask("How is Oslo?"), ALICE)
    assert texts(memory) == ["User: How is Oslo?", "Assistant: It is sunny."]


def test_only_this_turn_is_saved_of_a_conversation_that_the_application_sends_whole(memory: Memory) -> None:
    history = [HumanMessage("Hi."), AIMessage("Hello."), HumanMessage("I am Alice."), HumanMessage(QUESTION)]
    agent(says("Rex."), InferScaleMemoryMiddleware(memory)).invoke({"messages": history}, ALICE)
    assert texts(memory) == ["User: I am Alice.", f"User: {QUESTION}", "Assistant: Rex."]


def test_a_turn_that_is_saved_again_changes_nothing(memory: Memory) -> None:
    middleware = InferScaleMemoryMiddleware(memory, user_id="alice")
    state = {"messages": [HumanMessage(QUESTION, id="one"), AIMessage("Rex.", id="two")]}
    for _ in range(2):
        middleware.after_agent(state, None)
    facts = memory.list(user_id="alice").facts
    assert [fact.text for fact in facts[len(FACTS) :]] == [f"User: {QUESTION}", "Assistant: Rex."]
    assert [len(memory.history(fact.id, user_id="alice")) for fact in facts] == [1] * 6


def test_nothing_is_saved_where_that_is_switched_off(memory: Memory) -> None:
    agent(says("Rex."), InferScaleMemoryMiddleware(memory, save=False)).invoke(ask(), ALICE)
    assert texts(memory) == []


def test_a_turn_that_ends_in_a_tools_result_saves_what_the_user_said(memory: Memory) -> None:
    middleware = InferScaleMemoryMiddleware(memory, user_id="alice")
    messages = [HumanMessage("How is Oslo?", id="one"), calls_weather(), ToolMessage("Sunny.", tool_call_id="0")]
    middleware.after_agent({"messages": messages}, None)
    assert texts(memory) == ["User: How is Oslo?"]


def test_a_handle_that_a_user_or_a_model_spells_is_not_saved(memory: Memory) -> None:
    handle = memory.recall("dog", user_id="bob")
    agent(says(f"You said {handle}."), InferScaleMemoryMiddleware(memory)).invoke(ask(f"Say {handle}."), ALICE)
    assert len(texts(memory)) == 2
    assert not holds_handle(texts(memory))


@pytest.mark.parametrize("bad", ["\ud800", "\0", "x" * 300])
def test_a_message_whose_id_cannot_be_kept_is_searched_for_and_saved_all_the_same(
    memory: Memory, searches: list[Any], bad: str
) -> None:
    noted = Placed()
    running = agent(says("Noted."), InferScaleMemoryMiddleware(memory, k=2), noted.middleware)
    running.invoke(ask("My shoes are red.", id=bad), ALICE)
    assert len(searches) == 1
    assert all(noted.handles)
    assert "User: My shoes are red." in texts(memory)


def test_a_message_that_cannot_be_saved_is_named(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    agent(says("Rex."), InferScaleMemoryMiddleware(memory)).invoke(ask("Dog? \ud800", id="odd"), ALICE)
    assert "messages were not saved (user odd)" in caplog.text
    assert texts(memory) == ["Assistant: Rex."]


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def outage(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """``outage("raises")`` and so on break the memory's search."""
    released = threading.Event()

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the index is down")

    def hanging(*_: Any, **__: Any) -> Any:
        released.wait(60)

    def begin(kind: str) -> None:
        if kind == "closed":
            memory.close()
        else:
            monkeypatch.setattr(memory.retriever, "search", {"raises": broken, "hangs": hanging}[kind])

    yield begin
    released.set()


OUTAGES = pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        ("raises", "error", "ConnectionError: the index is down"),
        ("hangs", "timeout", "a search took longer than 0.2 s"),
        ("closed", "error", "this memory is closed"),
    ],
)


@OUTAGES
def test_the_agent_answers_without_memory_and_one_warning_tells(
    memory: Memory, outage: Callable[[str], None], kind: str, reason: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    noted, before = Placed(), failures("recall", reason)
    middleware = InferScaleMemoryMiddleware(memory, timeout=0.2)
    running = agent(says(calls_weather(), "Rex.", "Oslo."), middleware, noted.middleware)
    outage(kind)
    answer = running.invoke(ask(), ALICE)["messages"][-1].text
    running.invoke(ask("Where do I live?"), ALICE)
    assert answer == "Rex."
    assert noted.handles == [()] * 3
    told = [record.getMessage() for record in caplog.records if "goes on without" in record.getMessage()]
    assert len(told) == 1
    assert words in told[0]
    assert failures("recall", reason) == before + 2


@OUTAGES
async def test_an_awaited_agent_answers_without_memory_and_leaves_the_loop_free(
    memory: Memory, outage: Callable[[str], None], kind: str, reason: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    running = agent(says(calls_weather(), "Rex."), InferScaleMemoryMiddleware(memory, timeout=0.2))
    outage(kind)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert (await running.ainvoke(ask(), ALICE))["messages"][-1].text == "Rex."
    ticking.cancel()
    assert words in caplog.text
    assert ticks > 5 or kind != "hangs"


def test_a_hanging_search_is_waited_for_once_per_turn(
    memory: Memory, outage: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_inferscale import middleware as module

    waits: list[float] = []
    wait_for = module.wait_for
    monkeypatch.setattr(module, "wait_for", lambda future, left: (waits.append(left), wait_for(future, left)))
    outage("hangs")
    running = agent(says(calls_weather(), calls_weather(), "Rex."), InferScaleMemoryMiddleware(memory, timeout=0.2))
    running.invoke(ask(), ALICE)
    *searching, _saving = waits
    assert searching[0] > 0.1
    assert all(left <= 0 for left in searching[1:])


def test_a_search_that_comes_in_late_serves_the_later_steps(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    late, recall = threading.Event(), memory.recall
    monkeypatch.setattr(memory, "recall", lambda *args, **ids: (late.wait(60), recall(*args, **ids))[1])
    middleware, noted = InferScaleMemoryMiddleware(memory, user_id="alice", timeout=0.05), []
    request = request_of(ask(id="one"))
    middleware.wrap_model_call(request, lambda _: noted.append(placed_handles()))
    late.set()
    recalled = middleware._search(request, {"user_id": "alice"})[0]
    assert recalled is not None
    recalled.found.result(60)
    middleware.wrap_model_call(request, lambda _: noted.append(placed_handles()))
    assert [len(handles) for handles in noted] == [0, 1]


def test_the_end_of_an_outage_is_told_and_the_next_one_is_warned_of_again(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = agent(says(*["Rex."] * 3), InferScaleMemoryMiddleware(memory))
    for down in (True, False, True):
        with monkeypatch.context() as patch:
            if down:
                patch.setattr(memory, "recall", lambda *_, **__: 1 / 0)
            running.invoke(ask(), ALICE)
    told = [record.getMessage() for record in caplog.records if record.name.endswith(".timeboxed.outage")]
    assert ["does not answer" in words for words in told] == [True, False, True]
    assert "memory answers again" in told[1]


def test_a_turn_that_could_not_be_saved_is_named_in_a_warning(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = failures("save", "error")
    monkeypatch.setattr(memory, "add", lambda *_, **__: 1 / 0)
    running = agent(says("Rex.", "Rex."), InferScaleMemoryMiddleware(memory))
    for name in ("first", "second"):
        assert running.invoke(ask(id=name), ALICE)["messages"][-1].text == "Rex."
    assert all(f"messages were not saved (user {name}, assistant " in caplog.text for name in ("first", "second"))
    assert "ZeroDivisionError" in caplog.text
    assert failures("save", "error") == before + 2


def test_a_save_that_takes_long_goes_on_in_the_background(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    late, add = threading.Event(), memory.add
    monkeypatch.setattr(memory, "add", lambda *args, **ids: (late.wait(60), add(*args, **ids))[1])
    agent(says("Rex."), InferScaleMemoryMiddleware(memory, timeout=0.05)).invoke(ask(), ALICE)
    assert texts(memory) == []
    late.set()
    eventually(lambda: texts(memory) == [f"User: {QUESTION}", "Assistant: Rex."])


# -- beside other middleware -------------------------------------------------------------------------------------------


def test_two_with_one_name_are_refused_by_langchain_and_names_tell_them_apart(memory: Memory) -> None:
    with pytest.raises(AssertionError, match="duplicate middleware"):
        agent(says(), InferScaleMemoryMiddleware(memory), InferScaleMemoryMiddleware(memory))
    agent(says(), InferScaleMemoryMiddleware(memory), InferScaleMemoryMiddleware(memory, name="second"))


def test_two_memories_both_place_and_two_alike_add_nothing_twice(memory: Memory) -> None:
    memory.add("The team's dog is called Bello.", agent_id="team")
    noted = Placed()
    personal = InferScaleMemoryMiddleware(memory)
    again = InferScaleMemoryMiddleware(memory, name="again")
    shared = InferScaleMemoryMiddleware(memory, agent_id="team", per_run=False, save=False, name="team")
    agent(says("Rex."), personal, again, shared, noted.middleware).invoke(ask(), ALICE)
    named = [[shown.fact.text for shown in memory.explain(handle).facts] for handle in noted.handles[0]]
    assert [set(facts) for facts in named] == [set(FACTS), {"The team's dog is called Bello."}]
    assert [*noted.scopes[0].values()] == [{"user_id": "alice"}, {"agent_id": "team"}]
    assert texts(memory) == [f"User: {QUESTION}", "Assistant: Rex."]
    assert {len(memory.history(fact.id, user_id="alice")) for fact in memory.list(user_id="alice").facts} == {1}


@pytest.mark.parametrize("last", [True, False])
def test_a_redacted_message_is_searched_for_and_saved_redacted(memory: Memory, searches: list[Any], last: bool) -> None:
    middleware = [PIIMiddleware("email"), InferScaleMemoryMiddleware(memory)]
    running = agent(says("Noted."), *(middleware if last else reversed(middleware)))
    running.invoke(ask("My mail is alice@example.org."), ALICE)
    assert [query for query, _ in searches] == ["My mail is [REDACTED_EMAIL]."]
    assert texts(memory) == ["User: My mail is [REDACTED_EMAIL].", "Assistant: Noted."]


@pytest.mark.parametrize("last", [True, False])
def test_a_summary_is_neither_searched_for_nor_saved(memory: Memory, searches: list[Any], last: bool) -> None:
    summary = SummarizationMiddleware(
        says(*["They talked about music."] * 4), trigger=("messages", 4), keep=("messages", 1)
    )
    middleware = [summary, InferScaleMemoryMiddleware(memory)]
    running = agent(
        says("One.", "Two.", "Three."), *(middleware if last else reversed(middleware)), checkpointer=InMemorySaver()
    )
    for question in ("First?", "Second?", "Third?"):
        state = running.invoke(ask(question), ALICE)
    assert any("They talked about music." in message.text for message in state["messages"])
    assert [query for query, _ in searches] == ["First?", "Second?", "Third?"]
    assert texts(memory) == [
        "User: First?", "Assistant: One.", "User: Second?", "Assistant: Two.", "User: Third?", "Assistant: Three."
    ]  # fmt: skip


def test_a_message_that_is_summarised_away_within_its_turn_keeps_its_facts_and_is_saved(
    memory: Memory, searches: list[Any]
) -> None:
    @before_model
    def summarise(state: Any, runtime: Any) -> dict[str, Any] | None:
        if not isinstance(state["messages"][-1], ToolMessage):
            return None
        summary = HumanMessage("A summary.", additional_kwargs={"lc_source": "summarization"})
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), summary, *state["messages"][-2:]]}

    noted = Placed()
    running = agent(says(calls_weather(), "Rex."), InferScaleMemoryMiddleware(memory), summarise, noted.middleware)
    running.invoke(ask(), ALICE)
    assert len(searches) == 1
    assert [len(handles) for handles in noted.handles] == [1, 1]
    assert texts(memory) == [f"User: {QUESTION}", "Assistant: Rex."]


def test_a_resumed_turn_goes_on_with_its_facts(memory: Memory, searches: list[Any]) -> None:
    noted = Placed()
    middleware = InferScaleMemoryMiddleware(memory)
    running = agent(
        says(calls_weather(), "Rex."),
        middleware,
        noted.middleware,
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    running.invoke(ask(), ALICE)
    running.invoke(None, ALICE)
    assert len(searches) == 1
    assert [len(handles) for handles in noted.handles] == [1, 1]
    assert texts(memory) == [f"User: {QUESTION}", "Assistant: Rex."]


def test_a_model_that_takes_no_facts_is_told_of_once(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    running = agent(says("Rex.", "Rex."), InferScaleMemoryMiddleware(memory))
    for _ in range(2):
        running.invoke(ask(), ALICE)
    told = [record for record in caplog.records if "Give create_agent a ChatInferScale" in record.getMessage()]
    assert len(told) == 1
    assert "Scripted" in told[0].getMessage()


def test_no_handle_is_in_state_stream_checkpoint_trace_or_output(memory: Memory) -> None:
    saver, trace = InMemorySaver(), Everything()
    running = agent(
        says(calls_weather(), "Rex."), InferScaleMemoryMiddleware(memory), checkpointer=saver, system_prompt="Be kind."
    )
    chunks = list(running.stream(ask(), {**ALICE, "callbacks": [trace]}, stream_mode=["values", "updates", "debug"]))
    assert trace.seen
    assert not holds_handle(
        [chunks, trace.seen, list(saver.list(ALICE)), dict(saver.storage), saver.blobs, saver.writes]
    )
    assert "inferscale_turn" not in running.invoke(None, ALICE)


# -- placing -----------------------------------------------------------------------------------------------------------


def test_placed_handles_add_up_and_end_with_their_block() -> None:
    with placed(["a", "b"], {"user_id": "alice"}):
        with placed(["b", "c"], {"agent_id": "team"}):
            assert placed_handles() == ("a", "b", "c")
            alice, team = {"user_id": "alice"}, {"agent_id": "team"}
            assert placed_scopes({}) == {"a": alice, "b": alice, "c": team}
        assert placed_handles() == ("a", "b")
    assert placed_handles() == ()
    assert placed_scopes({}) == {}


def test_a_placed_handle_keeps_its_scope_unless_it_contradicts_the_calls() -> None:
    helper = {"user_id": "alice", "agent_id": "helper"}
    with placed(["a"], helper), placed(["b"]):
        assert placed_scopes({"user_id": "alice"}) == {"a": helper}
        assert placed_scopes({"user_id": "bob"}) == {}
        assert call_scope({"user_id": "bob"}) == {"user_id": "bob"}
