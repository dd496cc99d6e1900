"""Turns of a conversation, and recalling beside those that the prompt holds anyway."""

from __future__ import annotations

import pytest

from inferscale_memory import InvalidInputError, ScopeError, StoreError

TALK = (
    {"role": "user", "content": "My dog is called Rex."},
    {"role": "assistant", "content": "What a fine name."},
    {"role": "user", "content": "He is a brown dog."},
)


async def test_turns_are_listed_oldest_first(memory):
    memory.add(list(TALK), user_id="alice")
    memory.add("My dog is old.", user_id="alice")
    turns = memory.turns(limit=2, user_id="alice")
    assert [(turn.role, turn.text) for turn in turns] == [(m["role"], m["content"]) for m in TALK[1:]]
    assert await memory.aturns(limit=2, user_id="alice") == turns
    assert len(memory.turns(user_id="alice")) == 3
    with pytest.raises(InvalidInputError, match="wanted a number of turns"):
        memory.turns(limit=0, user_id="alice")
    with pytest.raises(ScopeError):
        memory.turns()
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        memory.turns(user_id="alice")


async def test_what_is_excluded_leaves_its_slot_to_another(memory):
    first, _, second = memory.add(list(TALK), user_id="alice").facts
    other, _ = memory.add(["The dog next door barks.", "Tea is hot."], user_id="alice").facts
    shown = (first.id, second.id)
    found = memory.search("dog", 1, exclude=shown, user_id="alice")
    assert [scored.fact.id for scored in found] == [other.id]
    assert await memory.asearch("dog", 1, exclude=shown, user_id="alice") == found
    handle = memory.recall("dog", 1, exclude=shown, user_id="alice")
    assert [scored.fact.id for scored in handle.facts] == [other.id]
    assert await memory.arecall("dog", 1, exclude=shown, user_id="alice") == handle
