"""A memory of its own for a demonstration or a measurement, beside the user's models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferscale_memory.config import ENV_PREFIX, load_settings

_MODELS_DIR = f"{ENV_PREFIX}MODELS_DIR"
_DATABASE_URL = f"{ENV_PREFIX}DATABASE_URL"


@contextmanager
def throwaway_home(home: Path | str | None = None, *, label: str = "memory") -> Iterator[Path]:
    """An empty home that is deleted at the end; the models that ``home`` has fetched are shared with it.

    Only for the length of a command: while it is open this process's ``INFERSCALE_MODELS_DIR`` is set, and
    ``INFERSCALE_DATABASE_URL`` is not, which would lead to the user's own facts from any home.

    Args:
        home: whose models folder to share; None takes the settings'.
        label: stands in the folder's name.
    """
    before = {name: os.environ.get(name) for name in (_MODELS_DIR, _DATABASE_URL)}
    os.environ[_MODELS_DIR] = str(load_settings(home).models_folder)
    os.environ.pop(_DATABASE_URL, None)
    try:
        # An engine that is still ending may write while the folder goes.
        with tempfile.TemporaryDirectory(prefix=f"inferscale-{label}-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
