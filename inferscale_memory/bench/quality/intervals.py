"""Confidence intervals by bootstrap over questions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
_BATCH = 1_000


def mean_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """The percentile bootstrap's 95 % interval of the mean (Efron, 1979); None for fewer than two values.

    Questions are drawn with replacement, 10,000 times, from the same seed, so that equal values give equal intervals
    and two rows over the same questions are resampled alike.
    """
    found = np.asarray(values, dtype=np.float64)
    if len(found) < 2:
        return None
    draw = np.random.default_rng(seed)
    means = np.concatenate(
        [found[draw.integers(len(found), size=(_BATCH, len(found)))].mean(axis=1) for _ in range(RESAMPLES // _BATCH)]
    )
    low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
