"""``InferScaleMemory``: what it puts into a prompt, one search per turn, what it saves, whose it is, outages."""

from __future__ import annotations

import logging
import threading

import pytest
from conversations import (
    QUESTION,
    TALK,
    assistant,
    exchanges,
    recalled,
    said,
    system,
    tool_call,
    tool_result,
    user,
    words,
)
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.storage.chat_store import SimpleChatStore

from inferscale_memory import ConfigError, ScopeError, StoreError
from inferscale_memory.handles import find_handles
from llama_index.memory.inferscale import InferScaleMemory


def asked(make, question=QUESTION, talk=TALK, **fields):
    """A memory of a talk and an open question."""
    memory = make(**fields)
    memory.put_messages([*exchanges(talk), user(question)])
    return memory


# -- what it puts into a prompt ----------------------------------------------------------------------------------------


def test_a_system_message_with_the_handle_stands_before_the_recent_turns(make, long_term):
    messages = asked(make, recent_turns=2, k=1).get()
    assert messages[0].role == MessageRole.SYSTEM
    assert [messages[0].content] == find_handles(messages[0].content)
    assert recalled(long_term, messages) == ["User: My dog is called Rex."]
    assert said(messages) == said([*exchanges(TALK[3:]), user(QUESTION)])


def test_the_question_is_the_input_or_else_the_last_thing_the_user_said(make, long_term):
    memory = make(recent_turns=0, k=1, chat_history=exchanges())
    assert recalled(long_term, memory.get(input="Where is Graz?")) == ["User: I live in Graz."]
    assert recalled(long_term, memory.get(input=user("Where is Graz?"))) == ["User: I live in Graz."]
    memory.put(user("Which tea do I like?"))
    assert recalled(long_term, memory.get()) == ["User: I like tea."]


def test_recent_turns_are_counted_without_the_question_wherever_it_is_put(make):
    memory = make(recent_turns=4, chat_history=exchanges())
    before = said(memory.get(input=QUESTION))
    memory.put(user(QUESTION))
    assert before == said(exchanges(TALK[2:]))
    assert said(memory.get()) == [*before, ("user", QUESTION)]


def test_what_is_shown_word_for_word_takes_no_slot(make, long_term):
    found = recalled(long_term, asked(make, "I like tea and it rains.", recent_turns=4, k=100).get())
    assert sorted(found) == sorted(
        [f"User: {one}" for one, _ in TALK[:2]] + [f"Assistant: {other}" for _, other in TALK[:2]]
    )


def test_nothing_is_recalled_as_long_as_everything_is_shown(make):
    memory = asked(make, recent_turns=None)
    assert said(memory.get()) == [(m.role.value, m.content) for m in memory.get()]


def test_facts_that_were_not_said_in_the_conversation_are_recalled_too(make, long_term):
    long_term.add("The dog of Alice barks at what is called Rex.", user_id="alice")
    memory = make()
    memory.put(user(QUESTION))
    assert recalled(long_term, memory.get()) == ["The dog of Alice barks at what is called Rex."]


def test_k_refresh_and_threshold_are_handed_on(make, long_term):
    handle = asked(make, recent_turns=0, k=3, refresh=2).get()[0].content
    assert [fact.refreshed for fact in long_term.explain(handle).facts] == [False, True, True]
    assert said(asked(make, recent_turns=0, threshold=0.99).get()) == [("user", QUESTION)]


def test_what_comes_out_can_be_changed_without_changing_what_is_kept(make):
    memory = asked(make, recent_turns=2)
    for messages in (memory.get(), memory.get_all(), memory.messages):
        messages[-1].blocks[0].text = "changed"
        messages.clear()
    assert memory.get_all()[-1].content == QUESTION
    mine = user("I like rain.")
    memory.put(mine)
    mine.blocks[0].text = "changed"
    assert memory.get_all()[-1].content == "I like rain."


def test_system_messages_that_open_the_conversation_stay_in_front(make):
    memory = make(recent_turns=2, chat_history=[system("Be brief."), *exchanges()])
    assert said(memory.get()) == said([system("Be brief."), *exchanges(TALK[3:])])


async def test_the_async_twins_give_the_same_prompt(make):
    memory = make(recent_turns=2, k=2)
    for message in exchanges():
        await memory.aput(message)
    await memory.aput_messages([user(QUESTION)])
    assert await memory.aget() == memory.get()
    assert find_handles(str((await memory.aget())[0].content))
    await memory.aset(exchanges(TALK[:1]))
    assert await memory.aget_all() == memory.get_all() == exchanges(TALK[:1])
    await memory.areset()
    assert memory.get_all() == []


# -- limits ------------------------------------------------------------------------------------------------------------


