"""Every entry point of LlamaIndex with our memory: a script of questions, each model call accounted for."""

from __future__ import annotations

import pytest
from entry_points import ENTRIES
from playing import K, Played, assert_no_handle_in

LESS_COMPARED = ("achat", "stream_chat", "astream_chat", "whole")
CASES = [pytest.param(name, mode, id=f"{name}-{mode}") for name, entry in ENTRIES.items() for mode in entry.modes]
COMPARED = [
    # What differs between the modes is covered by the test of injection; here one of a kind is enough.
    pytest.param(name, mode, id=f"{name}-{mode}", marks=[pytest.mark.full] if mode in LESS_COMPARED else [])
    for name, entry in ENTRIES.items()
    for mode in entry.modes
]
TURNS = [pytest.param(3, id="3"), pytest.param(10, id="10", marks=pytest.mark.full)]

short_and_long = pytest.mark.parametrize("turns", TURNS)


@short_and_long
@pytest.mark.parametrize(("name", "mode"), CASES)
async def test_facts_are_injected_into_every_call_that_holds_the_memorys_messages(stage, name, mode, turns):
    entry = ENTRIES[name]
    played = await stage.play(entry, mode, turns, side="injected")
    assert played.searches == [1] * turns
    for calls in played.calls:
        assert tuple(bool(call.handles) for call in calls) == entry.holds_handle
        for call in calls:
            if call.handles:
                stage.assert_injected(call)
            else:
                assert (call.kv["injected"], call.recalled) == (0, [])
    first = played.calls[0][0].kv
    assert first["injected"] > 0
    assert first["local_hit"] == 0
    assert all(played.answers)
    assert_no_handle_in([*played.answers, *(message.content or "" for message in played.kept)])


@pytest.fixture(scope="session")
def in_plain_text() -> dict[tuple[str, int], Played]:
    """What the scripts come to with the facts in the prompt, by entry point and number of turns."""
    return {}


@short_and_long
@pytest.mark.parametrize(("name", "mode"), COMPARED)
async def test_refreshing_every_fact_gives_the_answers_of_the_facts_as_plain_text(
    stage, name, mode, turns, in_plain_text
):
    entry = ENTRIES[name]
    # Refreshed facts stand in the order of their ranks: so shall those in plain text.
    stage.memory.settings = stage.memory.settings.model_copy(update={"order": "ranked"})
    if (name, turns) not in in_plain_text:
        in_plain_text[name, turns] = await stage.play(entry, mode, turns, side="plain")
    plain = in_plain_text[name, turns]
    refreshed = await stage.play(entry, mode, turns, side="refreshed", refresh=K)
    assert [[bool(call.handles) for call in calls] for calls in plain.calls] == [
        [False] * len(entry.holds_handle)
    ] * turns
    assert [[bool(call.handles) for call in calls] for calls in refreshed.calls] == [list(entry.holds_handle)] * turns
    decode = stage.engine.tokenizer.decode
    for theirs, ours in zip(plain.prompts, refreshed.prompts, strict=True):
        assert [*map(decode, ours)] == [*map(decode, theirs)]
        assert ours == theirs
    assert refreshed.answers == plain.answers
    assert {call.kv["injected"] for calls in refreshed.calls for call in calls} == {0}
