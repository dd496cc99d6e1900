"""Between the measured points of a profile: time and error of settings that were not measured, never too low.

Time grows with the tokens that are prefilled and with those that are attended to, and faster the more there are
(attention is quadratic); error falls with every fact refreshed, and more slowly the more there are. Both are convex,
and the chord between two points of a convex curve lies above it. So what is interpolated here errs to the careful side,
and measured noise is first smoothed to the same side: refreshing more is never faster, nor refreshing fewer better.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from inferscale_memory.quality.profile import Bound, Metric, Point, Profile
from inferscale_memory.quality.targets import TtftBudget


class Curves:
    """The points of a profile as functions of facts and tokens."""

    def __init__(self, profile: Profile) -> None:
        by_k: dict[int, list[Point]] = {}
        for point in sorted(profile.points, key=lambda one: (one.k, one.refresh)):
            by_k.setdefault(point.k, []).append(point)
        self._by_k = by_k
        self._counts = sorted(by_k)

    def ttft(self, fact_tokens: float, refreshed_tokens: float) -> float:
        """Time to the first token in milliseconds, of a prompt with so many tokens of facts and so many prefilled."""
        sizes = [self._by_k[k][0].fact_tokens for k in self._counts]
        if fact_tokens <= sizes[0]:
            return self._ttft_at(self._counts[0], refreshed_tokens)
        # Along a line on which the same share is prefilled: no prompt has more prefilled than there is.
        share = refreshed_tokens / fact_tokens
        times = [self._ttft_at(k, share * size) for k, size in zip(self._counts, sizes, strict=True)]
        if fact_tokens >= sizes[-1]:
            # In proportion, the part of the time that does not grow included.
            return times[-1] * fact_tokens / sizes[-1]
        return _chord(sizes, times, fact_tokens)

    def error(self, k: int, refresh: int, metric: Metric) -> float:
        """Distance from full prefill with ``refresh`` of ``k`` facts prefilled, by the metric; 0 is none."""
        if refresh >= k:
            return 0.0
        if k > self._counts[-1]:
            return self._error_at(self._counts[-1], refresh, metric) * k / self._counts[-1]
        above = bisect_left(self._counts, k)
        below = above if self._counts[above] == k else max(0, above - 1)
        return max(self._error_at(self._counts[at], refresh, metric) for at in {below, above})

    def _ttft_at(self, k: int, refreshed: float) -> float:
        points = self._by_k[k]
        tokens = list(accumulate((point.refreshed_tokens for point in points), max))
        times = list(accumulate((point.ttft_ms for point in points), max))
        if refreshed >= tokens[-1]:
            return times[-1] * (refreshed / tokens[-1] if tokens[-1] else 1.0)
        return _chord(tokens, times, refreshed)

    def _error_at(self, k: int, refresh: int, metric: Metric) -> float:
        points = self._by_k[k]
        errors = list(accumulate((point.error(metric) for point in reversed(points)), max))[::-1]
        counts = [float(point.refresh) for point in points]
        if refresh >= counts[-1]:
            return errors[-1]
        return _chord(counts, errors, refresh)


def choose_refresh(
    profile: Profile,
    tokens: Sequence[float],
    budget: TtftBudget | None = None,
    kl_target: float | None = None,
) -> int:
    """How many facts to refresh.

    Args:
        profile: what was measured.
        tokens: of each fact that was found, best first.
        budget: a limit; as many facts are refreshed as it allows, unless fewer reach a target.
        kl_target: mean KL in nats that few facts are refreshed for; within the budget, if there is one. Where neither
            is given, the bound that the profile was made with is kept.

    Returns:
        0 to ``len(tokens)``.
    """
    curves, k = Curves(profile), len(tokens)
    most = k
    if budget is not None:
        refreshed = [0.0, *accumulate(tokens)]
        whole, limit = refreshed[-1], budget.limit(curves.ttft(refreshed[-1], 0.0))
        most = max(0, bisect_right(range(k + 1), limit, key=lambda r: curves.ttft(whole, refreshed[r])) - 1)
    if kl_target is not None:
        bound = Bound(metric="kl", value=kl_target)
    elif budget is None:
        bound = profile.bound
    else:
        return most
    # Falling with r, so its negative rises, as bisection wants it.
    return bisect_left(range(most), -bound.error, key=lambda r: -curves.error(k, r, bound.metric))


def _chord(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear interpolation over rising ``xs``, ``x`` being less than the last; before the first it is the first."""
    at = bisect_right(xs, x)
    if at == 0:
        return ys[0]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return math.fsum((ys[at - 1] * (1 - share), ys[at] * share))
