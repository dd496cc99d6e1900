"""Finding the facts that answer a question.

Where things live: embedder and index are objects of the process that holds ``Memory``, the API process; vLLM's
scheduler and worker processes never see them. On a GPU they therefore share the device with the engine's worker, which
takes ``gpu_memory_utilization`` of the whole device whatever else runs there. Leave them room: lower it by
``(embedder.memory_bytes() + index.memory_bytes() + 1 GiB) / device memory``, where the 1 GiB is for this process's
CUDA context and the activations, or keep them on the CPU (``device="cpu"``), where a few thousand facts of one user
are searched in about a millisecond.

Indexes: ``TorchIndex`` (CPU or CUDA), ``FaissIndex`` (CPU, or GPU by the ``cuda`` extra) and ``NumpyIndex`` (no extra)
are all exact and rank alike. On a GPU ``TorchIndex`` searches many scopes by the same few operations as a few. The
approximate GPU index of the InferScale paper, Jasper, is not yet adapted.
"""

from inferscale_memory.retrieval.base import Embedder, EmbeddingError, Hit, VectorIndex
from inferscale_memory.retrieval.catalog import Failure
from inferscale_memory.retrieval.desk import Question
from inferscale_memory.retrieval.embedders import CallableEmbedder, SentenceTransformerEmbedder
from inferscale_memory.retrieval.factory import INDEX_KINDS, open_index
from inferscale_memory.retrieval.faiss_index import FaissIndex
from inferscale_memory.retrieval.numpy_index import NumpyIndex
from inferscale_memory.retrieval.retriever import NEAR_DUPLICATE_COSINE, Retriever, ScoredFact
from inferscale_memory.retrieval.torch_index import TorchIndex

__all__ = [
    "INDEX_KINDS",
    "NEAR_DUPLICATE_COSINE",
    "CallableEmbedder",
    "Embedder",
    "EmbeddingError",
    "Failure",
    "FaissIndex",
    "Hit",
    "NumpyIndex",
    "Question",
    "Retriever",
    "ScoredFact",
    "SentenceTransformerEmbedder",
    "TorchIndex",
    "VectorIndex",
    "open_index",
]
