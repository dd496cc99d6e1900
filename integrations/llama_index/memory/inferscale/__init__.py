"""LlamaIndex memories whose long-term part is injected into the model: for chat engines and agents, and as a block."""

from inferscale_memory._extras import require

require("llama_index.core", "llama-index", "llama_index.memory.inferscale")

from llama_index.memory.inferscale.base import InferScaleMemory  # noqa: E402
from llama_index.memory.inferscale.block import InferScaleMemoryBlock  # noqa: E402

__all__ = ["InferScaleMemory", "InferScaleMemoryBlock"]
