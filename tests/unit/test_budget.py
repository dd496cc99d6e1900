"""Memory budgets as people write them."""

from __future__ import annotations

import pytest

from inferscale_memory.budget import MemoryBudget, utilization_beside
from inferscale_memory.errors import InvalidInputError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("2G", 2 * GIB),
        ("2GB", 2_000_000_000),
        ("1.5KiB", 1536),
        ("25%", 4 * GIB),
        ("0", 0),
        ("0%", 0),
    ],
)
def test_a_budget_is_a_number_of_bytes_or_a_share_of_16_gib(written, wanted):
    budget = MemoryBudget.parse(written)
    assert budget.resolve(16 * GIB) == wanted
    assert bool(budget) == bool(wanted)


@pytest.mark.parametrize("written", ["", "much", "-1", "1.5.2", "101%", "3 parsecs", "GiB"])
def test_what_is_no_budget_is_refused_and_named(written):
    with pytest.raises(InvalidInputError, match=f"{written!r} is no budget"):
        MemoryBudget.parse(written)


def test_the_arena_comes_out_of_vllms_share_of_the_device():
    assert utilization_beside(0.9, 8 * GIB, 80 * GIB) == pytest.approx(0.8)


def test_an_arena_that_leaves_the_model_nothing_is_refused():
    with pytest.raises(InvalidInputError, match="nothing is left for the model"):
        utilization_beside(0.9, 72 * GIB, 80 * GIB)
