"""The disk tier: one file per chunk and rank, in a folder that scheduler, workers and clients share."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferscale_memory._extras import require
from inferscale_memory.errors import ChunkError, InvalidInputError, StoreError
from inferscale_memory.kv import codec, files
from inferscale_memory.kv.base import PutResult
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.keys import check_hex64

if TYPE_CHECKING:
    from torch import Tensor

STALE_SECONDS = 3600.0
_NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.r(?P<rank>\d+)of(?P<world>\d+)\.safetensors")


class StoreUsage(NamedTuple):
    """What a store holds."""

    chunks: int
    """Distinct keys."""
    files: int
    """Files: one per chunk and rank."""
    bytes: int
    """Their sizes, added up."""


class ChunkStore:
    """Chunks as files ``root/<fingerprint[:16]>/<key[:2]>/<key>.r<rank>of<world>.safetensors``.

    A :class:`~inferscale_memory.kv.base.ChunkTier`. Any number of processes may use one folder. Files are 0600 in
    folders 0700. Content is authenticated with ``root/store.key``, so a file that was changed, renamed or brought from
    another store is a miss. Files under way stand in ``root/.work``; what a crashed process left there is removed when
    a store is opened.

    Writes are not flushed to the disk: a chunk can be made again, and one torn by a power cut is recognised. Deletes
    are.

    Args:
        root: folder, created if missing.
        rank: tensor-parallel rank whose files ``get`` and ``put`` handle.
        world: number of ranks.

    Raises:
        StoreError: the folder cannot be used, or its key is exposed.
    """

    def __init__(self, root: Path, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise InvalidInputError(f"rank {rank} of {world}; wanted 0 <= rank < world.")
        self.root, self.rank, self.world = Path(root), rank, world
        self._work = self.root / ".work"
        self._counter = self.root / "generation"
        try:
            files.make_private_dirs(self.root)
            self._secret = files.load_secret(self.root, codec.SECRET_BYTES, self._counter)
        except OSError as error:
            raise StoreError(f"cannot use {self.root} as KV folder: {error}. Pass a folder you can write.") from error
        with contextlib.suppress(OSError):  # a read-only store still serves reads
            files.make_private_dir(self._work)
            self._sweep()

    def get(self, key: str, fingerprint: str) -> Chunk:
        """Read this rank's part of a chunk and verify it.

        The file is read once, whole, and the tensors are views of that buffer: a delete in another process makes this
        succeed or fail, never return zeros.

        Raises:
            ChunkError: missing, torn, changed, swapped, unreadable, or of another model or rank.
        """
        path = self._path(key, fingerprint)
        try:
            buffer = _read(path)
        except FileNotFoundError as error:
            raise ChunkError(f"chunk {key[:12]} is not in {self.root}. It is encoded again.") from error
        except (OSError, RuntimeError, MemoryError) as error:  # torch reports a failed allocation as RuntimeError
            raise ChunkError(f"chunk {key[:12]} cannot be read from {path}: {error}.") from error
        return codec.decode(buffer, self._secret, key=key, fingerprint=fingerprint, rank=self.rank, world=self.world)

    def find(self, key: str, fingerprint: str) -> Chunk | None:
        """``get``, with None for a miss of any kind."""
        try:
            return self.get(key, fingerprint)
        except ChunkError:
            return None

    def put(self, chunk: Chunk) -> PutResult:
        """Write this rank's part of a chunk, atomically: other processes see all of it or nothing.

        Raises:
            InvalidInputError: the chunk is of another rank than this store.
            StoreError: disk full or read-only; no temporary file is left.
        """
        if (chunk.rank, chunk.world) != (self.rank, self.world):
            raise InvalidInputError(
                f"chunk of rank {chunk.rank} of {chunk.world} put in a store of rank {self.rank} of {self.world}."
            )
        target = self._path(chunk.key, chunk.fingerprint)
        temp = self._work / f"{target.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
        try:
            files.make_private_dir(target.parent.parent)
            files.make_private_dir(target.parent)
            files.write_atomically(codec.encode(chunk, self._secret), temp, target)
        except OSError as error:
            raise StoreError(
                f"cannot write chunk {chunk.key[:12]} to {self.root}: {error}. Free space or choose another KV folder; "
                "until then its tokens are prefilled."
            ) from error
        return PutResult(stored=True)

    def exists(self, key: str, fingerprint: str | None = None) -> bool:
        """Whether every rank's file is there; content is not looked at.

        Args:
            key: of the chunk.
            fingerprint: spares a look into the folders of other models.
        """
        check_hex64("key", key)
        folders = self._models() if fingerprint is None else [self.root / check_hex64("fingerprint", fingerprint)[:16]]
        return any(
            all(os.path.exists(_file(folder, key, rank, self.world)) for rank in range(self.world))  # noqa: PTH110
            for folder in folders
        )

    def delete(self, keys: Iterable[str]) -> int:
        """Remove chunks of every model and rank: hidden first, then announced, then overwritten and unlinked.

        Whoever caches chunks in memory compares ``generation`` with the value it read *before* its ``get``. A process
        killed half-way leaves files that nobody can ``get``; the next store to be opened announces and wipes them.

        Returns:
            How many of the keys had a file.

        Raises:
            StoreError: a file could not be removed; all others have been.
        """
        wanted: dict[str, set[str]] = defaultdict(set)
        for key in keys:
            wanted[check_hex64("key", key)[:2]].add(key)
        failures: list[OSError] = []
        found: set[str] = set()
        tombs: list[Path] = []
        for entry, key in self._entries(wanted):
            if key not in wanted[key[:2]]:
                continue
            tomb = self._work / f"{entry.name}.{secrets.token_hex(8)}.del"
            try:
                os.replace(entry.path, tomb)  # noqa: PTH105
            except FileNotFoundError:
                continue  # another process was faster
            except OSError as error:
                failures.append(error)
                continue
            found.add(key)
            tombs.append(tomb)
        failures += self._bury(tombs)
        if failures:
            raise StoreError(
                f"{len(failures)} chunk files in {self.root} were not removed: {failures[0]}. Make it writable, retry."
            ) from failures[0]
        return len(found)

    def generation(self) -> int:
        """A number that grows with every delete, by any process. Costs one stat."""
        return files.read_counter(self._counter)

    def announce(self) -> None:
        """Raise the generation although no file was deleted: copies in memory that have no file are to be dropped.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            files.bump(self._counter)
        except OSError as error:
            raise StoreError(f"a deletion could not be announced in {self.root}: {error}. Make it writable.") from error

    def keys(self) -> list[str]:
        """Keys of all chunks, of any model, that are there for every rank of this store's world. Sorted."""
        ranks: dict[str, set[int]] = defaultdict(set)
        for entry, key in self._entries():
            match = _NAME.fullmatch(entry.name)
            if match and int(match["world"]) == self.world:
                ranks[key].add(int(match["rank"]))
        return sorted(key for key, present in ranks.items() if len(present) == self.world)

    def usage(self) -> StoreUsage:
        """Count what is on disk, of all models and ranks."""
        sizes, keys = [], set()
        for entry, key in self._entries():
            with contextlib.suppress(FileNotFoundError):
                sizes.append(entry.stat(follow_symlinks=False).st_size)
                keys.add(key)
        return StoreUsage(len(keys), len(sizes), sum(sizes))

    def check_integrity(self) -> None:
        """Verify every file of this rank. Reads all of them.

        Raises:
            StoreError: a file is not what its name says.
        """
        for entry, key in self._entries():
            match = _NAME.fullmatch(entry.name)
            if match and (int(match["rank"]), int(match["world"])) == (self.rank, self.world):
                try:
                    buffer = _read(Path(entry.path))
                except FileNotFoundError:
                    continue
                chunk = codec.decode(buffer, self._secret, key=key, fingerprint=None, rank=self.rank, world=self.world)
                if self._path(key, chunk.fingerprint) != Path(entry.path):
                    raise ChunkError(f"{entry.path} holds a chunk of model {chunk.fingerprint[:16]}.")

    def _path(self, key: str, fingerprint: str) -> Path:
        check_hex64("key", key)
        check_hex64("fingerprint", fingerprint)
        return Path(_file(self.root / fingerprint[:16], key, self.rank, self.world))

    def _models(self) -> list[Path]:
        try:
            with os.scandir(self.root) as entries:
                return [Path(entry.path) for entry in entries if len(entry.name) == 16 and entry.is_dir()]
        except FileNotFoundError:
            return []

    def _entries(self, prefixes: Iterable[str] | None = None) -> Iterator[tuple[os.DirEntry[str], str]]:
        """Every chunk file with its key; only those whose key begins with one of ``prefixes`` where given."""
        for model in self._models():
            folders = [model / prefix for prefix in prefixes] if prefixes is not None else sorted(model.iterdir())
            for folder in folders:
                try:
                    with os.scandir(folder) as scan:
                        entries = list(scan)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                for entry in entries:
                    if match := _NAME.fullmatch(entry.name):
                        yield entry, match["key"]

    def _bury(self, tombs: list[Path]) -> list[OSError]:
        """Announce that the chunks hidden as ``tombs`` are gone, then wipe them; returns what went wrong."""
        failures = []
        if tombs:
            try:
                files.bump(self._counter)
            except OSError as error:
                return [error]  # unannounced: leave the tombs, so that the next store to open announces them
        for tomb in tombs:
            try:
                files.wipe(tomb)
            except OSError as error:
                failures.append(error)
        return failures

    def _sweep(self) -> None:
        """Finish deletes that a process did not live to finish, and remove what dead writers left."""
        self._bury(list(self._work.glob("*.del")))
        for temp in self._work.glob("*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - temp.stat().st_mtime > STALE_SECONDS:
                    files.wipe(temp)


def _file(folder: Path, key: str, rank: int, world: int) -> str:
    return f"{folder}/{key[:2]}/{key}.r{rank}of{world}.safetensors"


def _read(path: Path) -> Tensor:
    """Read a whole file into one buffer, ``[size]`` uint8."""
    torch = require("torch", "cpu", "loading KV chunks")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        buffer = torch.empty(status.st_size, dtype=torch.uint8)
        view = memoryview(buffer.numpy())
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise OSError(f"{path} ended after {done} of {len(view)} bytes")
            done += count
    return buffer
