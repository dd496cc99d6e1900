"""LangChain's own suites for tools, on each of the three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_steps import plain_memory
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from langchain_inferscale import ForgetMemoryTool, SaveMemoryTool, SearchMemoryTool


class _OverMemory:
    @pytest.fixture(autouse=True)
    def _with_memory(self, tmp_path: Path) -> Iterator[None]:
        with plain_memory(tmp_path) as self.memory:
            [self.fact] = self.memory.add("Alice's dog is called Rex.", user_id="alice").facts
            yield

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.memory, "user_id": "alice"}


class _Save(_OverMemory):
    @property
    def tool_constructor(self) -> type[SaveMemoryTool]:
        return SaveMemoryTool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"text": "Alice is allergic to peanuts."}


class _Search(_OverMemory):
    @property
    def tool_constructor(self) -> type[SearchMemoryTool]:
        return SearchMemoryTool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"query": "What is the dog called?", "k": 3}


class _Forget(_OverMemory):
    @property
    def tool_constructor(self) -> type[ForgetMemoryTool]:
        return ForgetMemoryTool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"fact_id": self.fact.id}


class TestSaveMemory(_Save, ToolsUnitTests): ...


class TestSaveMemoryRuns(_Save, ToolsIntegrationTests): ...


class TestSearchMemory(_Search, ToolsUnitTests): ...


class TestSearchMemoryRuns(_Search, ToolsIntegrationTests): ...


class TestForgetMemory(_Forget, ToolsUnitTests): ...


class TestForgetMemoryRuns(_Forget, ToolsIntegrationTests): ...
