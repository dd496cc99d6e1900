"""What LlamaIndex's own memories and ours have in common: one suite over ``ChatMemoryBuffer``, ``Memory`` and ours."""

from __future__ import annotations

import pytest
from conversations import QUESTION, TALK, assistant, exchanges, said, system, tool_call, tool_result, user, words
from llama_index.core.memory import ChatMemoryBuffer, Memory

from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock

# LlamaIndex's own Memory opens its database once per event loop and leaves it to its fate.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

KINDS = ("ChatMemoryBuffer", "Memory", "Memory with our block", "InferScaleMemory")
LIMIT = 20


class Sync:
    """A memory through its sync methods."""

    def __init__(self, memory):
        self.memory = memory

    async def call(self, name, *arguments, **options):
        return getattr(self.memory, name)(*arguments, **options)


class Async(Sync):
    """A memory through its async methods."""

    async def call(self, name, *arguments, **options):
        return await getattr(self.memory, f"a{name}")(*arguments, **options)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(kind, request):
    """Makes memories of the kind; tokens are words."""

    def make(chat_history=None, token_limit=LIMIT):
        common = {"chat_history": chat_history, "token_limit": token_limit, "tokenizer_fn": words}
        if kind == "ChatMemoryBuffer":
            return ChatMemoryBuffer.from_defaults(**common)
        if kind == "Memory":
            return memory_of(common, [])
        long_term = request.getfixturevalue("long_term")
        if kind == "InferScaleMemory":
            own = {"recent_turns": None, "chat_history_token_ratio": 1.0}
            return InferScaleMemory.from_defaults(memory=long_term, user_id="alice", **own, **common)
        return memory_of(common, [InferScaleMemoryBlock(memory=long_term, user_id="alice", priority=1)])

    return make


def memory_of(common, blocks):
    return Memory.from_defaults(token_flush_size=1, chat_history_token_ratio=1.0, memory_blocks=blocks, **common)


@pytest.fixture(params=[Sync, Async])
def wrapped(request, make):
    """Makes memories of the kind, to be called through one of their two faces."""
    return lambda *arguments, **options: request.param(make(*arguments, **options))


async def fill(memory, messages):
    for message in messages:
        await memory.call("put", message)


async def test_an_empty_memory_gives_nothing(wrapped):
    memory = wrapped()
    assert await memory.call("get") == []
    assert await memory.call("get_all") == []
    assert await memory.call("get", input=QUESTION) == []


async def test_an_empty_memory_is_not_falsy_so_that_nobody_replaces_it(make):
    assert make()


async def test_what_was_put_comes_out_in_its_order(wrapped):
    memory = wrapped(token_limit=1000)
    await fill(memory, exchanges())
    assert said(await memory.call("get")) == said(exchanges())
    assert said(await memory.call("get_all")) == said(exchanges())


async def test_messages_can_be_put_many_at_a_time(wrapped):
    memory = wrapped(token_limit=1000)
    await memory.call("put_messages", exchanges())
    assert said(await memory.call("get")) == said(exchanges())


async def test_a_history_can_be_given_at_the_start(wrapped):
    memory = wrapped(chat_history=exchanges(TALK[:1]), token_limit=1000)
    await fill(memory, exchanges(TALK[1:2]))
    assert said(await memory.call("get")) == said(exchanges(TALK[:2]))


async def test_setting_replaces_what_was_there(wrapped):
    memory = wrapped(token_limit=1000)
    await fill(memory, exchanges(TALK[:2]))
    await memory.call("set", exchanges(TALK[2:]))
    assert said(await memory.call("get_all")) == said(exchanges(TALK[2:]))
    assert said(await memory.call("get")) == said(exchanges(TALK[2:]))


async def test_a_reset_empties_it_and_it_can_be_used_again(wrapped):
    memory = wrapped(token_limit=1000)
    await fill(memory, exchanges(TALK[:2]))
    await memory.call("reset")
    assert await memory.call("get_all") == []
    assert said(await memory.call("get")) == []
    await memory.call("reset")
    await fill(memory, exchanges(TALK[2:3]))
    assert said(await memory.call("get_all")) == said(exchanges(TALK[2:3]))


