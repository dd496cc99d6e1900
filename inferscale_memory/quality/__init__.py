"""The quality dial: presets, targets, and the measured profile that ``refresh="auto"`` goes by. Needs no vLLM."""

from inferscale_memory.quality.presets import PRESETS, Preset, Quality
from inferscale_memory.quality.refresh import Refresh, RefreshField, check_refresh, parse_refresh, untuned_refresh
from inferscale_memory.quality.targets import TtftBudget

__all__ = [
    "PRESETS",
    "Preset",
    "Quality",
    "Refresh",
    "RefreshField",
    "TtftBudget",
    "check_refresh",
    "parse_refresh",
    "untuned_refresh",
]
