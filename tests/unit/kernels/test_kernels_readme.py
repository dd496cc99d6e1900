from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import inferscale_kernels  # noqa: E402 (needs torch)

README = (Path(__file__).parents[3] / "kernels" / "README.md").read_text(encoding="utf-8")


def test_the_example_runs_and_fills_the_slots_it_names():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(example, names)
    for cache, states in ((names["caches"].keys, names["arena"][0]), (names["caches"].values, names["arena"][1])):
        filled = cache[1].flatten(0, 1).any(-1).any(-1)
        assert filled.nonzero().flatten().tolist() == list(range(16, 41))
        assert states.shape == (2, 64, 4, 32)


def test_every_name_that_can_be_imported_is_in_the_readme():
    missing = [name for name in inferscale_kernels.__all__ if f"`{name}" not in README]
    assert missing == []
