"""What the demonstration shows, with no engine."""

from __future__ import annotations

import pytest
from rich.console import Console

from inferscale_memory import demo


def answer(inject_ms: float = 50.0, prefill_ms: float = 150.0) -> demo.Answer:
    return demo.Answer("Where?", ["Here."], "In Oslo.", "In Bergen.", 150, 120, 0, 30, inject_ms, prefill_ms)


def test_both_answers_stand_side_by_side_whatever_they_are() -> None:
    console = Console(width=160, record=True, quiet=False, file=None)
    with console.capture() as shown:
        console.print(demo.answers_table([answer()]))
    for text in ("In Oslo.", "In Bergen.", "120 of 150", "30", "50", "150"):
        assert text in shown.get()


def test_the_closing_line_gives_the_medians_and_their_ratio() -> None:
    line = demo.closing([answer(40, 100), answer(50, 150), answer(90, 900)])
    assert line.startswith("Time to first token, median: 50 ms injected, 150 ms prefilled (3.0x) with 5 facts")


@pytest.mark.parametrize(("distance", "told"), [(0.0, "cold prefill 0 over"), (0.25, "cold prefill 0.25 over")])
def test_the_exactness_line_tells_the_distance_beside_the_floor(distance: float, told: str) -> None:
    line = demo.exactness_line(
        {"policy": "prefix", "k": 10, "prompt_tokens": 300, "max_abs_dlogprob": distance, "floor": 0.125}
    )
    assert told in line
    assert line.endswith("(a native prefix-cache hit: 0.125).")


def test_the_conversation_is_of_the_promised_length_and_has_no_doubles() -> None:
    assert 10 <= len(set(demo.CONVERSATION)) == len(demo.CONVERSATION) <= 20
    assert 4 <= len(demo.QUESTIONS) <= 6
