"""``InferScaleMemory`` where LlamaIndex uses it: chat engines, agents, saved contexts, restarts. Models are mocks."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle

import pytest
from conversations import QUESTION, TALK, assistant, exchanges, recalled, said, user
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import TextBlock, ToolCallBlock
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer

from inferscale_memory import ConfigError, Memory, ScopeError
from llama_index.memory.inferscale import InferScaleMemory


class Library(BaseRetriever):
    """Finds one text, whatever is asked."""

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=TextNode(text="Dogs bark."), score=1.0)]


# Workflow looks at every attribute of an agent, pydantic's deprecated ones included.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def prompts():
    """What the model was given, call by call."""
    return []


@pytest.fixture
def llm(prompts):
    """Calls ``look`` once per turn where it has tools, then answers."""

    def answer(messages, tools=None, **_):
        prompts.append(list(messages))
        if tools and messages[-1].role == "user":
            call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"at": "sky"})
            return assistant(None, blocks=[TextBlock(text=""), call])
        return assistant("Rex.")

    return MockFunctionCallingLLM(response_generator=answer)


def look(at: str) -> str:
    """Look at something."""
    return f"blue {at}"


ENGINES = {
    "simple": lambda llm, memory: SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="Be brief."),
    "context": lambda llm, memory: ContextChatEngine.from_defaults(retriever=Library(), llm=llm, memory=memory),
    "condense plus context": lambda llm, memory: CondensePlusContextChatEngine.from_defaults(
        Library(), llm=llm, memory=memory
    ),
    "condense question": lambda llm, memory: CondenseQuestionChatEngine.from_defaults(
        RetrieverQueryEngine.from_args(Library(), llm=llm), llm=llm, memory=memory
    ),
}


@pytest.fixture(params=ENGINES)
def engine_of(request, llm):
    return lambda memory: ENGINES[request.param](llm, memory)


async def chat(engine, face, text):
    """One turn through one of the four faces of a chat engine, until its answer is in the memory."""
    if face == "sync":
        return str(engine.chat(text))
    if face == "async":
        return str(await engine.achat(text))
    if face == "stream":
        return "".join(engine.stream_chat(text).response_gen)
    response = await engine.astream_chat(text)
    return "".join([token async for token in response.async_response_gen()])


@pytest.mark.parametrize("face", ["sync", "async", "stream", "async stream"])
async def test_a_chat_engine_searches_once_per_turn_and_keeps_the_conversation(make, searches, engine_of, face):
    memory = make(chat_history=exchanges(), recent_turns=2)
    engine = engine_of(memory)
    for turn in range(2):
        await chat(engine, face, QUESTION)
        assert searches == [QUESTION] * (turn + 1)
        assert [role for role, _ in said(memory.get_all())[-2:]] == ["user", "assistant"]
    assert len(engine.chat_history) == 2 * len(TALK) + 4
    engine.reset()
    assert engine.chat_history == []


def test_the_model_is_given_the_handle_beside_the_system_prompt(make, llm, prompts, long_term):
    SimpleChatEngine.from_defaults(
        llm=llm, memory=make(chat_history=exchanges(), recent_turns=0, k=1), system_prompt="Be brief."
    ).chat(QUESTION)
    [sent] = prompts
    assert sent[0].content == "Be brief."
    assert recalled(long_term, sent) == ["User: My dog is called Rex."]
    assert said(sent)[1:] == [("user", QUESTION)]


def test_a_chat_engine_can_make_its_memory_itself(llm, prompts, long_term):
    kind = InferScaleMemory.bound(long_term, user_id="alice", recent_turns=0, k=1, token_limit=77)
    engine = SimpleChatEngine.from_defaults(llm=llm, memory_cls=kind, chat_history=exchanges())
    engine.chat(QUESTION)
    assert recalled(long_term, prompts[0]) == ["User: My dog is called Rex."]
    assert type(engine._memory) is InferScaleMemory
    assert engine._memory.token_limit == 77
    only = SimpleChatEngine.from_defaults(llm=llm, memory_cls=InferScaleMemory.bound(user_id="alice"))._memory
    assert only.memory is long_term
    assert only.token_limit == llm.metadata.context_window - 256


def test_a_chat_engine_that_names_nobody_is_refused(llm, long_term):
    with pytest.raises(ScopeError, match=r"memory_cls=InferScaleMemory.bound\(user_id='alice'\)"):
        SimpleChatEngine.from_defaults(llm=llm, memory_cls=InferScaleMemory)


@pytest.mark.parametrize("workflow", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_agent_searches_once_per_turn_and_its_tool_steps_see_the_handle(
    make, searches, llm, prompts, long_term, workflow, streaming
):
    memory = make(chat_history=exchanges(), recent_turns=2, k=1)
    agent = FunctionAgent(name="one", tools=[look], llm=llm, streaming=streaming)
    runner = AgentWorkflow(agents=[agent]) if workflow else agent
    for turn in range(2):
        answer = await runner.run(QUESTION, memory=memory)
        assert str(answer) == "Rex."
        assert len(searches) == turn + 1
    assert len(prompts) == 4
    for sent in prompts[:2]:
        assert recalled(long_term, sent) == ["User: My dog is called Rex."]
    assert [turn.text for turn in long_term.turns(user_id="alice")][2 * len(TALK) :] == [QUESTION, "Rex."] * 2
    assert "tool" in [message.role.value for message in memory.get_all()]


async def test_agents_of_two_users_at_once_see_only_their_own(make, llm, prompts, long_term):
    async def talk(who):
        memory = make(user_id=who, recent_turns=0, k=50)
        await memory.aput_messages([user(f"I am {who}."), assistant(f"Hello {who}.")])
        for number in range(4):
            await FunctionAgent(tools=[look], llm=llm, streaming=False).run(f"Who is {who} {number}?", memory=memory)

    await asyncio.gather(*map(talk, ("alice", "bob", "carol")))
    assert len(prompts) == 24
    for sent in prompts:
        asker = next(text.split()[2] for role, text in said(sent) if role == "user")
        named = {name for name in ("alice", "bob", "carol") for text in recalled(long_term, sent) if name in text}
        assert named <= {asker}
    assert any(recalled(long_term, sent) for sent in prompts)


# -- saved and restored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", [JsonSerializer(), JsonPickleSerializer()])
async def test_a_saved_context_restores_a_memory_that_works(make, llm, prompts, long_term, serializer):
    agent = FunctionAgent(tools=[look], llm=llm, streaming=False)
    context = Context(agent)
    memory = make(chat_history=exchanges(), recent_turns=2, k=1)
    await agent.run(QUESTION, ctx=context, memory=memory)
    saved = json.dumps(context.to_dict(serializer=serializer))
    assert "kv:" not in saved
    assert str(long_term.settings.database) not in saved
    again = Context.from_dict(agent, json.loads(saved), serializer=serializer)
    prompts.clear()
    await agent.run("And again: what is my dog called?", ctx=again)
    restored = await again.store.get("memory")
    assert restored is not memory
    assert restored.memory is long_term
    assert said(restored.get_all())[: len(memory.get_all())] == said(memory.get_all())
    assert recalled(long_term, prompts[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_by_itself(make, long_term, copied):
    memory = make(chat_history=exchanges(), k=3, refresh=1, session_id="s", recent_turns=None)
    other = copied(memory)
    assert other.to_dict() == memory.to_dict()
    assert other.memory is long_term
    other.put(user("Hello."))
    assert len(memory.get_all()) == 2 * len(TALK)


def test_it_goes_on_after_a_restart_with_the_memory_that_is_open_then(open_bare, caplog):
    before = open_bare()
    memory = InferScaleMemory.from_defaults(memory=before, user_id="alice", recent_turns=2, k=1)
    memory.put_messages([*exchanges(), user(QUESTION)])
    saved = memory.to_string()
    before.close()
    restored = InferScaleMemory.from_string(saved)
    with pytest.raises(ConfigError, match=r"not open in this process.*restored.memory = memory"):
        restored.get()
    open_bare("other")
    with pytest.raises(ConfigError, match="of 1 that are"):
        restored.put(user("Hello?"))
    after = open_bare()
    with caplog.at_level(logging.WARNING):
        assert recalled(after, restored.get()) == ["User: My dog is called Rex."]
    assert not caplog.records
    # What is put again because nobody knows whether it was saved is saved once.
    restored.set(restored.get_all())
    assert len(after.turns(user_id="alice")) == 2 * len(TALK) + 1


def test_a_new_object_after_a_restart_recalls_what_was_said_before(open_bare):
    before = open_bare()
    InferScaleMemory.from_defaults(memory=before, user_id="alice", chat_history=exchanges())
    before.close()
    after = open_bare()
    memory = InferScaleMemory.from_defaults(memory=after, user_id="alice", k=1)
    memory.put(user(QUESTION))
    assert recalled(after, memory.get()) == ["User: My dog is called Rex."]


def test_the_memory_and_the_store_can_be_given_again(make, open_bare):
    memory = make(chat_history=exchanges())
    other = open_bare("other")
    assert InferScaleMemory.from_dict(memory.to_dict(), memory=other).memory is other
    restored = InferScaleMemory.from_dict(memory.to_dict())
    restored.memory = other
    restored.put(user("Hello."))
    assert [turn.text for turn in other.turns(user_id="alice")] == ["Hello."]
    assert InferScaleMemory.from_dict(memory.to_dict(), chat_store=memory.chat_store).get_all() == memory.get_all()


def test_what_is_saved_names_ids_and_messages_and_no_secret(make, long_term):
    saved = make(chat_history=exchanges(), tokenizer_fn=str.split).to_dict()
    assert set(saved) >= {"user_id", "messages", "place", "conversation_id", "token_limit", "class_name"}
    assert not set(saved) & {"memory", "tokenizer_fn", "chat_store"}
    assert saved["place"] == long_term.place
    assert isinstance(long_term, Memory)
