"""Where the LoCoMo conversations lie, which are not this project's, and what skips a test where they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo"

needs_locomo = pytest.mark.skipif(
    not LOCOMO.is_dir(), reason="the LoCoMo conversations are not at ../shared/data/locomo"
)
