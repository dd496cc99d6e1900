"""A model that says whether an answer is right, behind an OpenAI-compatible API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from inferscale_memory._extras import require
from inferscale_memory.bench.quality.journal import Journal
from inferscale_memory.errors import EngineError
from inferscale_memory.scope import digest

PROMPT = """You check answers about what people said in their conversations.

Question: {question}
Right answer: {gold}
Given answer: {answer}

Is the given answer right? It is if it says the same as the right answer: other words, another date format and more
detail do not matter; a missing, vague or contradicting part does. Reply with one word, yes or no."""
KEY_VARIABLE = "OPENAI_API_KEY"
ATTEMPTS = 5
TIMEOUT = 60.0
REPLY_TOKENS = 2048
"""Room for a judge that thinks before it speaks."""
_VERDICT = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


class JudgeError(EngineError):
    """The judge cannot be reached, or refuses."""


class Judge:
    """Asks for one verdict after the other; what it said before is not asked again.

    Args:
        base_url: of the API, such as ``http://127.0.0.1:8000/v1``.
        model: its name there.
        journal: where verdicts are kept.
        wait: seconds before a second try, at most; later ones wait longer.

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(self, base_url: str, model: str, journal: Journal, *, wait: float = 1.0) -> None:
        self._httpx = require("httpx", "bench", "the judge")
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model, self._journal = model, journal
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = self._httpx.Client(timeout=TIMEOUT, headers=headers)
        self._retrying = Retrying(
            retry=retry_if_exception(self._passing),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=wait, max=30 * wait),
            reraise=True,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def verdict(self, question: str, gold: str, answer: str) -> bool | None:
        """Whether an answer is right; None where the judge says neither yes nor no.

        A blank answer is wrong without asking.

        Raises:
            JudgeError: there was no reply, after several tries where it makes sense.
        """
        if not answer.strip():
            return False
        key = digest("verdict", PROMPT, self._model, question, gold, answer)
        known = self._journal.get(key)
        if known is None:
            reply = self._ask(PROMPT.format(question=question, gold=gold, answer=answer))
            found = _VERDICT.match(_spoken(reply))
            known = {"verdict": None if found is None else found[1].lower() == "yes"}
            self._journal.write(key, known)
        return known["verdict"]

    def _ask(self, prompt: str) -> str:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0,
            "max_tokens": REPLY_TOKENS,
        }
        try:
            return self._retrying(self._post, body)
        except self._httpx.HTTPStatusError as error:
            status, text = error.response.status_code, " ".join(error.response.text.split())[:200]
            raise JudgeError(
                f"the judge at {self._url} answered with status {status}: {text}. What is measured is kept; the same "
                "command goes on from there."
            ) from error
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise JudgeError(
                f"the judge at {self._url} cannot be reached: {type(error).__name__}: {error}. What is measured is "
                "kept; check --judge, then run the same command again."
            ) from error

    def _post(self, body: dict[str, Any]) -> str:
        response = self._client.post(self._url, json=body)
        response.raise_for_status()
        try:
            return str(response.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError) as error:
            raise JudgeError(
                f"the judge at {self._url} answered with status {response.status_code}, but with no chat completion. "
                "Give --judge the URL below which chat/completions is, such as http://127.0.0.1:8000/v1."
            ) from error

    def _passing(self, error: BaseException) -> bool:
        """Whether another try may do better."""
        if isinstance(error, self._httpx.HTTPStatusError):
            return error.response.status_code in _AGAIN
        return isinstance(error, self._httpx.TransportError)


def _spoken(reply: str) -> str:
    """The reply without what a reasoning model thought aloud before it."""
    return reply.rpartition("</think>")[2]


def accuracy(verdicts: Iterable[bool | None]) -> float | None:
    """Share of right answers among those the judge decided on; None where it decided on none."""
    clear = [verdict for verdict in verdicts if verdict is not None]
    return sum(clear) / len(clear) if clear else None
