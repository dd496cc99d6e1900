"""Choosing the questions that are measured."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence

from inferscale_memory.bench.quality.data import Question
from inferscale_memory.errors import InvalidInputError


def choose(
    questions: Sequence[Question], count: int | None, categories: Collection[str] | None = None, seed: int = 0
) -> list[Question]:
    """A sample, stratified by conversation and category: each pair has its share of the sample, up to one question.

    Args:
        questions: all there are.
        count: how many are wanted; None, or more than there are, takes all.
        categories: only these; None takes every one.
        seed: the same seed gives the same sample, in the same order as ``questions``.

    Raises:
        InvalidInputError: no question is left, or ``count`` is not 1 or more.
    """
    wanted = [question for question in questions if categories is None or question.category in categories]
    if not wanted or (count is not None and count < 1):
        known = ", ".join(sorted({question.category for question in questions})) or "none"
        raise InvalidInputError(
            f"{count if count is not None else 'all'} questions of the categories {list(categories or ())} were "
            f"wanted; there are {len(wanted)}. The data has the categories {known}."
        )
    if count is None or count >= len(wanted):
        return wanted
    chosen = set(_stratified(wanted, count, random.Random(seed)))
    return [question for at, question in enumerate(wanted) if at in chosen]


def _stratified(questions: Sequence[Question], count: int, draw: random.Random) -> list[int]:
    """Places of the sample: largest remainders first, ties in an order drawn."""
    strata: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, question in enumerate(questions):
        strata[question.conversation, question.category].append(at)
    shares = {key: count * len(places) / len(questions) for key, places in strata.items()}
    sizes = {key: int(share) for key, share in shares.items()}
    order = draw.sample(sorted(strata), len(strata))
    order.sort(key=lambda key: sizes[key] - shares[key])
    for key in order[: count - sum(sizes.values())]:
        sizes[key] += 1
    return [at for key, places in sorted(strata.items()) for at in draw.sample(places, sizes[key])]
