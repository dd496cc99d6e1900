"""Every Python example of the LlamaIndex page runs, in order, on the real engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import remember
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from pydantic import Field

from inferscale_memory import LocalEngine, Memory
from llama_index.llms.inferscale.events import InferScaleRecallEvent

PAGE = Path(__file__).resolve().parents[3] / "docs" / "llama_index.md"
BLOCK = re.compile(r"(<!-- shown, not run -->\n)?```python\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.engine


class Answers(BaseEventHandler):
    """Keeps the accounting of every answer."""

    seen: list[dict[str, Any]] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        if isinstance(event, InferScaleRecallEvent):
            self.seen.append(event.kv)


def test_the_examples_of_the_page_run_in_order(engine: LocalEngine, memory_for: Callable[..., Memory]) -> None:
    names: dict[str, Any] = {"engine": engine, "memory": memory_for(), "__name__": "examples"}
    remember(names["memory"], ["Alice's dog is called Rex."], "alice")
    ran = [block for shown, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if not shown]
    assert len(ran) >= 5
    dispatcher, answers, asked = get_dispatcher(), Answers(), 0
    dispatcher.add_event_handler(answers)
    try:
        for block in ran:
            answers.seen.clear()
            exec(compile(block, PAGE.name, "exec"), names)
            asked += bool(answers.seen)
            for kv in answers.seen:
                assert kv["injected"] + kv["local_hit"] > 20, block
    finally:
        dispatcher.event_handlers.remove(answers)
    assert asked >= 5
    assert names["answer"].additional_kwargs["kv"]["injected"] > 0
    assert names["response"].source_nodes
    assert "⟦" not in "".join(str(names[name]) for name in ("answer", "said", "response"))
