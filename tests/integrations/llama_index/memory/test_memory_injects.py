"""The LlamaIndex memories on the real engine: what they recall is injected into the model's prompt."""

from __future__ import annotations

import asyncio

import pytest
from asking import FACTS, remember
from conversations import QUESTION, exchanges, recalled, said, user
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer, Memory

from inferscale_memory.handles import find_handles
from llama_index.llms.inferscale import InferScale
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


@pytest.fixture
def long_term(memory_for, user_id):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user_id)
    return memory


@pytest.fixture
def user_id(request):
    """A user that no other test has, so that nothing is in the native prefix cache."""
    return f"user-of-{request.node.name}"


@pytest.fixture
def llm(engine):
    return InferScale(engine=engine, max_tokens=12, temperature=0)


def facts_covered(response):
    kv = response.raw["kv"]
    return kv["injected"] + kv["local_hit"]


def test_the_facts_behind_the_handle_are_injected(llm, long_term, user_id):
    memory = InferScaleMemory.from_defaults(memory=long_term, llm=llm, user_id=user_id, k=4)
    memory.put(user(QUESTION))
    response = llm.chat(memory.get())
    assert response.raw["kv"]["injected"] > 0
    texts = {long_term.get(one["id"], user_id=user_id).text for one in response.raw["recalled"]}
    assert texts == set(FACTS)
    plain = ChatMemoryBuffer.from_defaults(llm=llm)
    plain.put(user(QUESTION))
    assert facts_covered(llm.chat(plain.get())) == 0


async def test_a_chat_engine_answers_with_injected_facts_and_remembers_the_turn(llm, long_term, user_id, monkeypatch):
    kv = []
    for name in ("chat", "achat"):
        monkeypatch.setattr(long_term.engine, name, _listening(getattr(long_term.engine, name), kv))
    kind = InferScaleMemory.bound(long_term, user_id=user_id, k=4)
    chat = SimpleChatEngine.from_defaults(llm=llm, memory_cls=kind, system_prompt="You are a helpful assistant.")
    answers = [str(await asyncio.to_thread(chat.chat, QUESTION)), str(await chat.achat("And where was she born?"))]
    assert [one["injected"] + one["local_hit"] > 0 for one in kv] == [True, True]
    assert kv[0]["injected"] > 0
    assert [turn.text for turn in long_term.turns(user_id=user_id)][1::2] == answers
    assert not find_handles(str([answers, chat.chat_history]))


def _listening(call, kv):
    if asyncio.iscoroutinefunction(call):

        async def listening(*arguments, **options):
            answer = await call(*arguments, **options)
            kv.append(answer["kv"])
            return answer

        return listening

    def listening(*arguments, **options):
        answer = call(*arguments, **options)
        kv.append(answer["kv"])
        return answer

    return listening


def test_a_block_in_llama_indexs_own_memory_injects(llm, long_term, user_id):
    block = InferScaleMemoryBlock(memory=long_term, user_id=user_id, k=4, priority=1)
    memory = Memory.from_defaults(memory_blocks=[block], tokenizer_fn=block.tokenizer_fn, token_limit=1000)
    memory.put(user(QUESTION))
    kv = llm.chat(memory.get()).raw["kv"]
    assert kv["injected"] > 0


def test_limits_are_counted_by_the_models_tokenizer(llm, engine, long_term, user_id):
    memory = InferScaleMemory.from_defaults(memory=long_term, llm=llm, user_id=user_id, k=4, recent_turns=None)
    assert memory.token_limit == int(0.75 * engine.max_model_len)
    memory.put_messages([*exchanges() * 30, user(QUESTION)])
    memory.token_limit = 400
    messages = memory.get()
    shown = sum(len(engine.tokenize(text)) for _, text in said(messages))
    facts = sum(len(engine.tokenize(f"- {text}\n")) for text in recalled(long_term, messages))
    assert facts > 0
    assert 0.6 * 400 < shown + facts <= 400
    assert memory.tokenizer_fn(QUESTION) == engine.tokenize(QUESTION)
