"""Questions are embedded off the callers' threads; one that hangs does not hold up the others."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from inferscale_memory.errors import StoreError
from inferscale_memory.retrieval import CallableEmbedder, desk
from inferscale_memory.retrieval.desk import EmbeddingDesk

WAIT = 20


class Hanging:
    """Hangs on texts that say so, until it is let go; writes down its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.hangs, self.go = threading.Event(), threading.Event()
        self.desk = EmbeddingDesk(CallableEmbedder(self.embed, "hanging@1", 2))

    def embed(self, texts):
        self.batches.append(list(texts))
        if "hang" in texts:
            self.hangs.set()
            self.go.wait(WAIT)
        return np.ones((len(texts), 2), dtype=np.float32)


@pytest.fixture
def hanging():
    made = Hanging()
    yield made
    made.go.set()


def vector(question):
    return question.future.result(timeout=WAIT)


def test_questions_that_come_while_others_are_embedded_go_together_next(hanging):
    (first,) = hanging.desk.ask(["hang"])
    assert hanging.hangs.wait(WAIT)
    others = [question for text in ("a", "b", "c") for question in hanging.desk.ask([text])]
    hanging.go.set()
    for question in (first, *others):
        assert vector(question).tolist() == pytest.approx([2**-0.5] * 2)
    assert hanging.batches == [["hang"], ["a", "b", "c"]]


def test_a_call_that_hangs_holds_up_nobody_who_comes_later(hanging, monkeypatch):
    hanging.desk.ask(["hang"])
    assert hanging.hangs.wait(WAIT)
    monkeypatch.setattr(desk, "STALLED_SECONDS", -1.0)
    assert vector(hanging.desk.ask(["later"])[0]) is not None
    assert not hanging.go.is_set()


def test_threads_of_a_desk_never_keep_a_program_from_ending(hanging):
    hanging.desk.ask(["hang"])
    assert hanging.hangs.wait(WAIT)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("inferscale"))


def test_a_desk_that_is_closed_takes_no_questions_but_answers_those_it_has(hanging):
    hanging.desk.ask(["hang"])
    assert hanging.hangs.wait(WAIT)
    (waiting,) = hanging.desk.ask(["waits"])
    hanging.desk.close()
    with pytest.raises(StoreError, match="closed"):
        hanging.desk.ask(["too late"])
    hanging.go.set()
    assert vector(waiting) is not None
