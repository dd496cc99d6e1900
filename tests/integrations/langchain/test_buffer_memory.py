"""``InferScaleBufferMemory``: what it puts into a prompt, what it saves, whose it is. Nothing here is about a model."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings

import pytest
from langchain_classic.memory import ConversationBufferMemory, ConversationTokenBufferMemory
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_inferscale import InferScaleBufferMemory, InferScaleChatMessageHistory

from inferscale_memory import ConfigError, MissingExtraError, ScopeError, StoreError
from inferscale_memory.handles import find_handles

TALK = (
    ("My dog is called Rex.", "What a fine name."),
    ("I live in Graz.", "A lovely town."),
    ("I like tea.", "So do many."),
    ("It rains today.", "Take an umbrella."),
)


@pytest.fixture
def memory(open_memory):
    return open_memory(None)


@pytest.fixture
def bare(memory):
    """Opens memories of Alice's on the same facts."""
    return lambda **fields: InferScaleBufferMemory(memory=memory, **{"user_id": "alice", **fields})


def talk(memory, exchanges=TALK):
    for said, answered in exchanges:
        memory.save_context({"input": said}, {"output": answered})


def loaded(memory, said="What is my dog called?"):
    return memory.load_memory_variables({"input": said})[memory.memory_key]


def recalled(memory, text):
    """Texts behind the one handle in ``text``, best first."""
    [handle] = find_handles(text)
    return [explained.fact.text for explained in reversed(memory.explain(handle).facts)]


class ForgetfulHistory(BaseChatMessageHistory):
    """Somebody's history that keeps words only."""

    def __init__(self):
        self.kept = []

    @property
    def messages(self):
        return [kind(text) for kind, text in self.kept]

    def add_messages(self, messages):
        self.kept += [(type(message), message.content) for message in messages]

    def clear(self):
        self.kept = []


# -- what ConversationBufferMemory does too ----------------------------------------------------------------------------


def test_it_takes_every_field_that_conversation_buffer_memory_has(memory):
    fields = {
        "memory_key": "chat_history",
        "input_key": "question",
        "output_key": "answer",
        "return_messages": True,
        "human_prefix": "User",
        "ai_prefix": "Bot",
        "chat_memory": InferScaleChatMessageHistory(memory, user_id="alice"),
    }
    assert set(fields) == set(ConversationBufferMemory.model_fields)
    ours = InferScaleBufferMemory(memory=memory, **fields)
    assert isinstance(ours, ConversationBufferMemory)
    assert {name: getattr(ours, name) for name in fields} == fields


@pytest.mark.parametrize("return_messages", [False, True])
async def test_an_empty_memory_gives_what_conversation_buffer_memory_gives(bare, return_messages):
    ours, theirs = bare(return_messages=return_messages), ConversationBufferMemory(return_messages=return_messages)
    assert ours.load_memory_variables({"input": "x"}) == theirs.load_memory_variables({"input": "x"})
    assert await ours.aload_memory_variables({}) == await theirs.aload_memory_variables({})
    assert ours.buffer == theirs.buffer == await ours.abuffer()


@pytest.mark.parametrize("return_messages", [False, True])
def test_as_long_as_all_is_shown_word_for_word_it_is_conversation_buffer_memory_to_the_letter(bare, return_messages):
    options = {"return_messages": return_messages, "human_prefix": "User", "ai_prefix": "Bot"}
    ours, theirs = bare(**options), ConversationBufferMemory(**options)
    for memory in (ours, theirs):
        talk(memory, TALK[:3])
    if return_messages:
        assert [(m.type, m.content) for m in loaded(ours)] == [(m.type, m.content) for m in loaded(theirs)]
    else:
        assert loaded(ours) == loaded(theirs)


