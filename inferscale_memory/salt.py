"""The cache salt: which requests may share native prefix-cache blocks."""

from __future__ import annotations

import hashlib
import hmac

from inferscale_memory.scope import length_prefixed

_LABEL = "inferscale cache salt v1"


def salt(
    secret: bytes,
    *,
    tenant: str,
    scope_key: str,
    fingerprint: str,
    policy: str,
    injecting: bool,
    epoch: int,
) -> str:
    """Salt of one request that holds a scope's facts, 64 hex digits.

    Equal arguments give equal salts, so consecutive questions of one scope share native blocks; without the secret
    nobody can compute one, so a salt must never be taken from a client. Hex only: a malformed salt kills the engine.

    Args:
        secret: the server secret, see ``SecretRing.current``.
        tenant: tenant of the scope.
        scope_key: ``Scope.key``, or ``Scope.principal`` where all sessions of an owner may share.
        fingerprint: fingerprint of the model whose states are held.
        policy: name of the encoding policy, parameters included.
        injecting: whether injected states may lie in the blocks; plain prefill has a salt of its own.
        epoch: KV epoch of the scope; delete, update and re-encode raise it, which loses every older block.
    """
    fields = (_LABEL, tenant, scope_key, fingerprint, policy, "inject" if injecting else "prefill", str(epoch))
    return hmac.new(secret, length_prefixed(fields), hashlib.sha256).hexdigest()
