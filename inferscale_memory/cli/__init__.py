"""The ``inferscale`` command. Each module holds one group of commands; ``app`` puts them together."""

from __future__ import annotations

from inferscale_memory.cli.app import app, main

__all__ = ["app", "main"]