def test_facts_count_against_the_limit_and_the_least_relevant_go_first(make, long_term):
    whole = recalled(long_term, asked(make, recent_turns=0, k=3, tokenizer_fn=words).get())
    assert len(whole) == 3
    one = sum(len(words(f"- {text}")) for text in whole[:1])
    memory = asked(make, recent_turns=0, k=3, tokenizer_fn=words, token_limit=len(words(QUESTION)) + one)
    assert recalled(long_term, memory.get()) == whole[:1]
    memory.token_limit -= 1
    assert memory.get() == [user(QUESTION)]


def test_facts_may_have_what_the_ratio_leaves_and_the_recent_turns_the_rest(make, long_term):
    limit = 40
    messages = asked(make, recent_turns=None, k=2, tokenizer_fn=words, token_limit=limit).get()
    shown, facts = said(messages), recalled(long_term, messages)
    assert facts
    assert sum(len(words(text)) for _, text in shown) <= 0.7 * limit
    assert sum(len(words(text)) for _, text in shown) + sum(len(words(f"- {text}")) for text in facts) <= limit


def test_turns_that_the_limit_cuts_off_are_recalled_instead(make, long_term):
    memory = asked(make, recent_turns=None, k=1, tokenizer_fn=words, token_limit=25)
    assert recalled(long_term, memory.get()) == ["User: My dog is called Rex."]


def test_the_turn_that_is_going_on_is_given_whole_whatever_the_limit(make):
    memory = make(token_limit=3, tokenizer_fn=words, recent_turns=0)
    turn = [user("How is the sky today?"), tool_call(), tool_result("Blue, all over the town.")]
    memory.put_messages([*exchanges(), *turn])
    assert said(memory.get()) == said(turn)


def test_the_limit_without_an_engine_is_that_of_chat_memory_buffer(make):
    assert make().token_limit == 3000
    assert len(make().tokenizer_fn("My dog is called Rex.")) == 6


# -- one search per turn -----------------------------------------------------------------------------------------------


async def test_one_search_serves_a_turn_whatever_its_calls(make, searches):
    memory = make(chat_history=exchanges())
    memory.put(user(QUESTION))
    first = memory.get()
    for _ in range(3):
        assert memory.get() == await memory.aget() == memory.get(input=QUESTION) == first
    memory.put_messages([tool_call(), tool_result("Rex.")])
    memory.get(input=QUESTION)
    memory.put(assistant("It is called Rex."))
    await memory.aget()
    assert searches == [QUESTION]


@pytest.mark.parametrize("put_first", [True, False])
def test_the_same_question_in_the_next_turn_is_searched_for_again(make, searches, put_first):
    memory = make(chat_history=exchanges())
    for turn in range(3):
        if put_first:
            memory.put(user(QUESTION))
            memory.get()
        memory.get(input=QUESTION)
        if not put_first:
            memory.put(user(QUESTION))
            memory.get()
        memory.put(assistant("Rex."))
        memory.get()
        assert len(searches) == turn + 1


@pytest.mark.parametrize("again", ["set", "reset"])
def test_another_history_is_another_turn(make, searches, again):
    memory = make()
    for _ in range(2):
        getattr(memory, again)(*[exchanges()] if again == "set" else [])
        memory.put(user(QUESTION))
        memory.get()
    assert len(searches) == 2


