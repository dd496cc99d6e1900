"""Chunk files that vanish or change under a living engine: slower answers, never other ones."""

from __future__ import annotations

import pytest
from asking import FACTS, FLUSH, QUESTION, ask, distance, eventually, file_of, key_of, remember, run

from inferscale_memory import metrics


class Known:
    """Three facts, encoded and asked for once, so that workers and scheduler know their chunks."""

    def __init__(self, memory, user):
        self.memory, self.engine, self.user = memory, memory.engine, user
        self.ids = remember(memory, FACTS[1:], user)
        handle = memory.recall(QUESTION, 3, user_id=user)
        self.messages = ask(handle)
        self.plan = self.engine.plan(self.messages)
        self.first = handle.facts[-1].fact.id  # stands first in the prompt
        self.last = handle.facts[0].fact.id
        assert len(self.plan.token_ids) < self.engine.block_size, "native blocks would serve what is lost"
        self.before = run(self.engine, self.plan)
        assert self.engine.accounting(self.before).injected == self.covered

    @property
    def covered(self):
        return self.plan.inject[-1].end

    def plain(self):
        return run(self.engine, self.plan, inject=False, salt=f"cold {self.user}")


@pytest.fixture
def known(memory_for, user):
    return Known(memory_for(policy="preamble"), user)


def assert_made_again(known, keys):
    eventually(lambda: all(known.memory.chunks.find(key, known.engine.fingerprint) for key in keys))
    known.memory.flush(FLUSH, user_id=known.user)
    kv = known.engine.chat(known.messages, max_tokens=1)["kv"]
    assert (kv["injected"] + kv["local_hit"], kv["fallback_reason"]) == (known.covered, None)


def test_files_deleted_by_hand_are_served_from_the_workers_memory(known, user):
    for fact in known.ids:
        file_of(known.memory, fact).unlink()
    again = run(known.engine, known.plan, salt=f"again {user}")
    assert known.engine.accounting(again).injected == known.covered
    assert distance(again, known.before) == 0.0


def test_chunks_deleted_by_another_process_are_prefilled_and_made_again(known):
    keys = [key_of(known.memory, fact) for fact in known.ids]
    before = metrics.CHUNKS_LOST._value.get()
    known.memory.chunks.delete(keys)
    kv = known.engine.chat(known.messages, max_tokens=1)["kv"]
    assert kv["injected"] == known.plan.inject[0].end
    assert kv["fallback_reason"] == "chunk_missing"
    assert_made_again(known, keys)
    assert metrics.CHUNKS_LOST._value.get() == before + len(keys)


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_damaged_file_is_prefilled_and_made_again(known, user, which):
    memory, engine, fact = known.memory, known.engine, getattr(known, which)
    key, path = key_of(memory, fact), file_of(memory, fact)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    memory.chunks.delete([key])  # so that the worker has no copy in memory
    engine.follow_deletions()
    path.write_bytes(content)
    path.chmod(0o600)

    # What is lost lies in the prompt's only block, so everything is computed.
    output = run(engine, known.plan, salt=f"damaged {user}")
    accounting = engine.accounting(output)
    assert (accounting.injected, accounting.fallback_reason) == (0, "chunk_unreadable")
    assert accounting.prefilled == len(known.plan.token_ids)
    assert distance(output, known.plain()) == 0.0
    assert distance(known.before, known.plain()) > 0.0, "the comparison cannot fail"
    assert_made_again(known, [key])
