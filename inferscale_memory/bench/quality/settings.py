"""What is compared: encoding policies and numbers of refreshed facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from inferscale_memory.config import load_settings
from inferscale_memory.encoding.policies import parse_policy
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.quality.refresh import untuned_refresh

DEFAULT = "default"
ALL: Final = "k"
"""As a refresh: every fact, which is plain prompt injection."""
AUTO: Final = "auto"
"""As a refresh: by the number of facts, as a memory does that no profile was measured for."""
Refresh = int | Literal["k", "auto"]


@dataclass(frozen=True)
class Setting:
    """A policy by its canonical name, and how many of the best facts are prefilled as text."""

    policy: str
    refresh: Refresh

    def refreshed(self, k: int) -> int:
        """How many of ``k`` facts are prefilled."""
        if self.refresh == AUTO:
            return untuned_refresh(k)
        return k if self.refresh == ALL else min(int(self.refresh), k)

    def at(self, k: int) -> Setting:
        """The same with a number in the place of ``auto``."""
        return Setting(self.policy, self.refreshed(k)) if self.refresh == AUTO else self

    @property
    def name(self) -> str:
        """For tables and plots."""
        return f"{self.policy}, refresh {self.refresh}"

    def is_default(self, k: int) -> bool:
        """Whether this is what the library does with ``k`` facts when nobody says anything."""
        return self.at(k) == default_setting().at(k)


def default_setting() -> Setting:
    """What a memory does when nobody says anything."""
    settings = load_settings()
    return Setting(parse_policy(settings.policy).name, ALL if settings.refresh == "all" else settings.refresh)


def parse_settings(policies: Sequence[str], refreshes: Sequence[str]) -> list[Setting]:
    """Cross policies with refreshes; ``default`` stands for the library's own pair and is not crossed.

    Args:
        policies: such as ``none``, ``preceding:20:turn`` or ``default``.
        refreshes: numbers, ``k`` for plain prompt injection, or ``auto``.

    Returns:
        Each setting once, in the order given.

    Raises:
        InvalidInputError: one is unknown, or encodes nothing beforehand, or none is given.
    """
    counts = [_refresh(text) for text in refreshes]
    found: dict[Setting, None] = {}
    for text in policies:
        if text.strip() == DEFAULT:
            found[default_setting()] = None
            continue
        policy = compared_policy(text)
        found.update((Setting(policy, refresh), None) for refresh in counts)
    if not found:
        raise InvalidInputError("there is nothing to measure: give at least one policy and one refresh.")
    return list(found)


def compared_policy(text: str) -> str:
    """Canonical name of a policy that can be compared.

    Raises:
        InvalidInputError: it is unknown, or encodes nothing beforehand.
    """
    policy = parse_policy(text)
    if policy.positional:
        raise InvalidInputError("the policy 'prefix' is exact and encodes nothing beforehand; leave it out.")
    return policy.name


def _refresh(text: str) -> Refresh:
    wanted = text.strip()
    if wanted == ALL:
        return "k"
    if wanted == AUTO:
        return "auto"
    if not (wanted.isascii() and wanted.isdigit()):
        raise InvalidInputError(
            f"refresh {text!r} is neither a number of facts nor {ALL!r} for all of them nor {AUTO!r}."
        )
    return int(wanted)
