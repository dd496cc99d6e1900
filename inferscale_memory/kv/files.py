"""Files of the disk tier: written whole or not at all, owner-only, wiped before they go."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from inferscale_memory.errors import StoreError

_WIPE_BLOCK = 1 << 20


def make_private_dir(path: Path) -> None:
    """Create one folder, 0700; one that is there already is left as it is.

    Raises:
        OSError: it cannot be created, or something else has its name.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise


def make_private_dirs(path: Path) -> None:
    """Create a folder and the missing ones above it, all 0700: ``mkdir(parents=True)`` leaves those open to others.

    Raises:
        OSError: one cannot be created, or something else has its name.
    """
    if not path.is_dir():
        make_private_dirs(path.parent)
        make_private_dir(path)


def write_atomically(pieces: Iterable[bytes | memoryview], temp: Path, target: Path, *, durable: bool = False) -> None:
    """Write ``pieces`` to ``temp``, 0600, and rename it to ``target``; on any error ``temp`` is gone.

    Args:
        pieces: the content, in order.
        temp: a name nobody else uses, on the file system of ``target``.
        target: replaced if it exists.
        durable: whether the content must survive a power cut. Without it, one may leave an empty or torn file, never
            a mix of two.

    Raises:
        OSError: disk full, read-only, no such folder.
    """
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temp.replace(target)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


def wipe(path: Path) -> None:
    """Overwrite a file with zeros, on the disk and not only in its cache, then unlink it. A missing file is fine.

    Overwriting reaches the old blocks on file systems that write in place; on copy-on-write ones and on SSDs the
    controller may keep an older copy, which only disk encryption answers.

    Raises:
        OSError: it could not be overwritten or unlinked; unlinking is tried in any case.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            left = os.fstat(descriptor).st_size
            while left:
                left -= file.write(bytes(min(left, _WIPE_BLOCK))) or 0
            os.fdatasync(descriptor)
    finally:
        path.unlink(missing_ok=True)


def load_secret(root: Path, length: int, lock: Path) -> bytes:
    """Read ``root/store.key``; the first process to come creates it, 0600.

    Args:
        root: folder of the store.
        length: of the secret, in bytes.
        lock: file to lock while creating.

    Raises:
        StoreError: the key can be read by others, or has another length.
        OSError: it can neither be read nor created.
    """
    path = root / "store.key"
    if not path.exists():
        with locked(lock):
            if not path.exists():
                temp = root / f".store.key.{secrets.token_hex(8)}"
                write_atomically([secrets.token_bytes(length)], temp, path, durable=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StoreError(f"{path} can be read by others (mode {mode:04o}). Run: chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) != length:
        raise StoreError(
            f"{path} has {len(secret)} bytes, wanted {length}. Restore it, or remove it: "
            "every chunk is then encoded again."
        )
    return secret


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock between processes on ``path``, created 0600; yields its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def bump(path: Path) -> int:
    """Raise the counter file by one and return it.

    The counter is the file's *size*: one stat reads it exactly, whatever the granularity of the file system's clock,
    and since the file is sparse a full disk cannot stop it.
    """
    with locked(path) as descriptor:
        value = os.fstat(descriptor).st_size + 1
        os.ftruncate(descriptor, value)
    return value


def read_counter(path: Path) -> int:
    """The counter's value, 0 if it was never raised."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 (called once per engine step: no Path overhead)
    except FileNotFoundError:
        return 0
