"""LangChain's own unit suite for chat models; no request is made, and no socket opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pytest
import pytest_socket
from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from inferscale_memory import InferScaleError
from langchain_inferscale import ChatInferScale


class IdleEngine:
    """Keeps the contract of an engine and answers nothing."""

    model = "idle"
    max_model_len = 2048
    calls_tools = True

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> NoReturn:
        raise InferScaleError("this engine answers nothing")

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> NoReturn:
        self.chat(messages)

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        self.chat(messages)

    def astream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncIterator[dict[str, Any]]:
        self.chat(messages)

    complete = acomplete = stream_complete = astream_complete = chat

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def count_tokens(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        return sum(len(str(message["content"])) for message in messages)


@pytest.fixture(autouse=True)
def _no_sockets() -> Iterator[None]:
    pytest_socket.disable_socket(allow_unix_socket=True)
    yield
    pytest_socket.enable_socket()


class TestChatInferScaleUnits(ChatModelUnitTests):
    """Construction, binding, standard parameters."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatInferScale

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": IdleEngine()}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        # Without max_retries: the engine is in this machine, so nothing that fails would go well a second time.
        return {"temperature": 0, "max_tokens": 100, "timeout": 60, "stop": []}

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True
