"""Profiles for tests: numbers that follow simple laws, so that what lies between can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferscale_memory.config import Settings
from inferscale_memory.quality.profile import Bound, Point, Profile


def kl_of(k: int, refresh: int) -> float:
    """Falls with each fact refreshed, ever more slowly, and is 0 where all are."""
    return 0.1 * (1 / (1 + refresh) - 1 / (1 + k))


def point(k: int, refresh: int, **given: Any) -> Point:
    """Facts of 20 tokens: 1 ms for each prefilled, 0.1 ms for each in the prompt, 50 ms for the rest."""
    fields: dict[str, Any] = {
        "k": k,
        "refresh": refresh,
        "fact_tokens": 20.0 * k,
        "refreshed_tokens": 20.0 * refresh,
        "ttft_ms": 50.0 + 20.0 * refresh + 2.0 * k,
        "kl": kl_of(k, refresh),
        "top1": 1.0 - 2 * kl_of(k, refresh),
    }
    return Point(**{**fields, **given})


def profile(points: Sequence[Point] | None = None, **given: Any) -> Profile:
    if points is None:
        points = [point(k, refresh) for k in (10, 50) for refresh in (0, 1, 3, k)]
    fields: dict[str, Any] = {
        "fingerprint": "f" * 64,
        "policy": Settings.model_fields["policy"].default,
        "model": "toy",
        "engine": "none",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "questions": 5,
        "bound": Bound(metric="kl", value=0.05),
        "tokens_per_character": 0.25,
        "points": tuple(points),
    }
    return Profile(**{**fields, **given})
