"""LangChain on inferscale-memory: a chat model that resolves KV handles, and memories that hand them out.

Importing this package needs langchain-core only. The names are loaded on first use; what needs more than that says
which extra brings it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_inferscale.buffer_memory import InferScaleBufferMemory
    from langchain_inferscale.chat_model import ChatInferScale
    from langchain_inferscale.history import InferScaleChatMessageHistory
    from langchain_inferscale.llm import InferScaleLLM
    from langchain_inferscale.middleware import InferScaleMemoryMiddleware
    from langchain_inferscale.retriever import InferScaleRetriever, format_handles, kv_handles
    from langchain_inferscale.store import InferScaleStore
    from langchain_inferscale.tools import ForgetMemoryTool, SaveMemoryTool, SearchMemoryTool, memory_tools

__all__ = [
    "ChatInferScale",
    "ForgetMemoryTool",
    "InferScaleBufferMemory",
    "InferScaleChatMessageHistory",
    "InferScaleLLM",
    "InferScaleMemoryMiddleware",
    "InferScaleRetriever",
    "InferScaleStore",
    "SaveMemoryTool",
    "SearchMemoryTool",
    "format_handles",
    "kv_handles",
    "memory_tools",
]

_LAZY = {
    "ChatInferScale": "chat_model",
    "InferScaleBufferMemory": "buffer_memory",
    "InferScaleChatMessageHistory": "history",
    "InferScaleLLM": "llm",
    "InferScaleMemoryMiddleware": "middleware",
    "InferScaleRetriever": "retriever",
    "InferScaleStore": "store",
    "ForgetMemoryTool": "tools",
    "format_handles": "retriever",
    "kv_handles": "retriever",
    "memory_tools": "tools",
    "SaveMemoryTool": "tools",
    "SearchMemoryTool": "tools",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
