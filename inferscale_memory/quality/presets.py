"""What ``quality="exact"``, ``"balanced"`` and ``"fast"`` stand for: the only place that says so."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from inferscale_memory.quality.refresh import Refresh

Quality = Literal["exact", "balanced", "fast"]


class Preset(NamedTuple):
    """Settings that a word stands for; None leaves a setting at the library's default."""

    policy: str | None
    refresh: Refresh


class Measured(NamedTuple):
    """What a preset was measured to cost: a row of ``inferscale bench quality``, and its time of ``bench ttft``.

    ``kl`` is the mean KL divergence to full prefill in nats per answer token, ``top1`` the share of answer tokens whose
    likeliest next token is the same, ``ttft_ratio`` the time to the first token over that of ``refresh=0``.
    """

    model: str
    k: int
    kl: float
    top1: float
    ttft_ratio: float


PRESETS: Mapping[Quality, Preset] = MappingProxyType(
    {
        # Nothing is approximated: every fact is prefilled as text, which is prompt injection. The policy stays, so that
        # facts that are encoded serve the other words; Memory(encode=False) saves the encoding too.
        "exact": Preset(None, "all"),
        # The best-ranked facts are what answers hang on most; the rest is injected.
        "balanced": Preset(None, 1),
        # Everything is injected: the shortest time to the first token that the library has.
        "fast": Preset(None, 0),
    }
)

# TO BE FILLED from docs/quality.md whenever a preset or the default policy changes; no row stands here unmeasured.
MEASURED: Mapping[Quality, tuple[Measured, ...]] = MappingProxyType({"exact": (), "balanced": (), "fast": ()})
