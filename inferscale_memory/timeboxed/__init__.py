"""Searches with a time limit: what keeps a memory that does not answer from stopping the application it helps."""

from inferscale_memory.timeboxed.outage import Outage
from inferscale_memory.timeboxed.recalls import Recall, Recalls

__all__ = ["Outage", "Recall", "Recalls"]
