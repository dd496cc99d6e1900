"""Run by the tests in a process of its own: put and delete one chunk over and over, then leave another behind."""

from __future__ import annotations

import sys
from pathlib import Path

from conftest import build_chunk

from inferscale_memory.kv import ChunkStore


def main(root: str, rounds: int, last: int) -> None:
    store, chunk = ChunkStore(Path(root)), build_chunk(shape=(4, 16, 2, 64))
    print("ready", flush=True)
    for _ in range(rounds):
        store.put(chunk)
        store.delete([chunk.key])
    store.put(build_chunk(last))
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
