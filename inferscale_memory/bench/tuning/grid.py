"""What every setting costs and saves: KL and top-1 agreement against full prefill, and time to the first token."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferscale_memory.bench.common import fresh_salt, quartiles
from inferscale_memory.bench.quality.data import Question
from inferscale_memory.bench.quality.intervals import mean_interval
from inferscale_memory.bench.quality.measuring import Progress, measure
from inferscale_memory.bench.quality.memories import Workbench
from inferscale_memory.bench.quality.settings import Refresh, Setting
from inferscale_memory.errors import EngineError
from inferscale_memory.quality.profile import Point

TIMED_QUESTIONS = 5


@dataclass(frozen=True)
class Cell:
    """One setting at one number of facts. Means over questions, ``ttft_ms`` a median; intervals hold 95 %.

    ``kl`` is in nats per answer token. ``fact_tokens`` are those of all facts in the prompt, ``refreshed_tokens`` those
    of the ones that are prefilled as text.
    """

    setting: Setting
    k: int
    n: int
    kl: float
    kl_ci: tuple[float, float] | None
    top1: float
    top1_ci: tuple[float, float] | None
    ttft_ms: float
    ttft_spread: tuple[float, float]
    fact_tokens: float
    refreshed_tokens: float

    @property
    def point(self) -> Point:
        """The cell as a point of a profile."""
        # What is left between two runs of the very same prefill is the engine's own, of no setting.
        whole = self.setting.refreshed(self.k) == self.k
        return Point(
            k=self.k,
            refresh=self.setting.refreshed(self.k),
            fact_tokens=self.fact_tokens,
            refreshed_tokens=self.refreshed_tokens,
            ttft_ms=self.ttft_ms,
            kl=0.0 if whole else max(0.0, self.kl),
            kl_ci=None if whole else self.kl_ci,
            top1=1.0 if whole else self.top1,
        )


class Measured(NamedTuple):
    """The cells of a grid, and what they were measured on: the engine in a line, its model's fingerprint, its facts."""

    cells: tuple[Cell, ...]
    engine: str
    fingerprint: str
    tokens_per_character: float


@dataclass
class _Timed:
    """The prompts of one number of refreshed facts, and the seconds that their first tokens took."""

    plans: list[Any]
    seconds: list[float] = field(default_factory=list)


def measure_grid(
    bench: Workbench,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    ks: Sequence[int],
    *,
    repeat: int,
    progress: Progress | None = None,
) -> list[Cell]:
    """Measure every setting at every number of facts, quality and time in one run.

    Time is measured once for each number of refreshed facts: policies differ in the states that are injected, not in
    how many.

    Args:
        bench: memories of every policy among the settings.
        questions: what is asked.
        settings: what is compared.
        ks: numbers of facts.
        repeat: how often each prompt is timed.
        progress: called with the measurements done and all there are: first those of quality, then those of time.

    Raises:
        EngineError: a prompt was not injected as its setting wants.
    """
    results: dict[tuple[Setting, int], list[Any]] = defaultdict(list)
    for one in measure(bench, questions, settings, ks, generate=False, progress=progress):
        if one.kl is not None and one.refresh is not None and one.k is not None:
            results[Setting(one.policy, one.refresh), one.k].append(one)
    timed = _measure_times(bench, questions[:TIMED_QUESTIONS], settings, ks, repeat, progress)
    return [
        _cell(bench, questions, setting, k, found, timed[k, setting.refreshed(k)].seconds)
        for (setting, k), found in results.items()
    ]


def _cell(
    bench: Workbench, questions: Sequence[Question], setting: Setting, k: int, found: Sequence[Any],
    seconds: Sequence[float],
) -> Cell:  # fmt: skip
    lengths = [[_tokens(bench, one.fact.text) for one in bench.recalled(question, k)] for question in questions]
    low, middle, high = (1e3 * value for value in quartiles(seconds))
    kl, top1 = [one.kl for one in found], [one.top1 for one in found]
    return Cell(
        setting=setting,
        k=k,
        n=len(found),
        kl=statistics.fmean(kl),
        kl_ci=mean_interval(kl),
        top1=statistics.fmean(top1),
        top1_ci=mean_interval(top1),
        ttft_ms=middle,
        ttft_spread=(low, high),
        fact_tokens=statistics.fmean(sum(tokens) for tokens in lengths),
        refreshed_tokens=statistics.fmean(sum(tokens[: setting.refreshed(k)]) for tokens in lengths),
    )


def _measure_times(
    bench: Workbench,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    ks: Sequence[int],
    repeat: int,
    progress: Progress | None,
) -> dict[tuple[int, int], _Timed]:
    """Seconds by number of facts and of refreshed ones, every prompt cold for the native prefix cache."""
    # All of one policy, so that all of its facts are in the workers' memory after the first round.
    policy = settings[0].policy
    refreshes: set[Refresh] = {setting.refresh for setting in settings}
    timed = {
        (k, Setting(policy, refresh).refreshed(k)): _Timed(
            [bench.plan(question, k, Setting(policy, refresh)) for question in questions]
        )
        for k in ks
        for refresh in refreshes
    }
    jobs = [(one, plan) for one in timed.values() for plan in one.plans]
    chance = random.Random(0)
    # Every prompt once to warm up; then each round in another order, so that slow spells of the machine hit all alike.
    order = [*jobs, *(job for _ in range(repeat) for job in chance.sample(jobs, len(jobs)))]
    for done, (one, plan) in enumerate(order, start=1):
        seconds = _first_token(bench, plan)
        if done > len(jobs):
            one.seconds.append(seconds)
        if progress is not None:
            progress(done, len(order))
    return timed


def _first_token(bench: Workbench, plan: Any) -> float:
    wanted = plan.injectable
    start = time.perf_counter()
    output = bench.engine.generate(plan, salt=fresh_salt(), detokenize=False)
    taken = time.perf_counter() - start
    kv = bench.engine.accounting(output)
    if (kv.injected, kv.local_hit) != (wanted, 0):
        raise EngineError(f"a timed prompt had {kv.as_dict()}, wanted {wanted} tokens injected.")
    return taken


def _tokens(bench: Workbench, text: str) -> int:
    return len(bench.engine.prompt.fact_tokens(text))


def tokens_per_character(bench: Workbench) -> float:
    """Tokens of a fact's line for each character of its text, over all facts."""
    facts = [fact for saved in bench.saved.values() for fact in saved.facts]
    return sum(_tokens(bench, fact.text) for fact in facts) / max(1, sum(len(fact.text) for fact in facts))
