"""What is measured is written down at once, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_memory.errors import StoreError


class Journal:
    """Measurements by a key that names everything they depend on; JSON objects, one a line.

    A line that a crash cut short is passed over. Of two lines with one key the later counts.

    Args:
        file: made when the first line is written; None keeps everything in memory.

    Raises:
        StoreError: the file is there but cannot be read.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._known: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            self._read(file)

    def _read(self, file: Path) -> None:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error}. Remove it to measure anew.") from error
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("key"), str):
                self._known[entry.pop("key")] = entry

    def get(self, key: str) -> dict[str, Any] | None:
        """What was measured under a key."""
        return self._known.get(key)

    def write(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep a measurement; it is in the file when this returns.

        Raises:
            StoreError: it cannot be written.
        """
        self._known[key] = dict(found)
        if self.file is None:
            return
        line = json.dumps({"key": key, **found}, ensure_ascii=True) + "\n"
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a+b") as file:
                # Behind a line that was cut short a new one begins.
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read(1) == b"\n" else f"\n{line}"
                file.write(line.encode())
        except OSError as error:
            raise StoreError(f"{self.file} cannot be written: {error}. Free space, or give --keep a folder.") from error
