"""The engine that quality is measured on: it can be made to answer what it is told, and adds up in one order only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_memory._extras import require
from inferscale_memory.bench.common import open_engine, unless_set

if TYPE_CHECKING:
    from inferscale_memory.serving.engine import LocalEngine

LONGEST = 8_192
"""Tokens of the longest prompt, where the model takes as many: room for a LoCoMo conversation's observations."""
_SPLIT = "VLLM_CPU_ATTN_SPLIT_KV"


@contextmanager
def open_forcing_engine(model: str, folder: Path, **options: Any) -> Iterator[LocalEngine]:
    """Start an engine whose answers can be forced, see ``forcing.force``; closed at the end of the block.

    Args:
        model: a demo model, a folder or a hub id.
        folder: its home.
        options: more options of the engine, before those that are set here.

    Raises:
        UnsupportedModelError: the model cannot be injected.
    """
    length = options.pop("max_model_len", None) or longest_prompt(model, folder)
    options = {"logits_processors": _processors(), **options}
    with (
        # Else vLLM's CPU attention may share out the keys of a lone row between threads, depending on what else is in
        # the step, and decoding then moves by more than what is measured here.
        unless_set(_SPLIT, "0"),
        open_engine(model, folder, length, "be measured, it is not injected", **options) as engine,
    ):
        yield engine


def _processors() -> list[str]:
    """The logits processor that forces answers, where this platform's model runner takes it; see ``forcing.force``."""
    from inferscale_memory.serving import compat

    if not compat.platform_is_cpu():
        return []
    from inferscale_memory.serving.forced import PROCESSOR

    return [PROCESSOR]


def longest_prompt(model: str, home: Path) -> int:
    """``max_model_len``: the model's own, up to ``LONGEST``."""
    from inferscale_memory.models import resolve_model

    transformers = require("transformers", "cpu", "the local engine")
    config = transformers.AutoConfig.from_pretrained(resolve_model(model, home=home)).get_text_config()
    return min(LONGEST, int(getattr(config, "max_position_embeddings", None) or LONGEST))
