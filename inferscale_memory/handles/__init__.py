"""KV handles: opaque, signed, expiring names of an ordered list of facts in one scope."""

from inferscale_memory.handles.book import DEFAULT_TTL, HandleBook
from inferscale_memory.handles.records import HandleRecord, HandleRow
from inferscale_memory.handles.ring import SECRET_VARIABLE, SecretRing
from inferscale_memory.handles.text import find_handles, listed_handles, strip_handles

__all__ = [
    "DEFAULT_TTL",
    "SECRET_VARIABLE",
    "HandleBook",
    "HandleRecord",
    "HandleRow",
    "SecretRing",
    "find_handles",
    "listed_handles",
    "strip_handles",
]
