"""Preparing a prompt holds up no other answer."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from inferscale_memory.serving.prepare import Preparer
from tests.unit.serving.test_plan import FINGERPRINT

HANDLE = "\u27e6kv:" + "a" * 80 + "\u27e7"


class Waiting:
    """A memory whose database is slow: it answers once the loop has gone on."""

    def __init__(self) -> None:
        self.went_on = threading.Event()
        self.waited = False

    def resolve(self, *_: Any) -> None:
        self.waited = self.went_on.wait(20)


async def test_the_loop_goes_on_while_a_memory_is_read() -> None:
    memory = Waiting()
    engine = SimpleNamespace(resolver=memory, require_scope=False, fingerprint=FINGERPRINT)
    preparing = asyncio.create_task(Preparer(engine).chat([{"role": "system", "content": HANDLE}], {}))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    memory.went_on.set()
    plan = await preparing
    assert memory.waited
    assert plan.token_ids == []
