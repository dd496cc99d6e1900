"""Facts as LlamaIndex nodes, and a query engine that answers from their KV handle."""

from inferscale_memory._extras import require

require("llama_index.core", "llama-index", "llama_index.retrievers.inferscale")

from llama_index.retrievers.inferscale.base import InferScaleRetriever, format_handles, kv_handles  # noqa: E402
from llama_index.retrievers.inferscale.query_engine import InferScaleQueryEngine  # noqa: E402

__all__ = ["InferScaleQueryEngine", "InferScaleRetriever", "format_handles", "kv_handles"]