async def test_getting_changes_nothing(wrapped):
    memory = wrapped(token_limit=1000)
    await fill(memory, exchanges())
    first = await memory.call("get")
    assert await memory.call("get") == first
    assert said(await memory.call("get", input=QUESTION)) == said(first)
    assert len(await memory.call("get_all")) == 2 * len(TALK)


async def test_what_comes_out_is_within_the_token_limit_and_is_the_newest(wrapped):
    memory = wrapped()
    await fill(memory, exchanges())
    recent = said(await memory.call("get"))
    assert 0 < sum(len(words(text)) for _, text in recent) <= LIMIT
    assert recent == said(exchanges())[-len(recent) :]
    assert len(recent) < 2 * len(TALK)


@pytest.mark.parametrize("limit", [8, 14, 21, 30])
async def test_what_is_cut_never_begins_with_an_answer_or_a_tools_result(wrapped, limit):
    memory = wrapped(token_limit=limit)
    talk = [
        *exchanges(TALK[:2]),
        user("How is the sky?"),
        tool_call(),
        tool_result("It is blue over Graz."),
        assistant("It is blue."),
        *exchanges(TALK[3:]),
        user("Thanks."),
    ]
    await fill(memory, talk)
    recent = said(await memory.call("get"))
    assert recent[0][0] == "user"
    assert recent == said(talk)[-len(recent) :]


async def test_one_message_above_the_limit_is_given_all_the_same(wrapped):
    memory = wrapped(token_limit=3)
    long = user("This is longer than what is allowed here.")
    await memory.call("put", long)
    assert said(await memory.call("get")) == said([long])


async def test_a_limit_below_one_is_refused(make):
    with pytest.raises(ValueError, match=r"(?i)token.limit"):
        make(token_limit=0)


async def test_system_messages_are_kept(wrapped):
    memory = wrapped(token_limit=1000)
    await fill(memory, [system("Be brief."), *exchanges(TALK[:1])])
    assert said(await memory.call("get")) == said([system("Be brief."), *exchanges(TALK[:1])])


async def test_any_keyword_is_taken_by_get(wrapped, kind):
    memory = wrapped(token_limit=1000)
    await fill(memory, exchanges(TALK[:1]))
    assert said(await memory.call("get", input="Hello?", initial_token_count=3)) == said(exchanges(TALK[:1]))


async def test_what_stands_in_front_counts_against_the_limit(wrapped, kind):
    if kind.startswith("Memory"):
        pytest.skip("LlamaIndex's Memory leaves initial_token_count aside")
    memory = wrapped()
    await fill(memory, exchanges())
    whole, less = said(await memory.call("get")), said(await memory.call("get", initial_token_count=10))
    assert len(less) < len(whole)
    assert sum(len(words(text)) for _, text in less) <= LIMIT - 10
    with pytest.raises(ValueError, match="Initial token count exceeds token limit"):
        await memory.call("get", initial_token_count=LIMIT + 1)


async def test_the_same_as_chat_memory_buffer_as_long_as_nothing_is_left_out(wrapped, kind):
    ours = wrapped(token_limit=1000)
    theirs = ChatMemoryBuffer.from_defaults(token_limit=1000, tokenizer_fn=words)
    for message in [assistant("Hello, how can I help?"), *exchanges()]:
        await ours.call("put", message)
        theirs.put(message)
        assert said(await ours.call("get")) == said(theirs.get())


async def test_a_tool_call_keeps_its_blocks_and_its_result(wrapped):
    memory = wrapped(token_limit=1000)
    talk = [user("How is the sky?"), tool_call(), tool_result("Blue."), assistant("It is blue.")]
    await memory.call("put_messages", talk)
    found = [message for message in await memory.call("get") if message.role.value != "system"]
    assert [message.blocks for message in found] == [message.blocks for message in talk]
    assert found[2].additional_kwargs["tool_call_id"] == "c1"


async def test_it_is_restored_from_what_it_saved(make, kind):
    if kind != "InferScaleMemory":
        pytest.skip("LlamaIndex 0.14's own exports fail with pydantic 2.14")
    memory = make(token_limit=1000)
    memory.put_messages(exchanges())
    restored = type(memory).from_string(memory.to_string())
    assert restored.get_all() == memory.get_all()
    assert restored.token_limit == 1000
