"""Opening a memory, and an engine under it, for the length of one command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_memory.cli.output import status
from inferscale_memory.config import load_settings
from inferscale_memory.models import resolve_model
from inferscale_memory.models.catalogue import find

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory
    from inferscale_memory.quality import Quality
    from inferscale_memory.serving.engine import LocalEngine


@contextmanager
def open_memory(
    home: Path | None, engine: LocalEngine | None = None, quality: Quality | None = None
) -> Iterator[Memory]:
    """The memory of ``home``; without an engine it keeps, finds and names facts, and encodes nothing."""
    stay_offline(load_settings(home).embedder)
    from inferscale_memory.memory import Memory

    memory = Memory(engine=engine, home=home, quality=quality)
    try:
        yield memory
    finally:
        memory.close()


@contextmanager
def open_engine(
    model: str | None, home: Path | None, options: Mapping[str, Any] | None = None
) -> Iterator[LocalEngine]:
    """Start the engine, with a spinner for the half minute it takes; stop it at the end.

    Args:
        model: None takes the setting.
        home: None takes the setting.
        options: of vLLM.
    """
    settings = load_settings(home)
    name = model or settings.model
    # Before the spinner: fetching a demo model shows a bar of its own, and a wrong name is told at once.
    resolve_model(name, home=home)
    stay_offline(name, settings.embedder)
    from inferscale_memory.serving.engine import LocalEngine

    with status(f"starting the engine with {name}"):
        # The spinner is enough; a bar of each shard would stand between.
        engine = LocalEngine(name, home=home, **{"use_tqdm_on_load": False, **(options or {})})
    with engine:
        yield engine


def stay_offline(*models: str) -> None:
    """Keep the hub client off the network if none of the models comes from a hub: it hangs where there is none.

    Nor shall it draw bars then: all that they would show is a local file being read.
    """
    if all(find(name) is not None or Path(name).expanduser().is_dir() for name in models):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
