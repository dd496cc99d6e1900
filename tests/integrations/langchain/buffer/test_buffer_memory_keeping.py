"""``InferScaleBufferMemory``: limits, where the conversation is kept, whose it is, outages."""

from __future__ import annotations

import importlib
import logging
import sys

import pytest
from langchain_classic.memory import ConversationTokenBufferMemory
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from talking import TALK, loaded, recalled, talk

from inferscale_memory import ConfigError, MissingExtraError, ScopeError, StoreError
from inferscale_memory.handles import find_handles
from langchain_inferscale import InferScaleBufferMemory, InferScaleChatMessageHistory


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
