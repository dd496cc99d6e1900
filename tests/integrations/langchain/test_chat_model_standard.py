"""LangChain's own integration suite for chat models, on the real engine, tools and structured output switched on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asking import FACTS, QUESTION, remember
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from steered import SteeredChat

from inferscale_memory import LocalEngine, Memory

pytestmark = pytest.mark.engine


class TestChatInferScale(ChatModelIntegrationTests):
    """Every test that applies to a text model."""

    _engine: LocalEngine
    _memory_for: Callable[..., Memory]
    _user: str

    @pytest.fixture(autouse=True)
    def _parts(self, engine: LocalEngine, memory_for: Callable[..., Memory], user: str) -> None:
        self._engine, self._memory_for, self._user = engine, memory_for, user

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return SteeredChat

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self._engine, "max_tokens": 16, "temperature": 0.0, "seed": 1}

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return self._engine.model

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        """Injected tokens are read from a cache: a question with a handle."""
        memory = self._memory_for(policy="preamble")
        remember(memory, FACTS, self._user)
        handle = memory.recall(QUESTION, 4, user_id=self._user)
        chat = SteeredChat(**self.chat_model_params)
        messages = [SystemMessage(f"You are helpful. {handle}"), HumanMessage(QUESTION)]
        if not stream:
            answer = chat.invoke(messages)
        else:
            whole: AIMessageChunk | None = None
            for chunk in chat.stream(messages):
                whole = chunk if whole is None else whole + chunk  # type: ignore[assignment]
            assert whole is not None
            answer = whole
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["input_token_details"]["cache_read"] > 0
        return answer
