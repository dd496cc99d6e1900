"""Chunk <-> bytes: a safetensors file whose last tensor authenticates all that stands before it.

Any safetensors reader can open the file. Layout: header length, JSON header, ``token_ids``, ``keys``, ``values``, and
``mac``, 32 bytes of keyed BLAKE2b over everything before them. So nothing of a file, its header included, is believed
before it is known to be whole and to come from this store. It is written and parsed here rather than by the safetensors
package because that copies every tensor, and parses a header before anything could vouch for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

from inferscale_memory._extras import require
from inferscale_memory.errors import ChunkError, InvalidInputError
from inferscale_memory.kv.chunk import DTYPES, Chunk
from inferscale_memory.kv.keys import pack_ids

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "inferscale-chunk-1"
SECRET_BYTES = 32
_MAC_BYTES = 32
_ALIGNMENT = 64
_SAFETENSORS_DTYPES = dict(zip(DTYPES, ("BF16", "F16", "F32"), strict=True))


def encode(chunk: Chunk, secret: bytes) -> list[bytes | memoryview]:
    """Serialise ``chunk``.

    Args:
        chunk: tensors on any device; CPU tensors that are contiguous are not copied.
        secret: of the store, ``SECRET_BYTES`` long.

    Returns:
        Pieces to be written one after the other. They view the chunk's memory: write them before it changes.
    """
    dtype = _SAFETENSORS_DTYPES[str(chunk.keys.dtype).removeprefix("torch.")]
    shape = list(chunk.keys.shape)
    body: list[tuple[str, str, list[int], bytes | memoryview]] = [
        ("token_ids", "I64", [chunk.num_tokens], pack_ids(chunk.token_ids)),
        ("keys", dtype, shape, _raw(chunk.keys)),
        ("values", dtype, shape, _raw(chunk.values)),
    ]
    header: dict[str, Any] = {"__metadata__": _metadata(chunk)}
    offset = 0
    for name, dtype_name, dims, data in [*body, ("mac", "U8", [_MAC_BYTES], b"\0" * _MAC_BYTES)]:
        header[name] = {"dtype": dtype_name, "shape": dims, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    pieces = [len(text).to_bytes(8, "little") + text, *(data for *_, data in body)]
    return [*pieces, _mac(secret, *pieces)]


def decode(buffer: Tensor, secret: bytes, *, key: str, fingerprint: str | None, rank: int, world: int) -> Chunk:
    """Check ``buffer`` and turn it into the chunk that was asked for, whose tensors are views of it.

    Args:
        buffer: ``[n]`` uint8 on the CPU, a whole file.
        secret: of the store.
        key: the chunk asked for.
        fingerprint: of the model it is to be used with; None takes any.
        rank: tensor-parallel rank it is to be used on.
        world: number of ranks.

    Raises:
        ChunkError: the bytes are torn, changed or of another store, or hold another chunk, model or rank.
    """
    raw = memoryview(buffer.numpy())
    split = len(raw) - _MAC_BYTES
    if split < 8:
        raise ChunkError(f"chunk {key[:12]} is torn: {len(raw)} bytes. It is encoded again.")
    if not hmac.compare_digest(_mac(secret, raw[:split]), bytes(raw[split:])):
        raise ChunkError(
            f"chunk {key[:12]} is torn, changed or of another store: its {len(raw)} bytes do not match their MAC. "
            "It is encoded again."
        )
    start = 8 + int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(bytes(raw[8:start]))
        metadata = header["__metadata__"]
        wanted = {"format": FORMAT, "key": key, "fingerprint": fingerprint, "rank": str(rank), "world": str(world)}
        for name, value in wanted.items():
            if value is not None and metadata.get(name) != value:
                raise ChunkError(f"chunk {key[:12]}: its {name} is {metadata.get(name)!r}, wanted {value!r}.")
        return Chunk(
            key=key,
            token_ids=tuple(_view(buffer, header["token_ids"], start).tolist()),
            fingerprint=metadata["fingerprint"],
            context_digest=metadata["context_digest"],
            layer_names=tuple(json.loads(metadata["layer_names"])),
            keys=_view(buffer, header["keys"], start),
            values=_view(buffer, header["values"], start),
            rank=rank,
            world=world,
        )
    except (KeyError, TypeError, ValueError, InvalidInputError) as error:
        raise ChunkError(f"chunk {key[:12]} is authentic but malformed: {error!r}.") from error


def _metadata(chunk: Chunk) -> dict[str, str]:
    return {
        "format": FORMAT,
        "key": chunk.key,
        "fingerprint": chunk.fingerprint,
        "context_digest": chunk.context_digest,
        "layer_names": json.dumps(chunk.layer_names),
        "rank": str(chunk.rank),
        "world": str(chunk.world),
    }


def _mac(secret: bytes, *pieces: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(key=secret, digest_size=_MAC_BYTES, person=b"inferscale-chunk")
    for piece in pieces:
        state.update(piece)
    return state.digest()


def _raw(tensor: Tensor) -> memoryview:
    torch = require("torch", "cpu", "storing KV chunks")
    return memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def _view(buffer: Tensor, entry: dict[str, Any], start: int) -> Tensor:
    torch = require("torch", "cpu", "loading KV chunks")
    dtypes = {"I64": torch.int64, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    begin, end = entry["data_offsets"]
    return buffer[start + begin : start + end].view(dtypes[entry["dtype"]]).view(entry["shape"])
