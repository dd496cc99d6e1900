"""Where questions are embedded: those that come while others are being embedded go together next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock

import numpy as np

from inferscale_memory.daemons import DaemonPool
from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.retrieval.base import Embedder, EmbeddingError
from inferscale_memory.retrieval.batching import embed_each

QUESTION_BATCH = 64
"""Questions that one call of the embedder gets at most."""
STALLED_SECONDS = 1.0
SERVERS = 8


class Question:
    """A question that is being embedded."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked_at = time.perf_counter()
        self.future: Future[np.ndarray] = Future()

    def vector(self) -> np.ndarray:
        """Its vector, ``[dim]`` float32 of length 1; waits for it.

        Raises:
            EmbeddingError: the embedder failed on it.
        """
        return self.future.result()


class EmbeddingDesk:
    """Embeds questions off the callers' threads, one batch after the other.

    A question that comes alone is embedded at once: nobody waits for company. A batch that fails is embedded again
    one question at a time, so that one bad question costs only itself. A call of the embedder that takes longer than
    ``STALLED_SECONDS`` no longer holds up questions that come after that, and never keeps a program from ending.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._lock = Lock()
        self._waiting: list[Question] = []
        self._serving: dict[object, float] = {}  # who serves, and since when the present batch is with the embedder
        self._pool = DaemonPool(SERVERS)
        self._closed = False

    def ask(self, texts: Sequence[str]) -> list[Question]:
        """Have questions embedded, in one call of the embedder if there are no more than ``QUESTION_BATCH``.

        Raises:
            InvalidInputError: one is blank or holds a lone surrogate; none is embedded.
            StoreError: the desk is closed.
        """
        for text in texts:
            check_question(text)
        questions = [Question(text) for text in texts]
        with self._lock:
            if self._closed:
                raise StoreError("this memory is closed; what it holds is safe. Open it again.")
            self._waiting += questions
            now = time.monotonic()
            if questions and all(now - since > STALLED_SECONDS for since in self._serving.values()):
                server = object()
                self._serving[server] = now
                self._pool.submit(lambda: self._serve(server))
        return questions

    def close(self) -> None:
        """Take no more questions; those that wait are still embedded."""
        with self._lock:
            self._closed = True

    def _serve(self, server: object) -> None:
        while True:
            with self._lock:
                questions, self._waiting = self._waiting, []
                if not questions:
                    del self._serving[server]
                    return
                self._serving[server] = time.monotonic()
            # Questions whose caller has gone away are not embedded.
            self._embed([question for question in questions if question.future.set_running_or_notify_cancel()])

    def _embed(self, questions: Sequence[Question]) -> None:
        try:
            results = embed_each(self._embedder, [question.text for question in questions], QUESTION_BATCH)
        except BaseException as error:  # handed to those who wait: nobody else would ever see it
            for question in questions:
                question.future.set_exception(error)
            return
        for question, result in zip(questions, results, strict=True):
            if isinstance(result, EmbeddingError):
                why = f"the query could not be embedded, so nothing was searched: {result}"
                question.future.set_exception(EmbeddingError(why))
            else:
                question.future.set_result(result)


def check_question(text: object) -> None:
    """Refuse what cannot be embedded.

    Raises:
        InvalidInputError: it is blank or holds a lone surrogate.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"the query is blank ({text!r}); pass the user's question.")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise InvalidInputError("the query holds a lone surrogate; decode it as UTF-8 or UTF-16 before searching.")
