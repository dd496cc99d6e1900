"""Every Python example of the documentation runs, in order, on the real engine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asking import remember

from inferscale_memory import LocalEngine, Memory

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"(<!-- shown, not run -->\n)?```python\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.engine


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", ["README.md", "docs/langchain.md", "docs/migration.md"])
def test_the_examples_of_a_page_run_in_order(
    page: str, engine: LocalEngine, memory_for: Callable[..., Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there for their own module
    names: dict[str, Any] = vars(module)
    names.update(engine=engine, memory=memory_for())
    remember(names["memory"], ["Alice's dog is called Rex."], "alice")
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    ran = [block for shown, block in blocks if not shown]
    assert len(ran) >= 2
    for block in ran:
        exec(compile(block, page, "exec"), names)
    for name in ("answer", "result", "reply"):
        if name in names:
            said = names[name] if name == "answer" else names[name]["messages"][-1]
            assert said.response_metadata["kv"]["injected"] > 0, name
    assert "⟦" not in str([names.get("result"), names.get("reply")])
