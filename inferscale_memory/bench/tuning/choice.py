"""Which setting is the cheapest that keeps a bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from inferscale_memory.bench.quality.settings import Setting
from inferscale_memory.bench.tuning.grid import Cell
from inferscale_memory.quality.profile import Bound


class Choice(NamedTuple):
    """A setting, its cells in the order of k, and whether their whole intervals keep the bound too."""

    setting: Setting
    cells: tuple[Cell, ...]
    surely: bool


def within(cell: Cell, bound: Bound) -> bool:
    """Whether a cell keeps the bound on average; plain prompt injection always does."""
    return cell.point.error(bound.metric) <= bound.error


def choose(cells: Sequence[Cell], bound: Bound) -> Choice:
    """The setting with the fewest refreshed facts that keeps the bound at every number of facts.

    Time grows with what is refreshed and does not depend on the policy, so that is the cheapest one; measured times of
    neighbours differ by less than a noisy machine does. Among policies that need as many, the one nearest to full
    prefill.

    Args:
        cells: of every setting at every number of facts, plain prompt injection among them.
        bound: what is to be kept.
    """
    groups: dict[Setting, list[Cell]] = defaultdict(list)
    for cell in sorted(cells, key=lambda one: one.k):
        groups[cell.setting].append(cell)
    keeping = [found for found in groups.values() if all(within(cell, bound) for cell in found)]
    best = min(keeping, key=lambda found: _cost(found, bound))
    return Choice(best[0].setting, tuple(best), all(_surely(cell, bound) for cell in best))


def _cost(cells: Sequence[Cell], bound: Bound) -> tuple[int, float]:
    refreshed = sum(cell.setting.refreshed(cell.k) for cell in cells)
    return refreshed, sum(cell.point.error(bound.metric) for cell in cells)


def _surely(cell: Cell, bound: Bound) -> bool:
    if cell.setting.refreshed(cell.k) == cell.k:
        return True
    interval = cell.kl_ci if bound.metric == "kl" else cell.top1_ci
    if interval is None:
        return False
    worst = interval[1] if bound.metric == "kl" else 1.0 - interval[0]
    return worst <= bound.error