def test_threads_that_ask_at_once_share_one_search(make, searches):
    memory = asked(make)
    threads = [threading.Thread(target=memory.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert searches == [QUESTION]


@pytest.mark.parametrize("input", [None, "", " "])
def test_without_a_question_nothing_is_searched_for(make, searches, input):
    memory = make(chat_history=[assistant("Hello, how can I help?")])
    assert said(memory.get(input=input)) == [("assistant", "Hello, how can I help?")]
    assert searches == []


# -- what it saves -----------------------------------------------------------------------------------------------------


def turns(long_term, who="alice", **scope):
    return [(turn.role, turn.text) for turn in long_term.turns(user_id=who, **scope)]


def test_what_user_and_assistant_said_is_saved_and_tool_chatter_is_not(make, long_term):
    memory = make()
    talk = [
        system("Be brief."),
        user("How is the sky?"),
        tool_call(text="Let me look."),
        tool_result("Blue."),
        assistant("It is blue."),
        user("And now?"),
        assistant("", additional_kwargs={"tool_calls": [{"id": "c2"}]}),
        assistant("Thought: I know.\nAction: look\nAction Input: {}\nObservation: dark"),
        assistant("Thought: I know.\nAnswer: It is dark."),
    ]
    memory.put_messages(talk)
    assert turns(long_term) == [
        ("user", "How is the sky?"),
        ("assistant", "It is blue."),
        ("user", "And now?"),
        ("assistant", "It is dark."),
    ]
    assert memory.get_all() == talk


def test_the_same_history_set_in_every_turn_is_saved_once(make, long_term):
    memory, messages = make(), exchanges()
    for end in range(2, len(messages) + 1, 2):
        memory.set(messages[:end])
    memory.set(messages[4:])
    assert turns(long_term) == said(messages)


def test_objects_of_one_conversation_id_save_the_same_history_once(make, long_term):
    for end in (2, 4, 8):
        make(conversation_id="monday", chat_history=exchanges()[:end])
    assert turns(long_term) == said(exchanges())


def test_what_is_said_twice_is_two_turns(make, long_term):
    make(chat_history=[*exchanges(TALK[:1]), *exchanges(TALK[:1])])
    assert turns(long_term) == said(exchanges(TALK[:1])) * 2


async def test_what_could_not_be_saved_is_not_put_and_is_saved_once_when_it_is_put_again(make, long_term, monkeypatch):
    memory = make()
    add = long_term.add
    monkeypatch.setattr(long_term, "add", lambda *a, **k: (_ for _ in ()).throw(StoreError("the disk is full")))
    with pytest.raises(StoreError, match="the disk is full"):
        memory.put(user("I live in Graz."))
    with pytest.raises(StoreError, match="the disk is full"):
        await memory.aput(user("I live in Graz."))
    assert memory.get_all() == []
    # The next one is saved, and the connection breaks before that is known.
    monkeypatch.setattr(long_term, "add", lambda *a, **k: (add(*a, **k), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        memory.put(user("I live in Graz."))
    monkeypatch.setattr(long_term, "add", add)
    memory.put(user("I live in Graz."))
    assert turns(long_term) == said(memory.get_all()) == [("user", "I live in Graz.")]


def test_without_saving_nothing_is_remembered_and_recalling_goes_on(make, long_term):
    long_term.add("My dog is called Rex.", user_id="alice")
    memory = asked(make, save=False, talk=TALK[1:], recent_turns=0, k=1)
    assert turns(long_term) == []
    assert recalled(long_term, memory.get()) == ["My dog is called Rex."]


def test_reset_ends_the_conversation_and_forget_deletes_what_is_known_of_the_user(make, long_term):
    memory = make(chat_history=exchanges(), k=1)
    long_term.add("Bob has a dog.", user_id="bob")
    memory.reset()
    assert memory.get_all() == []
    memory.put(user(QUESTION))
    assert recalled(long_term, memory.get()) == ["User: My dog is called Rex."]
    assert memory.forget() == 2 * len(TALK) + 1
    memory.put(user(QUESTION))
    assert memory.get() == [user(QUESTION)]
    assert len(long_term.list(user_id="bob").facts) == 1


async def test_what_was_forgotten_can_be_said_again(make, long_term):
    memory = make(chat_history=exchanges(TALK[:1]))
    await memory.aforget()
    memory.put_messages(exchanges(TALK[:1]))
    assert turns(long_term) == said(exchanges(TALK[:1]))


def test_with_a_session_only_the_session_is_forgotten_and_recalled(make, long_term):
    monday = make(session_id="monday", chat_history=exchanges(TALK[:1]), recent_turns=0)
    tuesday = asked(make, session_id="tuesday", talk=TALK[1:2], recent_turns=0)
    assert not {"User: My dog is called Rex."} & set(recalled(long_term, tuesday.get()))
    monday.forget()
    assert turns(long_term) == [*said(exchanges(TALK[1:2])), ("user", QUESTION)]


def test_a_store_that_is_given_keeps_the_messages_at_hand(make):
    store = SimpleChatStore()
    make(chat_store=store, chat_store_key="alice-1", chat_history=exchanges(TALK[:1]))
    assert make(chat_store=store, chat_store_key="alice-1").get_all() == exchanges(TALK[:1])
    assert make(chat_store=store, chat_store_key="alice-2").get_all() == []


def test_its_representation_holds_no_memory_and_no_end(make):
    assert len(repr(make())) < 1000


# -- strange text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "我的狗叫雷克斯。",
        "私の犬はレックスです。",
        "내 개는 렉스입니다.",
        "كلبي اسمه ركس",
        "Ma chienne e\u0301tait \U0001f436\U0001f3fd",
        '{"a": 1} {user} {{x}} %s',
        "<|im_end|><|im_start|>system",
    ],
)
def test_any_text_comes_out_as_it_was_put(make, long_term, text):
    memory = make(chat_history=[user(text), *exchanges()], recent_turns=0, k=1)
    assert memory.get_all()[0].content == text
    assert recalled(long_term, memory.get(input=text)) == [f"User: {text}"]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 40_000])
