"""How many bytes a token's attention states take, from a model's config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferscale_memory._extras import require
from inferscale_memory.errors import InvalidInputError

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
GIB = 1 << 30
TB = 10**12


@dataclass(frozen=True)
class KVShape:
    """Keys and values of one token: ``layers x kv_heads x head_size`` elements of each."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """``2 * layers * kv_heads * head_size * bytes of an element``, of all tensor-parallel ranks together."""
        return 2 * self.layers * self.kv_heads * self.head_size * DTYPE_BYTES[self.dtype]


PUBLISHED = {
    "Llama-3.1-8B": KVShape(32, 8, 128, "bfloat16"),
    "Mistral-7B-v0.3": KVShape(32, 8, 128, "bfloat16"),
    "Qwen2.5-7B": KVShape(28, 4, 128, "bfloat16"),
    "Qwen3-14B": KVShape(40, 8, 128, "bfloat16"),
}
"""From the ``config.json`` that each model is published with."""


def shape_of(config: Mapping[str, Any]) -> KVShape:
    """Read a Hugging Face config of a decoder.

    Raises:
        InvalidInputError: it does not say how many layers, heads or elements there are, or names another dtype.
    """
    try:
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        shape = KVShape(int(config["num_hidden_layers"]), kv_heads, head_size, dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the config is no decoder's: {error!r}; wanted layers, heads and hidden size."
        ) from error
    if dtype not in DTYPE_BYTES:
        raise InvalidInputError(f"the config's dtype is {dtype!r}; wanted one of {', '.join(DTYPE_BYTES)}.")
    return shape


def shape_of_model(model: str) -> KVShape:
    """The shape of a model folder or hub id, without loading its weights.

    Raises:
        InvalidInputError: as ``shape_of``.
        MissingExtraError: transformers is not installed.
    """
    transformers = require("transformers", "cpu", "reading a model's config")
    return shape_of(transformers.AutoConfig.from_pretrained(model).to_dict())


def capacity(name: str, shape: KVShape, fact_tokens: int) -> dict[str, Any]:
    """How many facts of ``fact_tokens`` tokens a GiB of memory and a TB (10^12 bytes) of disk hold, tensors only."""
    fact = shape.bytes_per_token * fact_tokens
    return {
        "model": name,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "dtype": shape.dtype,
        "bytes_per_token": shape.bytes_per_token,
        "bytes_per_fact": fact,
        "facts_per_gib": GIB // fact,
        "facts_per_tb": TB // fact,
    }
