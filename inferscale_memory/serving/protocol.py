"""What the API side and the connector say to each other in ``kv_transfer_params``; no vLLM import here.

Both directions use one key, ``"inferscale"``, so that other connectors' parameters can stand beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from inferscale_memory.errors import InvalidInputError

PARAMS_KEY = "inferscale"
VERSION = 2
KEY_DIGITS = 64
_HEX = re.compile("[0-9a-f]*")

CONNECTOR_NAME = "InferScaleConnector"
CONNECTOR_MODULE = "inferscale_memory.serving.connector"
WORKER_EXTENSION = "inferscale_memory.serving.prefetch.WorkerExtension"


@dataclass(frozen=True)
class CaptureSpan:
    """Keep the KV of prompt tokens ``[start, end)`` of this request under ``key``.

    ``volatile`` chunks live in the workers' memory only and are captured again when they are gone. ``verify`` asks the
    worker to compare what it captured with what the engine wrote (the warm-up does).
    """

    key: str
    start: int
    end: int
    volatile: bool = False
    verify: bool = False


@dataclass(frozen=True)
class InjectSpan:
    """Prompt tokens ``[start, end)`` may be filled from the chunk ``key``, all of it, in order."""

    key: str
    start: int
    end: int


@dataclass(frozen=True)
class CaptureResult:
    """Outcome of a capture request, by chunk key."""

    stored: frozenset[str]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Accounting:
    """Where the prompt's tokens came from, in tokens.

    ``injected + local_hit + prefilled`` is the prompt's length. ``fallback_reason`` is ``None`` when everything that
    was planned for injection was injected or found in the native prefix cache, else why not.
    """

    injected: int = 0
    local_hit: int = 0
    prefilled: int = 0
    fallback_reason: str | None = None

    @property
    def covered(self) -> int:
        """Prompt tokens from 0 on that were not run through the model."""
        return self.injected + self.local_hit

    def as_dict(self) -> dict[str, Any]:
        """Plain fields, for JSON."""
        return asdict(self)


class TierTokens(NamedTuple):
    """Tokens of chunks that a worker has loaded since it started, by where it found them."""

    arena: int = 0
    host: int = 0
    disk: int = 0

    def since(self, before: TierTokens) -> TierTokens:
        """What was loaded after an earlier count."""
        return TierTokens(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True)
class TapReport:
    """How a worker captures, and how far its captured keys are from what the engine itself wrote.

    ``identical`` is the share of key and value elements that come back bit-equal after un-rotating (or not) and
    rotating again; ``max_abs`` the largest difference among the others. ``exact`` means 1.0 and 0.0.
    """

    tap: str
    layers: int = 0
    rotary_calls: int = 0
    identical: float = 0.0
    max_abs: float = float("inf")
    problem: str | None = None

    @property
    def exact(self) -> bool:
        """Whether every layer was seen and nothing differed."""
        return self.problem is None and self.identical == 1.0 and self.max_abs == 0.0


def capture_params(spans: Sequence[CaptureSpan]) -> dict[str, Any]:
    """``kv_transfer_params`` of a request that captures ``spans``."""
    return {PARAMS_KEY: {"v": VERSION, "capture": [[s.key, s.start, s.end, s.volatile, s.verify] for s in spans]}}


def inject_params(spans: Sequence[InjectSpan]) -> dict[str, Any]:
    """``kv_transfer_params`` of a request whose prompt may be filled from ``spans``.

    They travel as one string of keys and a list of ends: reading that costs the scheduler microseconds for any number.

    Raises:
        InvalidInputError: the spans are not contiguous from 0.
    """
    expected = 0
    for span in spans:
        if span.start != expected:
            raise InvalidInputError(f"inject spans have a hole: [{expected}, {span.start}).")
        expected = span.end
    return {PARAMS_KEY: {"v": VERSION, "inject": ["".join(span.key for span in spans), [span.end for span in spans]]}}


@dataclass(frozen=True)
class InjectPlan:
    """Chunks that may fill a prompt from 0 on without a hole: the ``i``-th ends at position ``ends[i]``."""

    keys: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    @property
    def end(self) -> int:
        """Prompt tokens that could be injected."""
        return self.ends[-1] if self.ends else 0

    def start(self, index: int) -> int:
        """Where a chunk begins."""
        return self.ends[index - 1] if index else 0


@dataclass(frozen=True)
class RequestPlan:
    """What one request asks of the connector, parsed and checked."""

    capture: tuple[CaptureSpan, ...] = ()
    inject: InjectPlan = InjectPlan()


def parse_params(params: Mapping[str, Any] | None, prompt_tokens: int) -> RequestPlan | None:
    """Read a request's ``kv_transfer_params``; ``None`` when they hold nothing for this connector.

    Raises:
        InvalidInputError: the parameters are malformed, of another version, or name tokens outside the prompt.
    """
    raw = (params or {}).get(PARAMS_KEY)
    if raw is None:
        return None
    try:
        if raw["v"] != VERSION:
            raise InvalidInputError(f"kv_transfer_params version {raw['v']!r}, this connector reads {VERSION}.")
        capture = tuple(
            CaptureSpan(str(key), int(start), int(end), bool(volatile), bool(verify))
            for key, start, end, volatile, verify in raw.get("capture", ())
        )
        keys, ends = raw.get("inject", ("", ()))
        inject = _inject_plan(str(keys), [int(end) for end in ends], prompt_tokens)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"malformed kv_transfer_params[{PARAMS_KEY!r}]: {error}") from error
    for span in capture:
        if not 0 <= span.start < span.end <= prompt_tokens:
            raise InvalidInputError(f"span [{span.start}, {span.end}) lies outside a prompt of {prompt_tokens} tokens.")
        _check_keys(span.key, 1)
    return RequestPlan(capture, inject)


def _inject_plan(keys: str, ends: list[int], prompt_tokens: int) -> InjectPlan:
    _check_keys(keys, len(ends))
    if any(end <= start for start, end in pairwise((0, *ends))) or (ends and ends[-1] > prompt_tokens):
        raise InvalidInputError(f"chunks that end at {ends} lie outside a prompt of {prompt_tokens} tokens.")
    return InjectPlan(tuple(keys[at : at + KEY_DIGITS] for at in range(0, len(keys), KEY_DIGITS)), tuple(ends))


def _check_keys(keys: str, count: int) -> None:
    if len(keys) != KEY_DIGITS * count or not _HEX.fullmatch(keys):
        raise InvalidInputError(f"chunk keys {keys[:80]!r} are not {count} times {KEY_DIGITS} hex digits.")


def parse_accounting(params: Mapping[str, Any] | None) -> Accounting | None:
    """Accounting that the connector returned with a finished request, or ``None``."""
    raw = (params or {}).get(PARAMS_KEY) or {}
    fields = raw.get("accounting")
    return Accounting(**fields) if fields else None


def parse_tap_report(params: Mapping[str, Any] | None) -> TapReport | None:
    """The workers' tap report, if the connector has one."""
    raw = (params or {}).get(PARAMS_KEY) or {}
    fields = raw.get("tap")
    return TapReport(**fields) if fields else None
