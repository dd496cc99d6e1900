"""Which memories are open in this process: an object that was saved without its memory finds it again here."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

from inferscale_memory.scope import digest

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory

_lock = threading.Lock()
_opened: dict[int, weakref.ref[Memory]] = {}


def note_opened(memory: Memory) -> None:
    """A memory was opened. Nothing here keeps it alive."""
    with _lock:
        for key in [key for key, known in _opened.items() if known() is None]:
            del _opened[key]
        _opened[id(memory)] = weakref.ref(memory)


def open_memories(place: str | None = None) -> list[Memory]:
    """The memories that are open now, the newest last.

    Args:
        place: only those of this ``Memory.place``.
    """
    return [memory for memory in _living() if not memory.closed and place in (None, memory.place)]


def place_of(database: str) -> str:
    """Names a database without telling where it is: 32 hex digits, of the URL without its password."""
    return digest("place", make_url(database).set(password=None).render_as_string())[:32]


def _living() -> Iterator[Memory]:
    with _lock:
        known = [reference() for reference in _opened.values()]
    return (memory for memory in known if memory is not None)
