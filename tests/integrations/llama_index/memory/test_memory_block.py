"""``InferScaleMemoryBlock`` in ``Memory``: what it gives, what it saves, priority, truncation, outages."""

from __future__ import annotations

import logging

import pytest
from conversations import QUESTION, TALK, assistant, exchanges, recalled, said, tool_call, tool_result, user, words
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.memory import Memory, StaticMemoryBlock

from inferscale_memory import ScopeError, StoreError
from inferscale_memory.handles import find_handles
from llama_index.memory.inferscale import InferScaleMemoryBlock

# LlamaIndex's own Memory opens its database once per event loop and leaves it to its fate.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def block_of(long_term, monkeypatch):
    """Makes blocks of Alice's that count words."""
    monkeypatch.setattr(InferScaleMemoryBlock, "_tokenize", lambda self, text: words(text))
    return lambda **fields: InferScaleMemoryBlock(memory=long_term, **{"user_id": "alice", **fields})


def memory_of(block, *others, limit=1000, **options):
    """LlamaIndex's own memory, whose history may fill the limit."""
    options = {"chat_history_token_ratio": 1.0, "token_flush_size": 1, "tokenizer_fn": block.tokenizer_fn, **options}
    return Memory.from_defaults(memory_blocks=[block, *others], token_limit=limit, **options)


def turns(long_term, who="alice"):
    return [(turn.role, turn.text) for turn in long_term.turns(user_id=who)]


def test_a_system_message_with_the_handle_stands_before_the_history(block_of, long_term):
    long_term.add("My dog is called Rex.", user_id="alice")
    memory = memory_of(block_of())
    memory.put(user(QUESTION))
    first, *rest = memory.get()
    assert first.role == MessageRole.SYSTEM
    assert [first.content] == find_handles(first.content)
    assert recalled(long_term, [first]) == ["My dog is called Rex."]
    assert said(rest) == [("user", QUESTION)]


def test_an_empty_memory_and_a_talk_without_a_question_give_nothing(block_of):
    memory = memory_of(block_of())
    assert memory.get() == []
    memory.put(assistant("Hello, how can I help?"))
    assert said(memory.get()) == [("assistant", "Hello, how can I help?")]
    memory.put(user(QUESTION))
    assert len(memory.get()) == 2


async def test_what_overflows_is_saved_once_and_recalled(block_of, long_term):
    block = block_of(k=1)
    memory = memory_of(block, limit=20)
    for message in exchanges():
        await memory.aput(message)
    over = turns(long_term)
    assert over
    assert over == said(exchanges())[: len(over)]
    await memory.aput(user(QUESTION))
    assert recalled(long_term, await memory.aget()) == ["User: My dog is called Rex."]
    await block.aput(exchanges(), from_short_term_memory=True, session_id=memory.session_id)
    await block.aput(exchanges(), from_short_term_memory=True, session_id=memory.session_id)
    assert sorted(turns(long_term)) == sorted([*said(exchanges())])


async def test_tool_chatter_is_not_saved(block_of, long_term):
    await block_of().aput([user("How is the sky?"), tool_call(), tool_result("Blue."), assistant("It is blue.")])
    assert turns(long_term) == [("user", "How is the sky?"), ("assistant", "It is blue.")]


async def test_a_block_that_accepts_nothing_from_the_history_saves_what_it_is_handed(block_of, long_term):
    block = block_of(accept_short_term_memory=False)
    await block.aput(exchanges(TALK[:1]), from_short_term_memory=True)
    assert turns(long_term) == []
    await block.aput(exchanges(TALK[:1]))
    assert turns(long_term) == said(exchanges(TALK[:1]))


async def test_one_search_serves_a_turn_and_the_next_turn_searches_again(block_of, searches):
    memory = memory_of(block_of())
    for turn in range(3):
        await memory.aget(input=QUESTION)
        await memory.aput(user(QUESTION))
        await memory.aget()
        await memory.aput_messages([tool_call(), tool_result("Rex.")])
        await memory.aget(input=QUESTION)
        await memory.aput(assistant("It is called Rex."))
        await memory.aget()
        assert len(searches) == turn + 1


async def test_conversations_of_one_block_are_told_apart(block_of, searches):
    block = block_of()
    for memory in (memory_of(block), memory_of(block)):
        await memory.aput(user(QUESTION))
        await memory.aget()
    assert len(searches) == 2


