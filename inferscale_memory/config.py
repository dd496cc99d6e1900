"""Settings, read once from ``INFERSCALE_*`` environment variables; arguments of a call always win over them."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_cache_dir, user_data_dir
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from inferscale_memory.budget import MemoryBudget
from inferscale_memory.errors import ConfigError
from inferscale_memory.quality import PRESETS, Preset, Quality, RefreshField, TtftBudget

ENV_PREFIX = "INFERSCALE_"
APP = "inferscale"
SENSITIVE = frozenset({"secret", "database_url"})
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
MAX_TTL = 10 * 365 * 86_400.0


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _budget(given: str | int) -> str:
    MemoryBudget.parse(given)
    return str(given)


def _ttft_budget(given: str) -> str:
    TtftBudget.parse(given)
    return given


Budget = Annotated[str, BeforeValidator(_budget)]
TimeBudget = Annotated[str, BeforeValidator(_ttft_budget)]
FolderPath = Annotated[Path, AfterValidator(_absolute)]


class Settings(BaseSettings):
    """Where things are kept and what is used when a call does not say.

    Models can be fetched again, a memory cannot: without ``INFERSCALE_HOME`` the models lie under the user's *cache*
    folder and memories under the user's *data* folder, which clean-up tools leave alone. With it, both lie in there.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    home: FolderPath | None = Field(
        None, description="One folder for everything: models/ and memory/. Default: the user's cache and data folders."
    )
    models_dir: FolderPath | None = Field(
        None, description="Folder of the fetched models, shared by every home. Default: models/ of the home."
    )
    database_url: str | None = Field(
        None, description="SQLAlchemy URL of facts, handles and jobs. Default: SQLite, facts.db in the memory folder."
    )
    model: str = Field("demo", min_length=1, description="Model of the engine: a demo model, a folder or a hub id.")
    embedder: str = Field(
        DEFAULT_EMBEDDER, min_length=1, description="Embedding model of the search: a demo model, a folder or a hub id."
    )
    index: str = Field("auto", min_length=1, description="Vector index: auto, torch or faiss.")
    policy: str = Field(
        "ladder:5:8:20",
        min_length=1,
        description="What a fact is encoded behind: none, preamble, prefix, preceding:N:fact, preceding:N:turn, "
        "nearest:N, mixed:N:M or session:N, where a budget of tokens may follow, as in nearest:10:400t; or ladder:N:M, "
        "several chunks of each fact, of which a prompt takes the one for its place. preceding:5:fact takes a quarter "
        "of the default's disk and a sixth of its time to encode.",
    )
    reencode_rate: float = Field(
        1.0,
        ge=0,
        description="Chunks a second, at most, that are encoded again in the background because facts saved since are "
        "more like theirs; fewer where that would take more than a fifth of the time. A flush waits for them and does "
        "not keep to it. 0 is never.",
    )
    k: int = Field(10, ge=1, description="Facts recalled per question.")
    refresh: RefreshField = Field(
        "auto",
        description="How many best-ranked facts are prefilled as text behind the others: a number, all (plain prompt "
        "injection), or auto (as few as the profile allows that inferscale tune has measured; without one a third, at "
        "most 3, of 5 to 20 facts, and none of fewer or more).",
    )
    quality: Quality | None = Field(
        None,
        description="exact, balanced or fast, in place of the defaults of policy and refresh; where one of these is "
        "set beside it, that one counts.",
    )
    ttft_budget: TimeBudget | None = Field(
        None,
        description="What refresh=auto may cost: time to the first token, 150ms or 0.2s, or 1.25x that of refresh 0.",
    )
    kl_target: float | None = Field(
        None, gt=0, description="What refresh=auto aims at: mean KL divergence to full prefill, in nats per token."
    )
    order: Literal["sticky", "ranked"] = Field(
        "sticky",
        description="Order of facts in a prompt: sticky keeps those of the scope's last question in front, in place; "
        "ranked has the best last.",
    )
    handle_ttl: float = Field(
        86_400.0, ge=1, le=MAX_TTL, description="Shortest life of a KV handle in seconds; the longest is twice that."
    )
    secret: SecretStr | None = Field(
        None, description="Signs handles and derives salts, 32 bytes or more. Default: made once, kept in secret_file."
    )
    secret_grace: float = Field(
        86_400.0, ge=0, description="Seconds for which a rotated-out secret still opens handles."
    )
    arena: Budget = Field(
        "1GiB",
        description="Memory on the engine's device that each worker keeps chunks in: 2GiB, 15% (of the device, or of "
        "the machine on a CPU), or bytes; 0 switches injection off.",
    )
    host_cache: Budget | None = Field(
        None,
        description="Host memory behind it, for what the arena has no room for. Default: 4GiB on CUDA, none on a CPU, "
        "where both are the same memory.",
    )
    near_duplicate: float = Field(
        0.95, gt=0, le=1, description="Cosine similarity from which two facts share one slot of a recall."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A preset takes the place of defaults, not of what is set beside it."""
        preset = PRESETS.get(given.get("quality"))  # type: ignore[arg-type]  # a word that is none is refused later
        return given if preset is None else {**_settings_of(preset), **given}

    @property
    def models_folder(self) -> Path:
        """Folder of the fetched models; not created here."""
        if self.models_dir is not None:
            return self.models_dir
        return (self.home or Path(user_cache_dir(APP, appauthor=False))) / "models"

    @property
    def memory_folder(self) -> Path:
        """Folder of ``facts.db``, ``kv/`` and ``secret``: data, not cache; not created here."""
        return (self.home or Path(user_data_dir(APP, appauthor=False))) / "memory"

    @property
    def kv_folder(self) -> Path:
        """Folder of the chunk files."""
        return self.memory_folder / "kv"

    @property
    def secret_file(self) -> Path:
        """File of the secret that signs handles and derives salts."""
        return self.memory_folder / "secret"

    @property
    def quality_file(self) -> Path:
        """File of the quality profiles that ``inferscale tune`` writes."""
        return self.memory_folder / "quality.json"

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the database, the default filled in."""
        return self.database_url or f"sqlite:///{self.memory_folder / 'facts.db'}"


def _settings_of(preset: Preset) -> dict[str, Any]:
    return {name: value for name, value in preset._asdict().items() if value is not None}


def load_settings(
    home: Path | str | None = None, *, database_url: str | None = None, quality: Quality | None = None
) -> Settings:
    """Settings of the environment, with the given ones in their place.

    Args:
        home: as ``INFERSCALE_HOME``; None takes the environment's.
        database_url: as ``INFERSCALE_DATABASE_URL``; None takes the environment's.
        quality: as ``INFERSCALE_QUALITY``, but its preset goes before ``INFERSCALE_POLICY`` and ``INFERSCALE_REFRESH``
            too, as an argument does; None takes the environment's.

    Raises:
        ConfigError: a value is of the wrong kind or out of range; the message names the variable.
    """
    given = {"home": home, "database_url": database_url, "quality": quality}
    if quality in PRESETS:
        given |= _settings_of(PRESETS[quality])  # type: ignore[index]  # not None
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        if name in SENSITIVE:  # neither the message nor the chained error may show it
            raise ConfigError(f"{ENV_PREFIX}{name.upper()} cannot be used: {first['msg']}.") from None
        raise ConfigError(f"{ENV_PREFIX}{name.upper()}={first['input']!r} cannot be used: {first['msg']}.") from error


def unknown_variables() -> dict[str, str | None]:
    """``INFERSCALE_*`` variables that no setting reads, each with the setting it was perhaps meant to be."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    strange = sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    return {name: next(iter(difflib.get_close_matches(name.upper(), known, n=1)), None) for name in strange}
