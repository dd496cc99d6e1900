"""The quality profile of a memory: what each number of refreshed facts costs and saves, as ``inferscale tune`` found.

A file beside the database, keyed by model fingerprint and policy. It holds numbers and names, no text of anybody.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inferscale_memory.errors import StoreError
from inferscale_memory.kv.files import make_private_dirs, write_atomically

Metric = Literal["kl", "top1"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Point(_Frozen):
    """One measured setting: means over the questions, except for the median ``ttft_ms`` (milliseconds).

    ``kl`` is in nats per answer token, against full prefill of the same tokens; ``top1`` is a share. ``fact_tokens``
    are those of all ``k`` facts, ``refreshed_tokens`` those of the ones prefilled as text. A point with
    ``refresh == k`` is plain prompt injection.
    """

    k: int = Field(ge=1)
    refresh: int = Field(ge=0)
    fact_tokens: float = Field(ge=0)
    refreshed_tokens: float = Field(ge=0)
    ttft_ms: float = Field(gt=0)
    kl: float = Field(ge=0)
    top1: float = Field(ge=0, le=1)
    kl_ci: tuple[float, float] | None = None

    def error(self, metric: Metric) -> float:
        """Distance from full prefill by a metric; 0 is none."""
        return self.kl if metric == "kl" else 1.0 - self.top1


class Bound(_Frozen):
    """How far answers may be from those of full prefill: a mean KL of at most ``value``, or a top-1 of at least it."""

    metric: Metric
    value: float = Field(ge=0)

    @property
    def error(self) -> float:
        """The bound as a distance from full prefill; 0 is none."""
        return self.value if self.metric == "kl" else 1.0 - self.value

    def __str__(self) -> str:
        return f"mean KL of at most {self.value:g}" if self.metric == "kl" else f"top-1 of at least {self.value:g}"


class Profile(_Frozen):
    """What was measured of one model and policy; ``bound`` is what ``refresh="auto"`` keeps if it is told nothing."""

    fingerprint: str
    policy: str
    model: str
    engine: str
    measured_at: str
    questions: int = Field(ge=1)
    bound: Bound
    tokens_per_character: float = Field(gt=0)
    points: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _starts_with_none_refreshed(self) -> Profile:
        if missing := {point.k for point in self.points} - {point.k for point in self.points if point.refresh == 0}:
            raise ValueError(f"no point of refresh 0 for k={sorted(missing)}")
        return self


class Profiles(_Frozen):
    """Every profile of a memory."""

    version: Literal[1] = 1
    profiles: tuple[Profile, ...] = ()

    def find(self, policy: str, fingerprint: str | None) -> Profile | None:
        """The profile of a policy and a model; without a model the only one of the policy, if there is just one."""
        found = [one for one in self.profiles if one.policy == policy and fingerprint in (None, one.fingerprint)]
        return found[0] if len(found) == 1 else None


def read_profiles(file: Path) -> Profiles:
    """Read a file; one that is not there holds no profile.

    Raises:
        StoreError: it cannot be read, or is not one of this version.
    """
    try:
        return Profiles.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValidationError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error.errors()[0]["msg"])
        raise StoreError(
            f"the quality profile {file} cannot be used: {said}. Delete it and run inferscale tune again."
        ) from error


def write_profiles(file: Path, new: tuple[Profile, ...]) -> None:
    """Put profiles in the place of those of the same model and policy; the others stay. Whole or not at all.

    Raises:
        StoreError: the file cannot be written, or what is there cannot be read.
    """
    replaced = {(one.fingerprint, one.policy) for one in new}
    kept = [one for one in read_profiles(file).profiles if (one.fingerprint, one.policy) not in replaced]
    text = Profiles(profiles=(*kept, *new)).model_dump_json(indent=1) + "\n"
    try:
        make_private_dirs(file.parent)
        write_atomically([text.encode()], file.with_name(f".{file.name}.{secrets.token_hex(8)}.partial"), file)
    except OSError as error:
        raise StoreError(f"the quality profile {file} cannot be written: {error.strerror or error}.") from error
