"""The contract between an engine and the framework wrappers that answer with it, wherever the engine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class AnsweringEngine(Protocol):
    """Answers chats and completions whose prompts may hold KV handles.

    Answers are OpenAI's, as dicts, with two more keys, on streams in the last chunk: ``"kv"``, the tokens
    ``{injected, local_hit, prefilled, fallback_reason}``, and ``"recalled"``, the facts in the prompt. No handle
    reaches the model or comes back from it. Options are OpenAI's and vLLM's request fields, ``timeout`` (seconds),
    ``kv_handles=[...]``, and the scope (``user_id``, ``agent_id``, ``session_id``, ``tenant_id``), which refuses
    handles of another one; ``kv_scopes={handle: {"user_id": ...}}`` names a scope of its own for single handles.
    Closing a stream, cancelling an async call or running into the timeout aborts the request. Every method may be
    called from any thread or loop, and may raise ``InferScaleError``.
    """

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    def calls_tools(self) -> bool:
        """Whether a model that is free to choose (``tool_choice="auto"``) gets its tool calls parsed."""

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Answer a conversation."""

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Async twin of ``chat``."""

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """Answer a conversation in chunks."""

    def astream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of ``stream_chat``."""

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Continue a string."""

    async def acomplete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Async twin of ``complete``."""

    def stream_complete(self, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Continue a string in chunks."""

    def astream_complete(self, prompt: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of ``stream_complete``."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text by itself, without the ones a tokenizer puts around it."""

    def count_tokens(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        """How many tokens the conversation's prompt has, the facts behind its handles included."""
