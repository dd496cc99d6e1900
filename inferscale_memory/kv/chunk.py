"""A chunk: the attention states of one run of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.kv.keys import check_hex64

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes a chunk may have, as torch spells them."""

# Storage that a chunk may keep alive beyond its tensors (a file's header) before ``compact`` copies it out.
_SLACK_BYTES = 64 * 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class Chunk:
    """Keys before rotary embedding, and values, of ``T`` consecutive tokens in ``L`` attention layers.

    Tensors are shared, not copied: whoever holds a chunk must not write to them.

    Raises:
        InvalidInputError: shapes, dtypes, names or ranks contradict each other.
    """

    key: str
    """64 hex digits, from ``chunk_key``."""
    token_ids: tuple[int, ...]
    """The ``T`` tokens, at least one."""
    fingerprint: str
    """Of the model that made it, 64 hex digits."""
    context_digest: str
    """Names what it was encoded behind, from ``keys.context_digest``."""
    layer_names: tuple[str, ...]
    """The engine's names of the ``L`` layers, in the order of the tensors' first axis."""
    keys: Tensor
    """``[L, T, H, D]`` before rotation, in the model's dtype; ``H`` counts the KV heads of this rank only."""
    values: Tensor
    """``[L, T, H, D]``, same dtype."""
    rank: int = 0
    """Tensor-parallel rank that holds these heads."""
    world: int = 1
    """How many ranks the chunk is split over."""

    def __post_init__(self) -> None:
        check_hex64("key", self.key)
        check_hex64("fingerprint", self.fingerprint)
        if not 0 <= self.rank < self.world:
            raise InvalidInputError(f"rank {self.rank} of {self.world}; wanted 0 <= rank < world.")
        _check_tensors(self)

    @property
    def num_tokens(self) -> int:
        """``T``."""
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def footprint(self) -> int:
        """Bytes of memory that this chunk keeps alive: those of the storages its tensors are views of."""
        storages = (self.keys.untyped_storage(), self.values.untyped_storage())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def compact(self) -> Chunk:
        """Return this chunk, or a copy that no longer keeps a much larger buffer alive."""
        if self.footprint <= self.nbytes + _SLACK_BYTES:
            return self
        return replace(self, keys=self.keys.clone(), values=self.values.clone())

    def pinned(self) -> Chunk:
        """Return a copy in page-locked host memory; this chunk where it lies there already."""
        if self.keys.is_pinned() and self.values.is_pinned():
            return self
        return replace(self, keys=self.keys.cpu().pin_memory(), values=self.values.cpu().pin_memory())


def _check_tensors(chunk: Chunk) -> None:
    shape = tuple(chunk.keys.shape)
    wanted = f"[{len(chunk.layer_names)} layers, {len(chunk.token_ids)} tokens, heads, head_dim]"
    if len(shape) != 4 or 0 in shape or shape[:2] != (len(chunk.layer_names), len(chunk.token_ids)):
        raise InvalidInputError(f"keys are {shape}; wanted {wanted}, none of them empty.")
    if tuple(chunk.values.shape) != shape:
        raise InvalidInputError(f"values are {tuple(chunk.values.shape)}; wanted the shape of keys, {shape}.")
    dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in (chunk.keys, chunk.values))
    if dtypes[0] != dtypes[1] or dtypes[0] not in DTYPES:
        raise InvalidInputError(f"keys are {dtypes[0]}, values {dtypes[1]}; wanted one dtype of {', '.join(DTYPES)}.")
    if len(set(chunk.layer_names)) != len(chunk.layer_names):
        raise InvalidInputError(f"layer names repeat: {chunk.layer_names}.")
