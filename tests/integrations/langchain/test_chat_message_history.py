"""``InferScaleChatMessageHistory``: a transcript in the fact store."""

from __future__ import annotations

import logging

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from inferscale_memory import InvalidInputError, ScopeError, StoreError
from langchain_inferscale import InferScaleChatMessageHistory

HANDLE = "⟦kv:" + "abcDEF" * 9 + "⟧"


@pytest.fixture
def memory(open_memory):
    """Without an engine: nothing here is about a model."""
    return open_memory(None)


def said(messages):
    return [(type(message), message.content) for message in messages]


def test_messages_come_back_as_stock_classes_with_their_ids_and_names(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    messages = [
        SystemMessage("Be brief.", id="1"),
        HumanMessage("I live in Graz.", id="2", name="Alice"),
        AIMessage("Noted.", id="3"),
        ChatMessage(role="critic", content="Too brief.", id="4"),
    ]
    history.add_messages(messages)
    assert history.messages == messages
    assert [type(message) for message in history.messages] == [type(message) for message in messages]


def test_a_conversation_outlives_its_process_and_is_remembered_as_facts(open_memory, tmp_path):
    url = f"sqlite:///{tmp_path}/kept.db"
    with open_memory(None, database_url=url) as memory:
        InferScaleChatMessageHistory(memory, user_id="alice").add_user_message("My dog is called Rex.")
    again = open_memory(None, database_url=url)
    [message] = InferScaleChatMessageHistory(again, user_id="alice").messages
    assert message.content == "My dog is called Rex."
    assert message.id
    assert again.search("dog", 1, user_id="alice")[0].fact.text == "User: My dog is called Rex."


async def test_the_async_twins_do_the_same(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    await history.aadd_messages([HumanMessage("one"), AIMessage("two")])
    assert await history.aget_messages() == history.messages
    assert said(history.messages) == [(HumanMessage, "one"), (AIMessage, "two")]
    await history.aclear()
    assert history.messages == []


def test_sessions_are_apart_and_clearing_one_leaves_the_other_and_what_is_known_of_the_user(memory):
    memory.add("Alice lives in Graz.", user_id="alice")
    first = InferScaleChatMessageHistory(memory, user_id="alice", session_id="first")
    second = InferScaleChatMessageHistory(memory, user_id="alice", session_id="second")
    first.add_user_message("said in the first")
    second.add_user_message("said in the second")
    first.clear()
    assert first.messages == []
    assert said(second.messages) == [(HumanMessage, "said in the second")]
    texts = {fact.text for fact in memory.list(user_id="alice").facts}
    assert texts == {"Alice lives in Graz.", "User: said in the second"}


def test_a_repeated_statement_is_two_messages_and_one_fact(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    history.add_messages([HumanMessage("Yes."), AIMessage("Sure?"), HumanMessage("Yes.")])
    assert [message.content for message in history.messages] == ["Yes.", "Sure?", "Yes."]
    assert len(memory.list(user_id="alice").facts) == 2


def test_a_message_saved_again_under_its_id_is_kept_once(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    for _ in range(2):
        history.add_messages([HumanMessage("Hello.", id="m1")])
    assert said(history.messages) == [(HumanMessage, "Hello.")]


def test_what_holds_no_words_is_passed_over_and_the_rest_is_kept(memory, caplog):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    call = {"name": "lookup", "args": {}, "id": "c1"}
    picture = {"type": "image", "url": "https://example.org/a.png"}
    with caplog.at_level(logging.WARNING):
        history.add_messages(
            [
                HumanMessage([{"type": "text", "text": "What is "}, picture, {"type": "text", "text": "this?"}]),
                AIMessage("", tool_calls=[call]),
                ToolMessage("a dog", tool_call_id="c1"),
                AIMessage("Let me look.", tool_calls=[call]),
                HumanMessage([picture]),
                HumanMessage(" \n"),
                AIMessageChunk("A dog."),
            ]
        )
    kept = [(HumanMessage, "What is this?"), (AIMessage, "Let me look."), (AIMessage, "A dog.")]
    assert said(history.messages) == kept
    assert not history.messages[1].tool_calls
    assert not caplog.records


def test_nothing_but_tool_calls_saves_nothing(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    history.add_messages([ToolMessage("a dog", tool_call_id="c1")])
    history.add_messages([])
    assert history.messages == []


@pytest.mark.parametrize("bad", ["x" * 32_001, "a\0b", "a\ud800b"])
def test_what_cannot_be_saved_is_named_and_the_rest_is_kept(memory, caplog, bad):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    with caplog.at_level(logging.WARNING):
        history.add_messages([HumanMessage(bad), AIMessage("Pardon?")])
    assert said(history.messages) == [(AIMessage, "Pardon?")]
    assert "a message was not saved" in caplog.text


def test_an_unusable_id_is_no_reason_to_lose_a_message(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    history.add_messages([HumanMessage("one", id="x" * 300), HumanMessage("two", id=" ")])
    assert [message.content for message in history.messages] == ["one", "two"]


def test_handles_are_never_kept(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    history.add_messages([HumanMessage(f"What {HANDLE}is this?"), SystemMessage(HANDLE)])
    assert said(history.messages) == [(HumanMessage, "What is this?")]


def test_a_limit_gives_the_newest_and_one_that_is_none_is_refused(memory):
    history = InferScaleChatMessageHistory(memory, limit=2, user_id="alice")
    history.add_messages([HumanMessage("one"), AIMessage("two"), HumanMessage("three")])
    assert [message.content for message in history.messages] == ["two", "three"]
    with pytest.raises(InvalidInputError, match="wanted a number of messages"):
        InferScaleChatMessageHistory(memory, limit=0, user_id="alice")


def test_a_blank_id_is_refused_when_the_history_is_made(memory):
    with pytest.raises(ScopeError, match="user_id is blank"):
        InferScaleChatMessageHistory(memory, user_id=" ")


def test_without_ids_the_run_says_whose_it_is_and_nobody_is_refused(memory):
    history = InferScaleChatMessageHistory(memory)
    save = RunnableLambda(history.add_user_message)
    save.invoke("I am Alice.", {"configurable": {"user_id": "alice"}})
    save.invoke("I am Bob.", {"configurable": {"user_id": "bob"}})
    assert [turn.text for turn in memory.turns(user_id="alice")] == ["I am Alice."]
    with pytest.raises(ScopeError, match=r"made without user_id.*user_id='alice'"):
        _ = history.messages


def test_a_run_of_somebody_else_is_refused(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    save = RunnableLambda(history.add_user_message)
    with pytest.raises(ScopeError, match="different ids for user_id"):
        save.invoke("I am Bob.", {"configurable": {"user_id": "bob"}})


def test_a_tenant_given_alone_joins_the_runs_owner(memory):
    history = InferScaleChatMessageHistory(memory, tenant_id="acme")
    RunnableLambda(history.add_user_message).invoke("Hello.", {"configurable": {"user_id": "alice"}})
    assert len(memory.turns(user_id="alice", tenant_id="acme")) == 1
    assert memory.turns(user_id="alice") == []


def test_a_closed_memory_is_told_of_as_any_database_would(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        history.add_user_message("too late")
    with pytest.raises(StoreError, match="closed"):
        _ = history.messages


@pytest.mark.parametrize("with_key", [True, False])
async def test_runnable_with_message_history_saves_each_exchange_once(memory, with_key):
    """The stock listeners slice the input by the history's length: it may not change while the run goes on."""
    sessions = {}

    def session(session_id):
        return sessions.setdefault(
            session_id, InferScaleChatMessageHistory(memory, user_id="alice", session_id=session_id)
        )

    answer = RunnableLambda(lambda value: AIMessage(f"{len(value.to_messages() if with_key else value)} messages"))
    if with_key:
        prompt = ChatPromptTemplate([MessagesPlaceholder("history"), ("human", "{input}")])
        chain = RunnableWithMessageHistory(
            prompt | answer, session, input_messages_key="input", history_messages_key="history"
        )
        ask = lambda text: {"input": text}  # noqa: E731
    else:
        chain = RunnableWithMessageHistory(answer, session)
        ask = lambda text: [HumanMessage(text)]  # noqa: E731
    config = {"configurable": {"session_id": "s1"}}
    chain.invoke(ask("one"), config)
    await chain.ainvoke(ask("two"), config)
    chain.invoke(ask("elsewhere"), {"configurable": {"session_id": "s2"}})
    assert [message.content for message in session("s1").messages] == ["one", "1 messages", "two", "3 messages"]
    assert len(session("s2").messages) == 2


def test_a_run_may_name_the_session_of_the_user_given_here(memory):
    history = InferScaleChatMessageHistory(memory, user_id="alice")
    RunnableLambda(history.add_user_message).invoke("Hello.", {"configurable": {"session_id": "s1"}})
    assert len(memory.turns(user_id="alice", session_id="s1")) == 1
