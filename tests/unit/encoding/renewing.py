"""What the tests of re-encoding share: a world of nearest neighbours, and ways to catch it at work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from plumbing import ALICE, World
from sqlalchemy import select

from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.tables import ChunkRow
from inferscale_memory.scope import Scope

WAIT = 30.0


def nearest_world(opened: Callable[..., World]) -> World:
    """Two nearest neighbours each; nothing is encoded again but in a flush."""
    return opened("nearest:2", reencode=Pace(1e-9))


def settled(world: World, *texts: str, scope: Scope = ALICE):
    """Save, and wait until nothing is left to do."""
    facts = world.save(*texts, scope=scope)
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.engine.texts.clear()
    return facts


def mark_stale(world: World, *facts) -> None:
    with world.store.transaction() as tx:
        for row in tx.scalars(select(ChunkRow).where(ChunkRow.fact_id.in_([fact.id for fact in facts]))):
            row.stale = True


def hold(world: World, text: str):
    """Hold the encode of ``text`` after its file is written: (it is there, let it go)."""
    written, released = threading.Event(), threading.Event()

    def wait(encoded):
        if encoded == text and not released.is_set():
            written.set()
            assert released.wait(WAIT)

    world.engine.after = wait
    return written, released


def in_background(world: World) -> threading.Thread:
    flush = threading.Thread(target=world.encoder.flush, args=(WAIT,))
    flush.start()
    return flush
