"""What a memory is opened with, looked at before anything is touched: folder, database, secret, embedder, index."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import make_url

from inferscale_memory.config import Settings
from inferscale_memory.db import open_database
from inferscale_memory.errors import ConfigError, StoreError
from inferscale_memory.handles import SECRET_VARIABLE, SecretRing
from inferscale_memory.retrieval.factory import INDEX_KINDS


def open_folder_database(settings: Settings) -> Engine:
    """Make the memory's folder and open its database."""
    try:
        settings.memory_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the memory's folder {settings.memory_folder} cannot be made: {error.strerror or error}. "
            "Give home= (or INFERSCALE_HOME) a folder that can be written."
        ) from error
    database = open_database(settings.database)
    if database.dialect.name == "sqlite" and make_url(settings.database).database in (None, "", ":memory:"):
        raise ConfigError(
            "a SQLite database in memory is a different one in every thread. Leave database_url out and give home= a "
            "temporary folder."
        )
    return database


def load_secrets(given: bytes | None, settings: Settings) -> SecretRing:
    """The secret that is given, that of the settings, or the one kept in the memory's folder."""
    if given is not None:
        return SecretRing(given)
    named = {} if settings.secret is None else {SECRET_VARIABLE: settings.secret.get_secret_value()}
    return SecretRing.load(settings.memory_folder, named)


def check_same_folder(engine: Path, memory: Path) -> None:
    """The engine's workers write chunks where the memory looks for them, through symbolic links or not."""
    if engine.resolve() != memory.resolve():
        raise ConfigError(
            f"the engine keeps its KV in {engine}, this memory in {memory}: give both the same home, or leave the "
            "memory's out."
        )


def check_embedder(given: object) -> None:
    """Refuse what cannot be an embedder.

    Raises:
        ConfigError: it is none.
    """
    if not (given is None or isinstance(given, str) or is_embedder(given) or callable(given)):
        raise ConfigError(
            f"embedder is a {type(given).__name__}; give a function from texts to vectors, an object with embed(), or "
            "the name of a model."
        )


def check_index(given: object) -> None:
    """Refuse a name that no index has now, not at the first question."""
    if isinstance(given, str) and given not in INDEX_KINDS:
        raise ConfigError(f"no vector index is called {given!r}; want one of {', '.join(INDEX_KINDS)}.")


def is_embedder(given: object) -> bool:
    """Whether it has an embedder's method."""
    # Not isinstance: that reads id and dim, for which an embedder may have to load its model.
    return callable(getattr(given, "embed", None))
