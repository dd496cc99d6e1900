"""The server secrets that sign handles and salts: kept in an owner-only file, shared by processes, rotatable."""

from __future__ import annotations

import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from filelock import FileLock

from inferscale_memory.errors import ConfigError, InvalidInputError

SECRET_VARIABLE = "INFERSCALE_SECRET"
MIN_SECRET_BYTES = 32


@dataclass(frozen=True)
class _Entry:
    secret: bytes
    until: datetime | None  # None: the current one


class SecretRing:
    """The current secret, and earlier ones that still verify until their grace ends.

    A ring on a file is created on first use with mode 0600 and shared by every process that names the same path: a
    rotation by one is seen by the others at their next call. A ring from bytes lives in this process only.
    """

    def __init__(self, secret: bytes | None = None, *, path: Path | None = None) -> None:
        """Open a ring.

        Args:
            secret: the secret itself, at least 32 bytes.
            path: a file to read it from, created if missing. Exactly one of the two is given.

        Raises:
            ConfigError: the secret is too short, or the file is readable by others, damaged or cannot be written.
        """
        if (secret is None) == (path is None):
            raise ConfigError("a SecretRing takes either secret= or path=, exactly one of them.")
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._entries: tuple[_Entry, ...] = ()
        if secret is not None:
            self._entries = (_Entry(_checked(secret, "secret="), None),)
        else:
            self._refresh()

    @classmethod
    def load(cls, home: Path, environ: Mapping[str, str] | None = None) -> SecretRing:
        """The ring of an installation: ``INFERSCALE_SECRET`` where set, else the file ``home/secret``."""
        value = (os.environ if environ is None else environ).get(SECRET_VARIABLE)
        if value is None:
            return cls(path=home / "secret")
        return cls(_checked(value.encode("utf-8", "surrogateescape"), SECRET_VARIABLE))

    def current(self) -> bytes:
        """The secret that signs."""
        with self._lock:
            self._refresh()
            return self._entries[0].secret

    def accepted(self, now: datetime | None = None) -> tuple[bytes, ...]:
        """The secrets that verify: the current one first, then those whose grace has not ended at ``now``."""
        now = now or datetime.now(UTC)
        with self._lock:
            self._refresh()
            return tuple(entry.secret for entry in self._entries if entry.until is None or entry.until > now)

    def rotate(self, grace: timedelta, *, secret: bytes | None = None, now: datetime | None = None) -> None:
        """Make a new secret the current one; the one before it verifies for ``grace`` more.

        Args:
            grace: how long handles signed before stay good; zero ends them at once. A grace of at least the handles'
                longest life (twice their ttl) loses none.
            secret: the new secret; random where left out.
            now: the time of the rotation, for tests.

        Raises:
            InvalidInputError: ``grace`` is negative.
            ConfigError: the new secret is too short, or the file cannot be written.
        """
        if grace < timedelta(0):
            raise InvalidInputError(f"grace is {grace}; give zero or more, such as timedelta(days=2).")
        now = now or datetime.now(UTC)
        fresh = _Entry(secrets.token_bytes(32) if secret is None else _checked(secret, "secret="), None)
        with self._lock:
            if self._path is None:
                self._entries = _rotated(self._entries, fresh, now, grace)
                return
            with _locked(self._path):
                self._refresh(locked=True)
                _write(self._path, _rotated(self._entries, fresh, now, grace), replace=True)
            self._refresh()

    def _refresh(self, *, locked: bool = False) -> None:
        """Read the file if it changed since the last look; create it if there is none and never was one."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if self._entries:
                # Somebody removed it under a running server: going on with the known secret loses no handle.
                return
            self._create(locked)
            found = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, error) from error
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._stamp:
            self._entries = _read(self._path)
            self._stamp = stamp

    def _create(self, locked: bool) -> None:
        assert self._path is not None
        fresh = (_Entry(secrets.token_bytes(32), None),)
        if locked:
            _write(self._path, fresh, replace=False)
            return
        with _locked(self._path):
            _write(self._path, fresh, replace=False)


def _checked(secret: object, source: str) -> bytes:
    if not isinstance(secret, bytes):
        raise ConfigError(f"{source} is a {type(secret).__name__}, bytes are needed; such as text.encode().")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"{source} has {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed. "
            "Make one with: openssl rand -hex 32"
        )
    return secret


def _rotated(entries: tuple[_Entry, ...], fresh: _Entry, now: datetime, grace: timedelta) -> tuple[_Entry, ...]:
    # A secret already in its grace keeps its own end: a later, longer grace must not revive it.
    previous = (_Entry(entry.secret, now + grace if entry.until is None else entry.until) for entry in entries)
    return (fresh, *(entry for entry in previous if entry.until is not None and entry.until > now))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(path.with_name(path.name + ".lock"), timeout=30, mode=0o600)
        lock.acquire()
    except OSError as error:  # filelock's Timeout is one
        raise ConfigError(
            f"the folder {path.parent} cannot hold the secret file: {error}. "
            f"Make it writable, or set the secret by the environment variable {SECRET_VARIABLE}."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _read(path: Path) -> tuple[_Entry, ...]:
    try:
        with path.open("rb") as file:
            # The mode of the open file, not of the path: the path may be swapped in between.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"the secret file {path} has mode {mode:04o}: others may read or change it, wanted 0600. Run: "
                    f"chmod 600 {path}; if others may have read it, rotate the secret too."
                )
            raw = json.loads(file.read())
        entries = tuple(
            _Entry(
                _checked(bytes.fromhex(item["secret"]), f"a secret in {path}"),
                None if item["until"] is None else datetime.fromisoformat(item["until"]),
            )
            for item in raw["secrets"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the secret file {path} is damaged ({type(error).__name__}: {error}). Restore it from a backup, or "
            "remove it: a new one is made, and handles given out before stop resolving."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if [entry.until is None for entry in entries] != [True] + [False] * (len(entries) - 1):
        raise ConfigError(
            f"the secret file {path} names {len(entries)} secrets, of which not just the first is current."
        )
    return entries


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the secret file {path} cannot be read: {error}. Make it readable for this user, or set the secret by the "
        f"environment variable {SECRET_VARIABLE}."
    )


def _write(path: Path, entries: tuple[_Entry, ...], *, replace: bool) -> None:
    """Put the file in place whole and owner-only from its first byte; without ``replace`` an existing one wins."""
    items = [{"secret": e.secret.hex(), "until": None if e.until is None else e.until.isoformat()} for e in entries]
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"version": 1, "secrets": items}, file)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                _link_if_absent(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the secret file {path} cannot be written: {error}. Make room or make the folder writable, or set the "
            f"secret by the environment variable {SECRET_VARIABLE}."
        ) from error


def _link_if_absent(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    except OSError:
        # No hard links on this file system; the caller holds the lock, so looking first is safe.
        if not path.exists():
            temporary.replace(path)
