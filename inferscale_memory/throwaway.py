"""A memory of its own for a demonstration or a measurement, beside the user's models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferscale_memory.config import ENV_PREFIX, load_settings

_MODELS_DIR = f"{ENV_PREFIX}MODELS_DIR"


@contextmanager
def throwaway_home(home: Path | str | None = None, *, label: str = "memory") -> Iterator[Path]:
    """An empty home that is deleted at the end; the models that ``home`` has fetched are shared with it.

    Only for the length of a command: it sets ``INFERSCALE_MODELS_DIR`` of this process while it is open.

    Args:
        home: whose models folder to share; None takes the settings'.
        label: stands in the folder's name.
    """
    before = os.environ.get(_MODELS_DIR)
    os.environ[_MODELS_DIR] = str(load_settings(home).models_folder)
    try:
        # An engine that is still ending may write while the folder goes.
        with tempfile.TemporaryDirectory(prefix=f"inferscale-{label}-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        if before is None:
            del os.environ[_MODELS_DIR]
        else:
            os.environ[_MODELS_DIR] = before
