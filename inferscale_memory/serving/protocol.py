"""What the API side and the connector say to each other in ``kv_transfer_params``; no vLLM import here.

Both directions use one key, ``"inferscale"``, so that other connectors' parameters can stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inferscale_memory.errors import InvalidInputError

PARAMS_KEY = "inferscale"
VERSION = 1

CONNECTOR_NAME = "InferScaleConnector"
CONNECTOR_MODULE = "inferscale_memory.serving.connector"


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

    def as_dict(self) -> dict[str, Any]:
        """Plain fields, for JSON."""
        return asdict(self)


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
    """``kv_transfer_params`` of a request whose prompt may be filled from ``spans`` (contiguous from 0)."""
    return {PARAMS_KEY: {"v": VERSION, "inject": [[s.key, s.start, s.end] for s in spans]}}


@dataclass(frozen=True)
class RequestPlan:
    """What one request asks of the connector, parsed and checked."""

    capture: tuple[CaptureSpan, ...] = ()
    inject: tuple[InjectSpan, ...] = ()


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
        inject = tuple(InjectSpan(str(k), int(a), int(b)) for k, a, b in raw.get("inject", ()))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"malformed kv_transfer_params[{PARAMS_KEY!r}]: {error}") from error
    spans: list[CaptureSpan | InjectSpan] = [*capture, *inject]
    for span in spans:
        if not 0 <= span.start < span.end <= prompt_tokens:
            raise InvalidInputError(f"span [{span.start}, {span.end}) lies outside a prompt of {prompt_tokens} tokens.")
        if not (len(span.key) == 64 and all(c in "0123456789abcdef" for c in span.key)):
            raise InvalidInputError(f"chunk key {span.key!r} is not 64 hex digits.")
    expected = 0
    for part in inject:
        if part.start != expected:
            raise InvalidInputError(f"inject spans have a hole: [{expected}, {part.start}).")
        expected = part.end
    return RequestPlan(capture, inject)


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
