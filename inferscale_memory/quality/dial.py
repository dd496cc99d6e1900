"""How many facts of a question are prefilled as text, in a memory with its model, policy and settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_memory.config import Settings
from inferscale_memory.encoding.policies import parse_policy
from inferscale_memory.errors import InferScaleError, StoreError
from inferscale_memory.quality.curves import choose_refresh
from inferscale_memory.quality.profile import Profile, Profiles, read_profiles
from inferscale_memory.quality.refresh import Refresh, check_refresh, untuned_refresh
from inferscale_memory.quality.targets import TtftBudget

if TYPE_CHECKING:
    from inferscale_memory.facts import Fact
    from inferscale_memory.retrieval import ScoredFact

logger = logging.getLogger(__name__)


class Dial:
    """Turns ``refresh`` as a call gives it into a number of facts. Safe to use from several threads.

    Args:
        settings: of the memory.
        policy: name of its encoding policy.
        fingerprint: of the engine's model; None without an engine.
        count: tokens of a fact; None without an engine, then they are estimated from its characters.
    """

    def __init__(
        self,
        settings: Settings,
        policy: str,
        fingerprint: str | None = None,
        count: Callable[[Fact], int] | None = None,
    ) -> None:
        self._settings, self._policy, self._fingerprint, self._count = settings, policy, fingerprint, count
        self._exact = parse_policy(policy).positional
        self._budget = None if settings.ttft_budget is None else TtftBudget.parse(settings.ttft_budget)
        self._profiles = _Kept(settings.quality_file)
        self._told = False
        self._lock = threading.Lock()

    def given(self, refresh: Refresh | None) -> Refresh:
        """What a call means, checked: None is the setting.

        Raises:
            InvalidInputError: it is no refresh.
        """
        return self._settings.refresh if refresh is None else check_refresh(refresh)

    def refresh(self, given: Refresh | None, found: Sequence[ScoredFact]) -> int:
        """How many of the facts that were found, best first, are prefilled as text; 0 to ``len(found)``.

        ``"auto"`` without a profile of this model and policy is the setting of the memory, or where that is ``"auto"``
        itself ``untuned_refresh``: a question does not fail because nobody has tuned. One warning is given where a
        budget or a target is set that cannot be kept then. Under an exact policy ``"auto"`` refreshes nothing.

        Raises:
            InvalidInputError: ``given`` is no refresh.
        """
        wanted = self.given(refresh=given)
        if wanted == "auto" and self._exact:
            return 0
        if wanted == "auto" and found:
            profile = self._profile()
            if profile is not None:
                tokens = [self._tokens(one.fact, profile) for one in found]
                return choose_refresh(profile, tokens, self._budget, self._settings.kl_target)
            wanted = self._settings.refresh
            if wanted == "auto":
                return untuned_refresh(len(found))
        return len(found) if isinstance(wanted, str) else min(wanted, len(found))

    def _tokens(self, fact: Fact, profile: Profile) -> float:
        if self._count is not None:
            try:
                return float(self._count(fact))
            except InferScaleError as error:  # told again, and with its consequences, when the prompt is made
                logger.debug("the tokens of fact %s are estimated: %s", fact.id, error)
        return profile.tokens_per_character * len(fact.text)

    def _profile(self) -> Profile | None:
        try:
            found = self._profiles.read().find(self._policy, self._fingerprint)
        except StoreError as error:
            self._tell(str(error))
            return None
        if found is None and (self._budget is not None or self._settings.kl_target is not None):
            self._tell("there is none of this model and policy")
        return found

    def _tell(self, reason: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.warning(
                "refresh='auto' has no quality profile to go by: %s (policy %s). No budget and no target is kept. "
                "inferscale tune --write measures a profile.",
                reason,
                self._policy,
            )


class _Kept:
    """A file's profiles, read again when the file has changed: another process may tune at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._profiles = Profiles()

    def read(self) -> Profiles:
        """The profiles of now.

        Raises:
            StoreError: the file cannot be used.
        """
        try:
            stat = self._file.stat()
        except OSError:
            return Profiles()
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if seen != self._seen:
                self._profiles = read_profiles(self._file)
                self._seen = seen
            return self._profiles
