"""Names of chunks: equal for equal content in equal context, different for anything else."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.scope import digest

_HEX64 = re.compile(r"[0-9a-f]{64}")


def chunk_key(
    *, tenant: str, owner: str, fingerprint: str, context_ids: Sequence[int], token_ids: Sequence[int]
) -> str:
    """Name the chunk of ``token_ids`` encoded behind ``context_ids``.

    Args:
        tenant: whose installation; two tenants never share a chunk.
        owner: who the chunk belongs to below the tenant, such as ``Scope.principal``. May be empty for chunks that hold
            nobody's data (a neutral preamble).
        fingerprint: of the model, 64 hex digits (see ``fingerprint.model_fingerprint``).
        context_ids: every token that the run was prefilled behind, from position 0; empty for a preamble.
        token_ids: the run itself, at least one token.

    Returns:
        64 hex digits: SHA-256 over length-prefixed fields.

    Raises:
        InvalidInputError: the fingerprint is not one, a token id is not a 64-bit integer, or the run is empty.
    """
    check_hex64("fingerprint", fingerprint)
    if not len(token_ids):
        raise InvalidInputError("no token ids: a chunk holds at least one token.")
    return digest("chunk", tenant, owner, fingerprint, pack_ids(context_ids), pack_ids(token_ids))


def context_digest(context_ids: Sequence[int]) -> str:
    """Name an encoding context on its own, 64 hex digits."""
    return digest("context", pack_ids(context_ids))


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int64.

    Raises:
        InvalidInputError: an id is not an integer of 64 bits.
    """
    try:
        return struct.pack(f"<{len(token_ids)}q", *token_ids)
    except struct.error as error:
        raise InvalidInputError(f"token ids must be 64-bit integers: {error}.") from error


def check_hex64(name: str, value: object) -> str:
    """Return ``value`` if it is 64 lower-case hex digits; such a value is safe in a file name.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise InvalidInputError(f"{name} is {value!r}; wanted a SHA-256 as 64 lower-case hex digits.")
    return value
