"""Every Python example of the documentation runs, in order, on the real engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory import LocalEngine, Memory

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"(<!-- shown, not run -->\n)?```python\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.engine


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", ["langchain.md", "migration.md"])
def test_the_examples_of_a_page_run_in_order(page: str, engine: LocalEngine, memory_for: Callable[..., Memory]) -> None:
    names: dict[str, Any] = {"engine": engine, "memory": memory_for(), "__name__": "__docs__"}
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    ran = [block for shown, block in blocks if not shown]
    assert len(ran) >= 2
    for block in ran:
        exec(compile(block, page, "exec"), names)
    if "answer" in names:
        assert names["answer"].response_metadata["kv"]["injected"] > 0
        assert names["result"]["messages"][-1].response_metadata["kv"]["injected"] > 0
    assert "⟦" not in str(names.get("result"))