@pytest.mark.parametrize("inputs", [{}, {"a": "x", "b": "y"}, {"input": 3}])
def test_loading_never_complains_of_the_inputs(bare, inputs):
    ours = bare()
    assert ours.load_memory_variables(inputs) == {"history": ""}
    talk(ours)
    assert ours.load_memory_variables(inputs)["history"].endswith("AI: Take an umbrella.")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"a": "x", "b": "y"}, {"output": "z"}),
        ({}, {"output": "z"}),
        ({"input": "x"}, {"one": "y", "two": "z"}),
        ({"input": "x"}, {}),
        ({"input": {"not": "text"}}, {"output": "z"}),
    ],
)
async def test_saving_fails_as_conversation_buffer_memory_fails(bare, inputs, outputs):
    theirs, ours = ConversationBufferMemory(), bare()
    with pytest.raises(ValueError, match=r"key|valid") as wanted:
        theirs.save_context(inputs, outputs)
    with pytest.raises(type(wanted.value)) as found:
        ours.save_context(inputs, outputs)
    with pytest.raises(type(wanted.value)) as found_async:
        await ours.asave_context(inputs, outputs)
    for error in (found, found_async):
        # The keys named come from a set.
        assert sorted(str(error.value).split("'")) == sorted(str(wanted.value).split("'"))
    assert ours.buffer == ""


def test_of_several_outputs_the_one_called_output_is_saved_with_a_warning(bare):
    ours = bare()
    with pytest.warns(UserWarning, match="multiple output keys"):
        ours.save_context({"input": "Hello."}, {"output": "Good day.", "steps": "none"})
    assert ours.buffer == "Human: Hello.\nAI: Good day."


def test_it_makes_no_deprecation_warning_of_its_own(bare):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        talk(bare())


# -- what it puts into a prompt ----------------------------------------------------------------------------------------


def test_a_handle_stands_before_the_recent_turns(bare, memory):
    ours = bare(recent_turns=2, k=2)
    talk(ours)
    text = loaded(ours)
    handle, rest = text.split("\n", 1)
    assert find_handles(text) == [handle]
    assert rest == "Human: It rains today.\nAI: Take an umbrella."
    assert recalled(memory, text)[0] == "User: My dog is called Rex."


def test_as_messages_a_system_message_carries_the_handle(bare, memory):
    ours = bare(recent_turns=2, k=2, return_messages=True)
    talk(ours)
    system, *recent = loaded(ours)
    assert type(system) is SystemMessage
    assert recalled(memory, system.content)[0] == "User: My dog is called Rex."
    assert [(type(m), m.content) for m in recent] == [
        (HumanMessage, "It rains today."),
        (AIMessage, "Take an umbrella."),
    ]


@pytest.mark.parametrize("return_messages", [False, True])
async def test_the_async_twins_give_the_same_prompt(bare, return_messages):
    ours = bare(recent_turns=2, k=2, return_messages=return_messages)
    for said, answered in TALK:
        await ours.asave_context({"input": said}, {"output": answered})
    inputs = {"input": "What is my dog called?"}
    assert await ours.aload_memory_variables(inputs) == ours.load_memory_variables(inputs)
    assert find_handles(str(await ours.aload_memory_variables(inputs)))
    await ours.aclear()
    assert ours.buffer == await ours.abuffer() == ([] if return_messages else "")


def test_the_recent_turns_take_no_slot_of_the_k_facts(bare, memory):
    ours = bare(recent_turns=4, k=4)
    talk(ours)
    found = recalled(memory, loaded(ours, "I like tea and it rains."))
    exchanges = [f"User: {said}" for said, _ in TALK[:2]] + [f"Assistant: {answered}" for _, answered in TALK[:2]]
    assert sorted(found) == sorted(exchanges)


def test_what_was_said_before_and_again_just_now_takes_no_slot_either(bare, memory):
    ours = bare(recent_turns=2, k=8)
    talk(ours, [*TALK, ("My dog is called Rex.", "You said so.")])
    assert "User: My dog is called Rex." not in recalled(memory, loaded(ours))


def test_without_recent_turns_the_variable_is_the_handle_alone(bare, memory):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    text = loaded(ours)
    assert [text] == find_handles(text)
    assert recalled(memory, text) == ["User: My dog is called Rex."]


def test_facts_that_were_not_said_in_the_conversation_are_recalled_too(bare, memory):
    memory.add("The dog of Alice barks.", user_id="alice")
    assert recalled(memory, loaded(bare(k=1))) == ["The dog of Alice barks."]


def test_the_question_is_what_stands_under_the_input_key(bare, memory):
    talk(bare())
    ours = bare(recent_turns=0, k=1, input_key="question")
    found = ours.load_memory_variables({"question": "my dog", "other": "tea"})["history"]
    assert recalled(memory, found) == ["User: My dog is called Rex."]
    found = ours.load_memory_variables({"question": [HumanMessage("tea"), HumanMessage("my dog")]})["history"]
    assert recalled(memory, found) == ["User: My dog is called Rex."]


