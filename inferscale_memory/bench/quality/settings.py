"""What is compared: encoding policies and numbers of refreshed facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from inferscale_memory.config import Settings, load_settings
from inferscale_memory.encoding.policies import parse_policy
from inferscale_memory.errors import InvalidInputError

DEFAULT = "default"
ALL: Final = "k"
"""As a refresh: every fact, which is plain prompt injection."""
Refresh = int | Literal["k"]


@dataclass(frozen=True)
class Setting:
    """A policy by its canonical name, and how many of the best facts are prefilled as text."""

    policy: str
    refresh: Refresh

    def refreshed(self, k: int) -> int:
        """How many of ``k`` facts are prefilled."""
        return k if self.refresh == ALL else min(int(self.refresh), k)

    @property
    def name(self) -> str:
        """For tables and plots."""
        return f"{self.policy}, refresh {self.refresh}"

    @property
    def is_default(self) -> bool:
        """Whether these are the library's defaults."""
        return self == default_setting()


def default_setting() -> Setting:
    """What a memory does when nobody says anything."""
    settings = load_settings()
    refresh = settings.refresh
    if refresh == "auto":  # as a memory does that no profile was measured for
        refresh = Settings.model_fields["refresh"].default
    return Setting(parse_policy(settings.policy).name, ALL if isinstance(refresh, str) else refresh)


def parse_settings(policies: Sequence[str], refreshes: Sequence[str]) -> list[Setting]:
    """Cross policies with refreshes; ``default`` stands for the library's own pair and is not crossed.

    Args:
        policies: such as ``none``, ``preceding:20:turn`` or ``default``.
        refreshes: numbers, or ``k`` for plain prompt injection.

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
    if not (wanted.isascii() and wanted.isdigit()):
        raise InvalidInputError(f"refresh {text!r} is neither a number of facts nor {ALL!r} for all of them.")
    return int(wanted)
