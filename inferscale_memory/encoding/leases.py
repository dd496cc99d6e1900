"""Which encoding processes are alive, so that the work of a dead one is taken over and that of a live one is not."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from inferscale_memory.encoding.tables import EncodeLeaseRow

LEASE = timedelta(seconds=60)
"""A lease that was not renewed for this long is over."""


def new_owner() -> str:
    """A name for this process's part in encoding: host, process id and a nonce."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}:{secrets.token_hex(8)}"


def renew(tx: Session, owner: str) -> None:
    """Prolong the lease of ``owner``, or begin it."""
    now = datetime.now(UTC)
    done = tx.execute(update(EncodeLeaseRow).where(EncodeLeaseRow.owner == owner).values(renewed_at=now))
    if not done.rowcount:  # type: ignore[attr-defined]  # a CursorResult for UPDATE
        tx.add(EncodeLeaseRow(owner=owner, renewed_at=now))
        tx.flush()


def release(tx: Session, owner: str) -> None:
    """End the lease of ``owner``; what it left pending is taken over at once."""
    tx.execute(delete(EncodeLeaseRow).where(EncodeLeaseRow.owner == owner))


def live_owners(tx: Session) -> list[str]:
    """Owners whose lease runs and whose process, where it ran on this host, still exists."""
    fresh = select(EncodeLeaseRow.owner).where(EncodeLeaseRow.renewed_at > datetime.now(UTC) - LEASE)
    return [owner for owner in tx.scalars(fresh) if process_exists(owner)]


def process_exists(owner: str) -> bool:
    """Whether the process of ``owner`` may be alive: False only if it is known to be dead.

    Without this, a restart would wait for the old lease to end.
    """
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname()[:200]:
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