@pytest.mark.parametrize("inputs", [{}, {"input": " "}, {"input": None}, {"other": "dog", "input": "dog"}])
def test_without_one_the_question_is_the_last_thing_the_user_said(bare, memory, inputs):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    assert recalled(memory, ours.load_memory_variables(inputs)["history"]) == ["User: It rains today."]


def test_a_threshold_leaves_out_what_does_not_fit(bare):
    ours = bare(recent_turns=0, threshold=0.99)
    talk(ours)
    assert loaded(ours) == ""


def test_the_handle_changes_with_what_it_names_and_with_nothing_else(bare):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    assert loaded(ours) == loaded(ours)
    assert loaded(ours) != loaded(ours, "Do I like tea?")


def test_refresh_is_handed_on(bare, memory):
    ours = bare(recent_turns=0, k=3, refresh=2)
    talk(ours)
    assert [fact.refreshed for fact in memory.explain(loaded(ours)).facts] == [False, True, True]


def test_the_buffer_is_the_whole_conversation_for_people(bare):
    ours = bare(recent_turns=2)
    talk(ours)
    assert ours.buffer == ours.buffer_as_str
    assert ours.buffer.startswith("Human: My dog is called Rex.\nAI: What a fine name.\nHuman: I live in Graz.")
    assert len(ours.buffer_as_messages) == 2 * len(TALK)
    assert not find_handles(ours.buffer)


# -- token limit -------------------------------------------------------------------------------------------------------


class WordCounter(FakeListChatModel):
    """Counts words."""

    def get_num_tokens_from_messages(self, messages, tools=None):
        return sum(len(message.content.split()) for message in messages)


@pytest.mark.parametrize("limit", [0, 3, 4, 7, 100])
def test_a_token_limit_keeps_the_turns_that_conversation_token_buffer_memory_keeps(bare, limit):
    counter = WordCounter(responses=["x"])
    ours = bare(recent_turns=100, max_token_limit=limit, llm=counter, k=100)
    theirs = ConversationTokenBufferMemory(llm=counter, max_token_limit=limit)
    for memory in (ours, theirs):
        talk(memory)
    kept = [line for line in loaded(ours).splitlines() if not find_handles(line)]
    assert kept == loaded(theirs).splitlines()


def test_turns_that_the_limit_cuts_off_are_recalled_instead(bare, memory):
    counter = WordCounter(responses=["x"])
    ours = bare(recent_turns=100, max_token_limit=6, llm=counter, k=1)
    talk(ours)
    assert recalled(memory, loaded(ours)) == ["User: My dog is called Rex."]


def test_a_limit_without_a_model_that_counts_is_refused(bare):
    with pytest.raises(ConfigError, match="give llm= as well"):
        bare(max_token_limit=100)


# -- where the conversation is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [InMemoryChatMessageHistory, ForgetfulHistory])
async def test_a_history_of_another_kind_is_read_and_every_turn_is_saved_once_in_both(bare, memory, history):
    ours = bare(chat_memory=history(), recent_turns=2, k=2)
    for place, (said, answered) in enumerate(TALK):
        if place % 2:
            await ours.asave_context({"input": said}, {"output": answered})
        else:
            ours.save_context({"input": said}, {"output": answered})
    words = [text for exchange in TALK for text in exchange]
    assert [message.content for message in ours.chat_memory.messages] == words
    assert [turn.text for turn in memory.turns(user_id="alice")] == words
    text = loaded(ours)
    assert text.endswith("\nHuman: It rains today.\nAI: Take an umbrella.")
    found = recalled(memory, text)
    assert found[0] == "User: My dog is called Rex."
    assert "User: It rains today." not in found
    ours.clear()
    assert ours.chat_memory.messages == []
    assert memory.turns(user_id="alice") == []


async def test_an_own_history_is_written_once(bare, memory):
    ours = bare(chat_memory=InferScaleChatMessageHistory(memory, user_id="alice"))
    ours.save_context({"input": "one"}, {"output": "two"})
    await ours.asave_context({"input": "three"}, {"output": "four"})
    assert [turn.text for turn in memory.turns(user_id="alice")] == ["one", "two", "three", "four"]


