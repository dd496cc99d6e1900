"""Where questions are embedded: those that come while others are being embedded go together next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.retrieval.base import Embedder, EmbeddingError
from inferscale_memory.retrieval.batching import embed_each

QUESTION_BATCH = 256
"""Questions that one call of the embedder gets at most."""


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
    """Embeds questions in a thread of its own, one batch after the other.

    A question that comes alone is embedded at once: nobody waits for company. A batch that fails is embedded again
    one question at a time, so that one bad question costs only itself.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._lock = Lock()
        self._waiting: list[Question] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inferscale-questions")

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
            if questions and not self._waiting:
                try:
                    self._thread.submit(self._serve)
                except RuntimeError as error:  # closed, or the interpreter is ending
                    raise StoreError("this memory is closed; what it holds is safe. Open it again.") from error
            self._waiting += questions
        return questions

    def close(self) -> None:
        """Take no more questions; those that wait are still embedded."""
        self._thread.shutdown(wait=False)

    def _serve(self) -> None:
        with self._lock:
            questions, self._waiting = self._waiting, []
        # Questions whose caller has gone away are not embedded.
        questions = [question for question in questions if question.future.set_running_or_notify_cancel()]
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
