"""What ``quality="exact"``, ``"balanced"`` and ``"fast"`` stand for: the only place that says so.

What each of them was measured to cost, and how near it comes to a full prefill, is in ``docs/quality.md``.
"""

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


PRESETS: Mapping[Quality, Preset] = MappingProxyType(
    {
        # Nothing is approximated: every fact is prefilled as text, which is prompt injection. The policy stays, so that
        # facts that are encoded serve the other words; Memory(encode=False) saves the encoding too.
        "exact": Preset(None, "all"),
        # The library's defaults: the best-ranked facts are prefilled where that still tells, the others are injected.
        "balanced": Preset(None, "auto"),
        # Everything is injected: the shortest time to the first token that the library has.
        "fast": Preset(None, 0),
    }
)