async def test_a_turn_goes_on_when_older_messages_overflow_in_the_middle_of_it(block_of, searches):
    memory = memory_of(block_of(), limit=30)
    for message in [*exchanges(), user(QUESTION)]:
        await memory.aput(message)
    await memory.aget()
    await memory.aput(assistant("It is called Rex, and it is a very fine name for a dog, as you know well, Alice."))
    assert len(await memory.aget_all()) > len(said(await memory.aget()))
    assert searches == [QUESTION]


# -- limits ------------------------------------------------------------------------------------------------------------


def facts(long_term):
    long_term.add([f"My dog is called Rex and likes toy number {number}." for number in range(4)], user_id="alice")


async def test_above_the_limit_the_least_relevant_facts_go_first_and_all_if_need_be(block_of, long_term):
    facts(long_term)
    block = block_of(priority=1)
    memory = memory_of(block)
    await memory.aput(user(QUESTION))
    whole = recalled(long_term, await memory.aget())
    assert len(whole) == 4
    one = len(words(f"- {whole[0]}"))
    for kept in (3, 2, 1, 0):
        memory.token_limit = len(words(QUESTION)) + kept * one
        assert recalled(long_term, await memory.aget()) == whole[:kept]


async def test_with_priority_0_nothing_is_given_up(block_of, long_term):
    facts(long_term)
    memory = memory_of(block_of(priority=0), limit=6)
    await memory.aput(user(QUESTION))
    assert len(recalled(long_term, await memory.aget())) == 4


async def test_blocks_are_truncated_in_the_order_of_their_priority(block_of, long_term):
    facts(long_term)
    static = StaticMemoryBlock(name="static", static_content="one two three", priority=1)
    block = block_of(priority=2)
    memory = memory_of(block, static, limit=6 + 4 * 11)
    await memory.aput(user(QUESTION))
    assert len(recalled(long_term, await memory.aget())) == 4
    assert "one two three" not in str(await memory.aget())


async def test_truncating_what_is_not_its_own_gives_nothing(block_of):
    assert await block_of().atruncate([], 5) is None
    assert await block_of().atruncate([user("Hello.")], 5) is None


async def test_its_tokenizer_counts_a_handle_as_the_facts_behind_it(block_of, long_term):
    facts(long_term)
    handle = long_term.recall(QUESTION, 2, user_id="alice")
    expected = sum(len(words(f"- {one.fact.text}")) for one in handle.facts)
    count = block_of().tokenizer_fn
    assert len(count(f"two words {handle}")) == 2 + expected
    assert len(count("two words ⟦kv:" + "A" * 76 + "⟧")) == 2


# -- whose, and outages ------------------------------------------------------------------------------------------------


def test_nobody_is_refused(long_term):
    with pytest.raises(ScopeError, match="no scope: this InferScaleMemoryBlock"):
        InferScaleMemoryBlock(memory=long_term)


@pytest.mark.parametrize("fields", [{"k": 0}, {"userid": "a"}, {"timeout": 0}])
def test_fields_out_of_range_or_misspelt_are_refused(block_of, fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        block_of(**fields)


async def test_what_could_not_be_saved_is_saved_with_the_next(block_of, long_term, monkeypatch, caplog):
    block, add = block_of(), long_term.add
    monkeypatch.setattr(long_term, "add", lambda *a, **k: (_ for _ in ()).throw(StoreError("the disk is full")))
    with caplog.at_level(logging.WARNING):
        await block.aput(exchanges(TALK[:1]))
    assert "2 messages were not remembered yet, and will be tried again: the disk is full" in caplog.text
    monkeypatch.setattr(long_term, "add", add)
    await block.aput(exchanges(TALK[1:2]))
    assert turns(long_term) == said(exchanges(TALK[:2]))


async def test_a_failing_search_is_told_of_once_and_the_history_goes_on(open_bare, caplog):
    def broken(texts):
        raise ConnectionError("the embedder is down")

    long_term = open_bare()
    long_term._embedder = broken
    memory = memory_of(InferScaleMemoryBlock(memory=long_term, user_id="alice"))
    with caplog.at_level(logging.WARNING):
        for question in ("One?", "Two?"):
            await memory.aput(user(question))
            assert said(await memory.aget())[-1] == ("user", question)
    assert caplog.text.count("memory does not answer") == 1


async def test_a_reset_of_the_memory_leaves_the_facts_and_forget_deletes_them(block_of, long_term):
    block = block_of()
    memory = memory_of(block)
    await block.aput(exchanges())
    await memory.areset()
    await memory.aput(user(QUESTION))
    assert recalled(long_term, await memory.aget())
    assert await block.aforget() == 2 * len(TALK)
    assert recalled(long_term, await memory.aget()) == []
