"""KV chunks: what they are, how they are named, and the tiers that keep them.

Importing this needs no torch; handling tensors does. ``arena`` is imported by name, since it loads numpy.

=============== ==================================================================
``keys``        names of chunks, from tenant, model, context and tokens
``fingerprint`` names of models: what has to match for a chunk to be reusable
``chunk``       one run of tokens as attention states
``codec``       chunk <-> authenticated safetensors bytes
``base``        the contract of every tier
``arena``       the device tier of a worker: one preallocated pool; ``slots`` its books, ``streams`` its copies
``pool``        the host tier of a worker
``store``       the disk tier that all processes share, ``files`` below it
=============== ==================================================================
"""

from inferscale_memory.kv.base import ChunkTier, PutResult
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.fingerprint import model_fingerprint, tokenizer_digest, weights_digest
from inferscale_memory.kv.keys import chunk_key, context_digest
from inferscale_memory.kv.pool import ChunkPool
from inferscale_memory.kv.slots import Extent, SlotAllocator
from inferscale_memory.kv.store import ChunkStore, StoreUsage

__all__ = [
    "Chunk",
    "ChunkPool",
    "ChunkStore",
    "ChunkTier",
    "Extent",
    "PutResult",
    "SlotAllocator",
    "StoreUsage",
    "chunk_key",
    "context_digest",
    "model_fingerprint",
    "tokenizer_digest",
    "weights_digest",
]