def test_the_history_says_whose_it_is_where_the_memory_does_not(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice", session_id="s1")
    ours = InferScaleBufferMemory(memory=memory, chat_memory=history)
    talk(ours, TALK[:1])
    assert len(memory.turns(user_id="alice", session_id="s1")) == 2


def test_a_handle_in_what_was_said_is_kept_nowhere(bare):
    talker = bare(recent_turns=0, k=1)
    talk(talker)
    handle = loaded(talker)
    ours = bare(user_id="bob", chat_memory=InMemoryChatMessageHistory())
    ours.save_context({"input": f"Tell me {handle}all."}, {"output": f"{handle}Never."})
    assert ours.buffer == "Human: Tell me all.\nAI: Never."
    assert loaded(ours) == ours.buffer


def test_an_answer_without_words_loses_nothing_else(bare):
    ours = bare()
    ours.save_context({"input": "Hello?"}, {"output": ""})
    assert ours.buffer == "Human: Hello?"


# -- whose, and outages ------------------------------------------------------------------------------------------------


def test_nobody_and_blank_ids_are_refused(memory):
    with pytest.raises(ScopeError, match="user_id is blank"):
        InferScaleBufferMemory(memory=memory, user_id="")
    nobodys = InferScaleBufferMemory(memory=memory)
    for use in (lambda: loaded(nobodys), lambda: talk(nobodys), nobodys.clear, lambda: nobodys.buffer):
        with pytest.raises(ScopeError, match=r"InferScaleBufferMemory|InferScaleChatMessageHistory"):
            use()


@pytest.mark.parametrize(
    "fields", [{"k": 0}, {"recent_turns": -1}, {"threshold": 2.0}, {"refresh": -1}, {"userid": "a"}]
)
def test_fields_out_of_range_or_misspelt_are_refused(bare, fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        bare(**fields)


def test_two_users_of_one_memory_object_never_mix(memory):
    ours = InferScaleBufferMemory(memory=memory, recent_turns=0)
    save = RunnableLambda(lambda text: ours.save_context({"input": text}, {"output": "Noted."}))
    load = RunnableLambda(lambda text: loaded(ours, text))
    alice, bob = ({"configurable": {"user_id": name}} for name in ("alice", "bob"))
    save.invoke("I am Alice.", alice)
    save.invoke("I am Bob.", bob)
    assert set(recalled(memory, load.invoke("Who am I?", alice))) == {"User: I am Alice.", "Assistant: Noted."}
    assert set(recalled(memory, load.invoke("Who am I?", bob))) == {"User: I am Bob.", "Assistant: Noted."}


async def test_a_failing_search_is_told_of_and_the_recent_turns_go_on(open_memory, caplog, tmp_path):
    def broken(texts):
        raise ConnectionError("the embedder is down")

    ours = InferScaleBufferMemory(memory=open_memory(None), user_id="alice", recent_turns=2)
    ours.memory._embedder = broken
    talk(ours)
    with caplog.at_level(logging.WARNING):
        assert loaded(ours) == "Human: It rains today.\nAI: Take an umbrella."
        assert await ours.aload_memory_variables({"input": "dog"}) == {"history": loaded(ours)}
    assert "nothing was recalled" in caplog.text
    assert "the embedder is down" in caplog.text


async def test_a_store_that_is_down_raises_as_any_database_would(bare, memory):
    ours = bare()
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        talk(ours)
    with pytest.raises(StoreError, match="closed"):
        await ours.asave_context({"input": "one"}, {"output": "two"})
    with pytest.raises(StoreError, match="closed"):
        loaded(ours)


def test_without_langchain_classic_the_error_names_the_extra_and_the_history_works_still(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "langchain_classic"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_classic", None)
    for name in ("buffer_memory", "history", "_conversation"):
        monkeypatch.delitem(sys.modules, f"langchain_inferscale.{name}", raising=False)
    assert importlib.import_module("langchain_inferscale.history").InferScaleChatMessageHistory
    with pytest.raises(MissingExtraError, match=r"inferscale-memory\[classic\]"):
        importlib.import_module("langchain_inferscale.buffer_memory")
