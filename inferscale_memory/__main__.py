"""``python -m inferscale_memory``: the ``inferscale`` command, where its script is not on the path."""

from __future__ import annotations

from inferscale_memory.cli import main

if __name__ == "__main__":
    main()
