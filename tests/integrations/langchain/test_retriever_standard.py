"""LangChain's own suite for retrievers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_steps import plain_memory
from asking import travels
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_inferscale import InferScaleRetriever


class TestInferScaleRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _with_memory(self, tmp_path: Path) -> Iterator[None]:
        with plain_memory(tmp_path) as self.memory:
            self.memory.add(travels(5), user_id="alice")
            yield

    @property
    def retriever_constructor(self) -> type[InferScaleRetriever]:
        return InferScaleRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.memory, "user_id": "alice", "k": 2}

    @property
    def retriever_query_example(self) -> str:
        return "Who visited Kyoto?"
