"""Streams that are reported to LlamaIndex's callbacks, and whose source ends when they are left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any, TypeVar

from llama_index.core.base.llms.base import BaseLLM

Response = TypeVar("Response")


def reported(
    report: Callable[[], Callable[..., Any]],
    source: Generator[Response, None, None],
    llm: BaseLLM,
    asked: Any,
    call: Mapping[str, Any],
) -> Generator[Response, None, None]:
    """The source, reported; closing it closes the source at once, which aborts the engine's request.

    LlamaIndex's wrapper leaves that to the garbage collector, which does not come while a callback handler keeps the
    exception that ended the stream, as ``LlamaDebugHandler`` does.

    Args:
        report: ``llm_chat_callback`` or ``llm_completion_callback``.
        source: the responses; nothing is asked of the engine before the first is taken.
        llm: whose callback manager is told.
        asked: messages or prompt, for the events.
        call: the call's keywords, for the events.
    """

    def give(_llm: BaseLLM, _asked: Any, **_call: Any) -> Generator[Response, None, None]:
        return source

    responses = report()(give)(llm, asked, **call)

    def through() -> Generator[Response, None, None]:
        with closing(source), closing(responses):
            yield from responses

    return through()


async def areported(
    report: Callable[[], Callable[..., Any]],
    source: AsyncGenerator[Response, None],
    llm: BaseLLM,
    asked: Any,
    call: Mapping[str, Any],
) -> AsyncGenerator[Response, None]:
    """Async twin of ``reported``."""

    async def give(_llm: BaseLLM, _asked: Any, **_call: Any) -> AsyncGenerator[Response, None]:
        return source

    responses = await report()(give)(llm, asked, **call)

    async def through() -> AsyncGenerator[Response, None]:
        async with aclosing(source), aclosing(responses):
            async for response in responses:
                yield response

    return through()
