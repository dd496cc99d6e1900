"""``InferScale``: a LlamaIndex LLM that resolves KV handles inside its engine."""

from inferscale_memory._extras import require

require("llama_index.core", "llama-index", "llama_index.llms.inferscale")

from llama_index.llms.inferscale.base import InferScale  # noqa: E402
from llama_index.llms.inferscale.events import InferScaleRecallEvent  # noqa: E402

__all__ = ["InferScale", "InferScaleRecallEvent"]