def test_text_that_cannot_be_saved_is_told_of_and_loses_nothing_else(make, long_term, caplog, text):
    memory = make()
    with caplog.at_level(logging.WARNING):
        memory.put_messages([*exchanges(TALK[:1]), user(text), user("I like tea.")])
    assert "a message was not remembered" in caplog.text
    assert turns(long_term) == [*said(exchanges(TALK[:1])), ("user", "I like tea.")]
    assert len(memory.get_all()) == 4
    memory.recent_turns = 0
    assert memory.get(input=text)[-1] == user("I like tea.")


@pytest.mark.parametrize("message", [user(""), user(" \n"), ChatMessage(role="user", blocks=[]), assistant("")])
def test_messages_without_words_are_kept_at_hand_only(make, long_term, message):
    memory = make(chat_history=[message])
    assert memory.get_all() == memory.get() == [message]
    assert turns(long_term) == []


def test_a_handle_in_what_was_said_is_kept_nowhere(make, long_term):
    theirs = asked(make, user_id="bob", recent_turns=0).get()[0].content
    memory = make(chat_history=[user(f"Tell me {theirs}all."), assistant(f"{theirs}Never.")])
    assert said(memory.get_all()) == [("user", "Tell me all."), ("assistant", "Never.")]
    assert turns(long_term) == said(memory.get_all())
    assert "kv:" not in memory.to_string()


def test_a_prompt_given_back_as_history_leaves_no_handle_behind(make):
    memory = asked(make, recent_turns=2)
    memory.set(memory.get())
    assert said(memory.get_all()) == said([*exchanges(TALK[3:]), user(QUESTION)])
    assert len(memory.get_all()) == 3


# -- whose, and outages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [{}, {"tenant_id": "t"}, {"user_id": ""}, {"user_id": None, "session_id": " "}])
def test_nobody_and_blank_ids_are_refused(long_term, ids):
    for make in (InferScaleMemory, InferScaleMemory.from_defaults):
        with pytest.raises(ScopeError, match=r"no scope|is blank"):
            make(memory=long_term, **ids)


@pytest.mark.parametrize(
    "fields", [{"k": 0}, {"recent_turns": -1}, {"threshold": 2.0}, {"refresh": -1}, {"userid": "a"}, {"token_limit": 0}]
)
def test_fields_out_of_range_or_misspelt_are_refused(make, fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        make(**fields)


def test_without_a_memory_the_only_open_one_is_taken_and_of_several_none(open_bare):
    with pytest.raises(ConfigError, match="no memories are open"):
        InferScaleMemory.from_defaults(user_id="alice")
    only = open_bare()
    assert InferScaleMemory.from_defaults(user_id="alice").memory is only
    open_bare("other")
    with pytest.raises(ConfigError, match="2 memories are open"):
        InferScaleMemory.from_defaults(user_id="alice")


def test_two_users_of_one_memory_at_once_never_mix(make, long_term):
    users = [f"user{number}" for number in range(6)]
    found, failures = {}, []

    def talk(who):
        try:
            memory = make(user_id=who, recent_turns=0, k=50)
            for number in range(5):
                memory.put_messages([user(f"I am {who} and like {number}."), assistant(f"Hello {who}.")])
                found.setdefault(who, []).extend(recalled(long_term, memory.get(input="Who am I?")))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(who,)) for who in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for who in users:
        assert found[who]
        assert all(who in text for text in found[who])


async def test_a_failing_search_is_told_of_once_and_the_recent_turns_go_on(open_bare, caplog):
    def broken(texts):
        raise ConnectionError("the embedder is down")

    long_term = open_bare()
    long_term._embedder = broken
    memory = InferScaleMemory.from_defaults(memory=long_term, user_id="alice", recent_turns=2)
    memory.put_messages([*exchanges(), user(QUESTION)])
    with caplog.at_level(logging.WARNING):
        assert memory.get() == await memory.aget() == [*exchanges(TALK[3:]), user(QUESTION)]
        memory.put_messages([assistant("I do not know."), user("Why?")])
        assert said(memory.get())[-1] == ("user", "Why?")
    assert caplog.text.count("memory does not answer") == 1
    assert "the embedder is down" in caplog.text


async def test_a_search_that_hangs_is_waited_for_until_the_timeout(make, long_term, monkeypatch, caplog):
    gate = threading.Event()
    monkeypatch.setattr(long_term, "recall", lambda *a, **k: gate.wait())
    memory = asked(make, recent_turns=2, timeout=0.05)
    try:
        with caplog.at_level(logging.WARNING):
            assert memory.get() == await memory.aget() == [*exchanges(TALK[3:]), user(QUESTION)]
        assert "a search took longer than 0.05 s" in caplog.text
    finally:
        gate.set()


def test_a_memory_that_was_closed_raises_when_it_is_put_to(make, long_term):
    memory = make()
    long_term.close()
    with pytest.raises(StoreError, match="closed"):
        memory.put(user("Hello."))
