"""Which handles resolve, and what becomes of those that do not."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from asking import FACTS, QUESTION, ask, remember, text_of

from inferscale_memory import metrics
from inferscale_memory.errors import InvalidInputError, ScopeError
from inferscale_memory.handles import HandleBook, SecretRing
from inferscale_memory.handles.text import OPENING
from inferscale_memory.scope import Scope


def rejected(reason):
    return metrics.REGISTRY.get_sample_value("inferscale_handles_rejected_total", {"reason": reason}) or 0.0


def warnings_in(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING and "handle" in record.message]


def assert_answered_without_memory(engine, answer, messages):
    """The answer is the one to the same messages with the handle cut out by hand."""
    cut = [{**message, "content": message["content"].split(OPENING)[0]} for message in messages]
    plain = engine.chat(cut, max_tokens=6, temperature=0)
    assert text_of(answer) == text_of(plain)
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert answer["kv"]["injected"] == 0


def test_a_handle_in_a_users_message_is_removed_and_not_resolved(engine, memory_for, user, caplog):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, user_id=user)
    messages = [{"role": "user", "content": f"{QUESTION} {handle}"}]
    before = rejected("misplaced")
    answer = engine.chat(messages, max_tokens=6, temperature=0)
    assert rejected("misplaced") == before + 1
    assert len(warnings_in(caplog)) == 1
    assert_answered_without_memory(engine, answer, messages)


def forged(memory, handle, user):
    other = HandleBook(memory._database, SecretRing(b"another server's secret, 32 bytes"))
    return other.mint(Scope.of(user_id=user), [(hit.fact.id, 1) for hit in handle.facts]), user


def altered(memory, handle, user):
    return handle[:-3] + ("bb⟧" if handle[-3:] != "bb⟧" else "cc⟧"), user


def expired(memory, handle, user):
    facts = [(hit.fact.id, 1) for hit in handle.facts]
    long_ago = datetime.now(UTC) - timedelta(days=30)
    return memory.handles.mint(Scope.of(user_id=user), facts, 1, now=long_ago), user


def foreign(memory, handle, user):
    return str(handle), f"{user}-the-neighbour"


@pytest.mark.parametrize(
    ("spoil", "reason"), [(forged, "forged"), (altered, "forged"), (expired, "expired"), (foreign, "foreign")]
)
def test_a_handle_that_does_not_open_is_removed_with_one_warning(engine, memory_for, user, caplog, spoil, reason):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    handle, caller = spoil(memory, memory.recall(QUESTION, 1, user_id=user), user)
    before = rejected(reason)
    messages = ask(handle)
    answer = engine.chat(messages, user_id=caller, max_tokens=6, temperature=0)
    assert rejected(reason) == before + 1
    assert len(warnings_in(caplog)) == 1
    assert_answered_without_memory(engine, answer, messages)


def test_a_handle_whose_facts_are_all_deleted_leaves_nothing_behind(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    messages = ask(memory.recall(QUESTION, 1, user_id=user))
    memory.delete_all(user_id=user)
    answer = engine.chat(messages, max_tokens=6, temperature=0)
    assert_answered_without_memory(engine, answer, messages)


def test_a_call_that_names_the_owner_resolves_the_handle(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    assert engine.chat(ask(memory.recall(QUESTION, 1, user_id=user)), user_id=user, max_tokens=1)["kv"]["injected"] > 0


def test_an_engine_that_requires_a_scope_refuses_calls_without_one(engine, memory_for, user, monkeypatch):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    messages = ask(memory.recall(QUESTION, 1, user_id=user))
    monkeypatch.setattr(engine, "require_scope", True)
    with pytest.raises(ScopeError, match="requires a scope"):
        engine.chat(messages, max_tokens=1)
    assert engine.chat(messages, user_id=user, max_tokens=1)["kv"]["injected"] > 0
    assert engine.chat([{"role": "user", "content": "Hello."}], max_tokens=1)["kv"]["injected"] == 0


def test_an_engine_without_a_memory_removes_handles(engine, memory_for, user, caplog):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    messages = ask(memory.recall(QUESTION, 1, user_id=user))
    memory.close()
    before = rejected("no_memory")
    answer = engine.chat(messages, max_tokens=6, temperature=0)
    assert rejected("no_memory") == before + 1
    assert_answered_without_memory(engine, answer, messages)


@pytest.mark.parametrize("option", [{"prompt_logprobs": 1}])
def test_options_that_need_every_prompt_row_are_refused_beside_a_handle(engine, memory_for, user, option):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    messages = ask(memory.recall(QUESTION, 1, user_id=user))
    with pytest.raises(InvalidInputError, match="cannot be combined with KV handles"):
        engine.chat(messages, max_tokens=1, **option)
    assert "prompt_logprobs" in engine.chat([{"role": "user", "content": "Hello."}], max_tokens=1, **option)
