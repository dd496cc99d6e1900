"""The chat model on the real engine: where handles are found, what comes back, and how calls end."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated, Any

import pytest
from asking import FACTS, QUESTION, eventually, remember
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel, Field

from inferscale_memory import EngineError, InvalidInputError, LocalEngine, Memory, PromptError
from langchain_inferscale import ChatInferScale
from langchain_inferscale.context import placed
from langchain_inferscale.messages import marked

pytestmark = pytest.mark.engine

LONG = {"max_tokens": 1500, "ignore_eos": True}


@pytest.fixture
def memory(memory_for: Callable[..., Memory], user: str) -> Memory:
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return memory


@pytest.fixture
def handle(memory: Memory, user: str) -> str:
    return memory.recall(QUESTION, 4, user_id=user)


@pytest.fixture
def chat(engine: LocalEngine) -> ChatInferScale:
    return ChatInferScale(engine=engine, max_tokens=12, temperature=0)


def block(handle: str) -> dict[str, Any]:
    return {"type": "non_standard", "id": "memory", "value": {"type": "kv_handle", "handle": str(handle)}}


def covered(answer: AIMessage) -> int:
    """Tokens that nobody computed: injected, or native blocks of the request before."""
    kv = answer.response_metadata["kv"]
    return kv["injected"] + kv["local_hit"]


def requests_of(engine: LocalEngine) -> int:
    return len(engine.client.output_processor.request_states)


# -- where a handle is found -------------------------------------------------------------------------------------------


def test_a_handle_is_found_in_system_text_in_a_block_in_a_keyword_and_beside_the_messages(chat, handle):
    plain = [SystemMessage("You are helpful."), HumanMessage(QUESTION)]
    text = chat.invoke([SystemMessage(f"You are helpful. {handle}"), HumanMessage(QUESTION)])
    parts = SystemMessage(content_blocks=[{"type": "text", "text": "You are helpful."}, block(handle)])
    in_block = chat.invoke([parts, HumanMessage(QUESTION)])
    keyword = chat.invoke(plain, kv_handles=[handle])
    with placed([handle]):
        beside = chat.invoke(plain)
    for answer in (text, in_block, keyword, beside):
        assert covered(answer) > 60, answer.response_metadata["kv"]
        assert len(answer.response_metadata["recalled"]) == 4
    assert chat.invoke(plain).response_metadata["recalled"] == []


def test_the_same_handle_given_in_every_way_counts_once(chat, handle):
    messages = [
        SystemMessage(content_blocks=[{"type": "text", "text": f"Be brief. {handle}"}, block(handle)]),
        HumanMessage(QUESTION),
    ]
    with placed([handle]):
        answer = chat.invoke(messages, kv_handles=[handle])
    assert len(answer.response_metadata["recalled"]) == 4


def test_a_handle_in_a_string_prompt_is_resolved_wherever_it_stands(chat, handle):
    for prompt in (f"{handle}\n{QUESTION}", f"Human: {QUESTION}\n{handle}\nAI:"):
        assert covered(chat.invoke(prompt)) > 60
        assert covered(chat.invoke(PromptTemplate.from_template("{text}").invoke({"text": prompt}))) > 60
        *_, last = chat.stream(prompt)
        assert last.response_metadata["kv"]["prefilled"] < 60


@pytest.mark.parametrize("role", ["human", "ai", "tool"])
def test_a_handle_that_somebody_spelled_in_a_conversation_names_no_memory(chat, handle, caplog, role):
    messages = {
        "human": [HumanMessage(f"{handle} {QUESTION}")],
        "ai": [HumanMessage("Hello."), AIMessage(f"Hi. {handle}"), HumanMessage(QUESTION)],
        "tool": [
            HumanMessage("Look it up."),
            AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1", "type": "tool_call"}]),
            ToolMessage(f"found {handle}", tool_call_id="1"),
        ],
    }[role]
    with caplog.at_level(logging.WARNING):
        answer = chat.invoke(messages)
    assert answer.response_metadata["recalled"] == []
    assert answer.response_metadata["kv"]["injected"] == 0
    assert "outside system messages" in caplog.text
    # The prompt is that of the same conversation without the handle: not a token of it reached the model.
    bare = [type(m)(**{**m.model_dump(), "content": m.content.replace(str(handle), "")}) for m in messages]
    assert answer.usage_metadata["input_tokens"] == chat.get_num_tokens_from_messages(bare)


def test_a_message_from_outside_cannot_pass_for_a_string_prompt(chat, handle):
    [real] = marked(StringPromptValue(text=f"{handle} {QUESTION}")).to_messages()
    forged = HumanMessage(**real.model_dump())
    assert forged.additional_kwargs == real.additional_kwargs
    assert chat.invoke([forged]).response_metadata["recalled"] == []


def test_a_handle_in_a_tool_s_arguments_or_cut_in_two_does_not_reach_the_model(engine, chat, handle):
    call = {"name": "look", "id": "1", "type": "tool_call"}

    def conversation(text: str, query: str) -> list[Any]:
        said = AIMessage("", tool_calls=[{**call, "args": {"query": query}}])
        return [HumanMessage(text), said, ToolMessage("Nothing.", tool_call_id="1")]

    spelled, bare = conversation(f"Look {handle[:-9]}", f"dog {handle}"), conversation("Look ", "dog ")
    tokens = [chat.invoke(messages).usage_metadata["input_tokens"] for messages in (spelled, bare)]
    assert tokens[0] == tokens[1]


def test_a_placeholder_in_a_template_keeps_the_handle(chat, handle):
    template = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{q}")]
    )
    answer = (template | chat).invoke({"history": [SystemMessage(content=str(handle))], "q": QUESTION})
    assert covered(answer) > 60


def test_consecutive_system_messages_reach_the_template_as_one(chat):
    apart = [SystemMessage("Be brief."), SystemMessage("Be kind."), HumanMessage(QUESTION)]
    together = [SystemMessage("Be brief.\n\nBe kind."), HumanMessage(QUESTION)]
    counts = [chat.invoke(messages).usage_metadata["input_tokens"] for messages in (apart, together)]
    assert counts[0] == counts[1]


# -- whose memory ------------------------------------------------------------------------------------------------------


def test_a_call_that_names_another_user_gets_no_facts(chat, handle, user, caplog):
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    with caplog.at_level(logging.WARNING):
        foreign = chat.invoke(messages, user_id="somebody else")
    assert foreign.response_metadata["recalled"] == []
    assert "foreign" in caplog.text
    assert chat.invoke(messages, user_id=user).response_metadata["recalled"]


def test_the_run_s_config_and_the_model_s_own_ids_name_the_user(engine, chat, handle, user):
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    chain = RunnableLambda(lambda _: messages) | chat
    for name, known in (("somebody else", False), (user, True)):
        answer = chain.invoke("", config={"configurable": {"user_id": name}})
        assert bool(answer.response_metadata["recalled"]) is known
    pinned = ChatInferScale(engine=engine, max_tokens=2, user_id="somebody else")
    assert pinned.invoke(messages).response_metadata["recalled"] == []


def test_the_config_of_a_call_names_the_user_without_a_chain_around_the_model(chat, handle, user):
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    mine, theirs = ({"configurable": {"user_id": name}} for name in (user, "somebody else"))

    async def awaited(config):
        *_, last = [chunk async for chunk in chat.astream(messages, config)]
        return [await chat.ainvoke(messages, config), last]

    for config, known in ((mine, True), (theirs, False)):
        *_, last = chat.stream(messages, config)
        bound = chat.with_config(config).invoke(messages)
        answers = [chat.invoke(messages, config), last, bound, *asyncio.run(awaited(config))]
        assert [bool(answer.response_metadata["recalled"]) for answer in answers] == [known] * 5
    answers = chat.batch([messages, messages], [mine, theirs])
    assert [bool(answer.response_metadata["recalled"]) for answer in answers] == [True, False]
    # What the call and the model say themselves goes before.
    assert chat.invoke(messages, theirs, user_id=user).response_metadata["recalled"]
    assert chat.model_copy(update={"user_id": user}).invoke(messages, theirs).response_metadata["recalled"]


def test_a_cached_answer_is_not_given_to_a_run_that_may_not_open_its_handle(engine, handle, user):
    cached = ChatInferScale(engine=engine, max_tokens=2, temperature=0, cache=InMemoryCache())
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    for model in (cached, RunnableLambda(lambda _: messages) | cached):
        for name, known in ((user, True), ("somebody else", False), (user, True)):
            answer = model.invoke(messages, {"configurable": {"user_id": name}})
            assert bool(answer.response_metadata["recalled"]) is known


def test_a_copy_of_the_model_asks_the_same_engine(engine, chat):
    for copied in (copy.deepcopy(chat), chat.model_copy(deep=True), copy.copy(chat)):
        assert copied.engine is engine


def test_handles_placed_for_several_scopes_open_no_handle_of_anybody_else(engine, memory, user, monkeypatch):
    monkeypatch.setattr(engine, "require_scope", True)
    bobs = remember(memory, ["The dog of Bob is called Fido."], "bob of the scopes")
    teams = memory.add("The team meets on Mondays.", agent_id="team of the scopes").facts
    alices = memory.recall(QUESTION, 4, user_id=user)
    shared = memory.recall("When does the team meet?", 1, agent_id="team of the scopes")
    foreign = memory.recall(QUESTION, 1, user_id="bob of the scopes")
    pinned = ChatInferScale(engine=engine, max_tokens=2, user_id=user)
    with placed([alices], {"user_id": user}), placed([shared], {"agent_id": "team of the scopes"}):
        answer = pinned.invoke([SystemMessage(f"Be brief. {foreign}"), HumanMessage(QUESTION)])
    ids = {fact["id"] for fact in answer.response_metadata["recalled"]}
    assert len(ids) == 5
    assert teams[0].id in ids
    assert ids.isdisjoint(bobs)


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_what_was_recalled_comes_back_with_ids_and_scores_and_no_handle(chat, memory, handle, user):
    answer = chat.invoke([SystemMessage(str(handle)), HumanMessage(QUESTION)])
    found = memory.search(QUESTION, 4, user_id=user)
    assert answer.response_metadata["recalled"] == [
        {"id": scored.fact.id, "score": pytest.approx(scored.score)} for scored in reversed(found)
    ]
    assert "⟦" not in repr(answer)


def test_injected_tokens_are_the_usage_s_cache_read(chat, handle):
    answer = chat.invoke([SystemMessage(f"Only once. {handle}"), HumanMessage(QUESTION)])
    usage = answer.usage_metadata
    assert usage["input_token_details"]["cache_read"] == answer.response_metadata["kv"]["injected"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_stream_says_what_the_whole_answer_says(chat, handle):
    messages = [SystemMessage(f"Twice. {handle}"), HumanMessage(QUESTION)]
    whole = chat.invoke(messages)
    total = None
    for chunk in chat.stream(messages):
        total = chunk if total is None else total + chunk
    assert total.content == whole.content
    assert total.response_metadata["recalled"] == whole.response_metadata["recalled"]
    assert total.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]
    assert covered(total) == covered(whole) > 0
    assert total.chunk_position == "last"


def test_a_handle_that_the_model_is_made_to_say_is_taken_out(chat):
    spelled = {"structured_outputs": {"regex": "yes ⟦kv:abcdefgh⟧ no"}, "max_tokens": 40}
    assert chat.invoke("Hello", **spelled).content == "yes  no"
    pieces = [chunk.content for chunk in chat.stream("Hello", **spelled)]
    assert "".join(pieces) == "yes  no"
    assert not any("⟦" in piece for piece in pieces)


def test_log_probabilities_and_several_answers_come_back(chat, handle):
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    answer = chat.invoke(messages, logprobs=True, top_logprobs=2, max_tokens=3)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == 3
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    result = chat.generate([messages], n=2, temperature=1.0, max_tokens=2)
    assert len(result.generations[0]) == 2
    with pytest.raises(InvalidInputError, match="n=2 answers cannot be streamed"):
        next(chat.stream(messages, n=2))


def test_a_seed_repeats_a_sampled_answer_and_stop_strings_end_one(engine):
    hot = ChatInferScale(engine=engine, max_tokens=12, temperature=1.0, seed=7)
    assert hot.invoke("Tell me something.").content == hot.invoke("Tell me something.").content
    cold = ChatInferScale(engine=engine, max_tokens=12, temperature=0)
    whole = cold.invoke("Hello").content
    word = whole.split()[2]
    assert cold.invoke("Hello", stop=[word]).content == whole.split(word)[0]
    assert (
        ChatInferScale(engine=engine, max_tokens=12, temperature=0, stop=[word]).invoke("Hello").content
        == (whole.split(word)[0])
    )


# -- tools and structure -----------------------------------------------------------------------------------------------


class Dog(BaseModel):
    """A dog."""

    name: str = Field(max_length=8)


def call_dog(name: Annotated[str, Field(max_length=8)]) -> str:
    """Call a dog by its name."""
    return name


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_holds_to_its_schema_beside_a_handle(chat, handle, method):
    shaped = chat.with_structured_output(Dog, method=method, include_raw=True, max_tokens=60)
    answer = shaped.invoke([SystemMessage(str(handle)), HumanMessage(QUESTION)])
    assert isinstance(answer["parsed"], Dog)
    assert answer["parsing_error"] is None
    assert covered(answer["raw"]) > 60


def test_an_answer_cut_off_in_its_structure_is_a_parsing_error(chat):
    shaped = chat.with_structured_output(Dog, include_raw=True, max_tokens=2)
    answer = shaped.invoke("Name a dog.")
    assert answer["parsed"] is None
    assert answer["parsing_error"] is not None


def test_a_forced_tool_call_holds_to_its_schema_and_a_strange_choice_is_named(chat, handle):
    bound = chat.bind_tools([call_dog], tool_choice="call_dog", parallel_tool_calls=False)
    answer = bound.invoke([SystemMessage(str(handle)), HumanMessage(QUESTION)], max_tokens=60)
    [call] = answer.tool_calls
    assert call["name"] == "call_dog"
    assert set(call["args"]) == {"name"}
    assert covered(answer) > 60
    assert bound.kwargs["tools"][0]["function"]["strict"] is True
    with pytest.raises(
        InvalidInputError, match="tool_choice is 'call_cat'; wanted any, auto, none, or a tool: call_dog"
    ):
        chat.bind_tools([call_dog], tool_choice="call_cat")
    with pytest.raises(InvalidInputError, match="method is 'prayer'"):
        chat.with_structured_output(Dog, method="prayer")


def test_the_demo_model_s_template_shows_the_tools_before_the_system_text(engine, chat, handle):
    """What stands before the facts is injected with them, so tools cost a question nothing."""
    messages = [SystemMessage(f"Be brief. {handle}"), HumanMessage(QUESTION)]
    bare = chat.invoke(messages)
    bound = chat.bind_tools([call_dog]).invoke(messages)
    assert covered(bound) > covered(bare) + 50
    assert bound.response_metadata["kv"]["prefilled"] <= bare.response_metadata["kv"]["prefilled"] + covered(bare)


# -- counting ----------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_with_the_facts_behind_handles_and_with_tools(chat, handle):
    messages = [SystemMessage(f"Be brief. {handle}"), HumanMessage(QUESTION)]
    counted = chat.get_num_tokens_from_messages(messages)
    assert counted == chat.invoke(messages).usage_metadata["input_tokens"]
    with_tools = chat.get_num_tokens_from_messages(messages, tools=[call_dog])
    assert with_tools == chat.bind_tools([call_dog]).invoke(messages).usage_metadata["input_tokens"] > counted
    assert chat.get_num_tokens("The dog.") == len(chat.get_token_ids("The dog.")) == 3


def test_a_conversation_longer_than_the_model_can_still_be_counted(engine, chat):
    messages = [HumanMessage("word " * 4000)]
    assert chat.get_num_tokens_from_messages(messages) > engine.max_model_len


# -- async, callbacks, endings -----------------------------------------------------------------------------------------


def test_the_async_forms_answer_as_the_sync_ones_do(chat, handle):
    messages = [SystemMessage(f"Async. {handle}"), HumanMessage(QUESTION)]
    wanted = chat.invoke(messages).content

    async def answers():
        one, batch = await chat.ainvoke(messages), await chat.abatch([messages, messages])
        return one, batch, [chunk async for chunk in chat.astream(messages)]

    one, batch, chunks = asyncio.run(answers())
    assert one.content == wanted
    assert [answer.content for answer in batch] == [wanted, wanted]
    assert "".join(chunk.content for chunk in chunks) == wanted
    assert all(covered(answer) > 0 for answer in [one, *batch, chunks[-1]])


class Listener(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ends: list[Any] = []
        self.started: list[dict[str, Any]] = []

    def on_chat_model_start(self, serialized, messages, **kwargs):
        self.started.append(kwargs)

    def on_llm_new_token(self, token, **kwargs):
        self.tokens.append(token)

    def on_llm_end(self, response, **kwargs):
        self.ends.append(response)


def test_callbacks_hear_tokens_what_was_recalled_and_the_standard_parameters(chat, handle):
    listener = Listener()
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    pieces = [chunk.content for chunk in chat.stream(messages, config={"callbacks": [listener]})]
    assert [token for token in listener.tokens if token] == [piece for piece in pieces if piece]
    message = listener.ends[0].generations[0][0].message
    assert len(message.response_metadata["recalled"]) == 4
    told = listener.started[0]["metadata"]
    assert (told["ls_provider"], told["ls_model_type"], told["ls_max_tokens"]) == ("inferscale", "chat", 12)


def test_leaving_a_stream_or_cancelling_a_call_aborts_the_engine_s_request(engine, chat, handle):
    messages = [SystemMessage(str(handle)), HumanMessage(QUESTION)]
    stream = chat.stream(messages, **LONG)
    next(stream)
    assert requests_of(engine) == 1
    stream.close()
    eventually(lambda: requests_of(engine) == 0)

    async def leave():
        async with aclosing(chat.astream(messages, **LONG)) as chunks:
            async for _ in chunks:
                break
        task = asyncio.ensure_future(chat.ainvoke(messages, **LONG))
        while not requests_of(engine):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    eventually(lambda: requests_of(engine) == 0)


def test_a_call_that_runs_into_its_timeout_is_aborted(engine, chat):
    with pytest.raises(EngineError, match=r"no whole answer within 0.05 s; the request was aborted"):
        chat.invoke("Hello", timeout=0.05, **LONG)
    eventually(lambda: requests_of(engine) == 0)
    with pytest.raises(EngineError, match="the request was aborted"):
        list(chat.stream("Hello", timeout=0.2, **LONG))
    eventually(lambda: requests_of(engine) == 0)
    with pytest.raises(InvalidInputError, match="timeout is -1"):
        chat.invoke("Hello", timeout=-1)


def test_a_cached_answer_is_never_given_to_another_user(engine, memory, handle, user):
    other = f"{user}-other"
    remember(memory, ["The dog of Bob is called Fido."], other)
    cached = ChatInferScale(engine=engine, max_tokens=12, temperature=0, cache=InMemoryCache())
    messages = [HumanMessage(QUESTION)]
    with placed([handle]):
        mine = cached.invoke(messages)
        again = cached.invoke(messages)
    with placed([memory.recall(QUESTION, 1, user_id=other)]):
        theirs = cached.invoke(messages)
    nobodys = cached.invoke(messages)
    assert again.id == mine.id or again.usage_metadata.get("total_cost") == 0
    ids = [[fact["id"] for fact in answer.response_metadata["recalled"]] for answer in (mine, theirs, nobodys)]
    assert len(ids[0]) == 4
    assert len(ids[1]) == 1
    assert ids[2] == []
    assert ids[1][0] not in ids[0]


# -- construction ------------------------------------------------------------------------------------------------------


def test_what_is_no_engine_and_an_unknown_field_are_refused(engine):
    with pytest.raises(ValueError, match="engine is a str; wanted a running one, such as LocalEngine"):
        ChatInferScale(engine="demo")
    with pytest.raises(ValueError, match="temprature"):
        ChatInferScale(engine=engine, temprature=0)


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        ({"top_logprobs": -3}, InvalidInputError, "top_logprobs"),
        ({"tool_choice": "required"}, InvalidInputError, "tools"),
        ({"structured_outputs": {"regex": "("}}, InvalidInputError, "regex"),
        ({"max_tokens": "many"}, InvalidInputError, "max_tokens"),
        ({"kv_handles": "⟦kv:abc⟧"}, InvalidInputError, "kv_handles is a str; wanted a list"),
        ({"text": "half an emoji: \ud83d"}, InvalidInputError, "lone surrogate"),
        ({"text": "word " * 4000}, PromptError, "the prompt has"),
    ],
    ids=["option", "choice", "expression", "number", "handles", "surrogate", "too long"],
)
def test_what_the_caller_got_wrong_is_told_as_such_beside_a_handle(chat, handle, call, kind, told):
    text, options = call.get("text", QUESTION), {name: value for name, value in call.items() if name != "text"}
    with pytest.raises(kind, match=told):
        chat.invoke([SystemMessage(str(handle)), HumanMessage(text)], **options)


def test_a_prompt_that_is_too_long_is_told_as_such_without_a_handle(chat):
    with pytest.raises(PromptError, match="the prompt does not fit the model"):
        chat.invoke("word " * 4000)
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        chat.get_num_tokens("\ud83d")


def test_another_model_s_name_is_refused(engine, chat):
    with pytest.raises(InvalidInputError, match="the request names 'gpt-4o'"):
        chat.invoke("Hello", model="gpt-4o")
    assert chat.invoke("Hello", model=engine.model).response_metadata["model_name"] == engine.model


def test_the_profile_says_what_the_engine_can_do(engine, chat):
    assert chat.profile["max_input_tokens"] == engine.max_model_len
    assert chat.profile["tool_calling"] is True
    assert chat.profile["structured_output"] is True
