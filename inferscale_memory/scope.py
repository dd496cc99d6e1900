"""Whose memory: tenant, user, agent and session, validated once and hashed without ambiguity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from inferscale_memory.errors import ScopeError

DEFAULT_TENANT = "default"
MAX_ID_CHARS = 256


def length_prefixed(fields: Iterable[str | bytes | None]) -> bytes:
    """Join fields so that no two different lists give the same bytes.

    Each field is its byte length as 8 big-endian bytes, then its bytes; ``None`` is the length ``2**64 - 1``.
    """
    out = bytearray()
    for field in fields:
        if field is None:
            out += b"\xff" * 8
            continue
        raw = field.encode("utf-8") if isinstance(field, str) else field
        out += len(raw).to_bytes(8, "big") + raw
    return bytes(out)


def digest(*fields: str | bytes | None) -> str:
    """SHA-256 of the length-prefixed fields, 64 hex digits."""
    return hashlib.sha256(length_prefixed(fields)).hexdigest()


@dataclass(frozen=True)
class Scope:
    """Whose memory a call is about.

    At least one of ``user``, ``agent`` and ``session`` is set. The *principal* is the user where there is one, else
    the agent, else the session: it owns the memory, and is always matched exactly. Below it, a given agent or session
    narrows a search to facts of that agent or session *and* facts that name none; an absent one does not narrow.
    """

    tenant: str
    user: str | None = None
    agent: str | None = None
    session: str | None = None

    def __post_init__(self) -> None:
        for name in ("tenant", "user", "agent", "session"):
            value = getattr(self, name)
            if value is None and name != "tenant":
                continue
            _check_id(name, value)
        if self.user is None and self.agent is None and self.session is None:
            raise ScopeError(
                "no scope: user_id, agent_id and session_id are all missing. "
                "Pass at least one, such as user_id='alice'; a memory without an owner is refused."
            )

    @classmethod
    def of(
        cls,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
    ) -> Scope:
        """Build a scope from the keywords that every public method takes.

        Raises:
            ScopeError: an id is blank, not a string, too long or holds control characters, or all three are missing.
        """
        return cls(tenant=tenant_id, user=user_id, agent=agent_id, session=session_id)

    @cached_property
    def principal(self) -> str:
        """Digest of the tenant and the owner, 64 hex digits: the unit of isolation, of epochs and of index groups."""
        return digest("principal", *self._owner)

    @cached_property
    def key(self) -> str:
        """Digest of the whole scope, 64 hex digits."""
        return digest("scope", self.tenant, self.user, self.agent, self.session)

    def covers(self, other: Scope) -> bool:
        """Whether a fact saved under ``other`` may be seen from this scope (see the class for the rule)."""
        if self._owner != other._owner:
            return False
        return all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in ((self.agent, other.agent), (self.session, other.session))
        )

    def accompanies(self, other: Scope) -> bool:
        """Whether a fact saved under this scope may be context of one saved under ``other``.

        The KV of the latter carries traces of it, so it must be visible wherever that is: same owner, same session (or
        both none), and the other's agent or none.
        """
        return self._owner == other._owner and self.session == other.session and self.agent in (None, other.agent)

    def as_dict(self) -> dict[str, str | None]:
        """Plain fields, for JSON."""
        return {"tenant": self.tenant, "user": self.user, "agent": self.agent, "session": self.session}

    def __str__(self) -> str:
        named = [f"{kind}={value!r}" for kind, value in self._named() if value is not None]
        return ", ".join([*([] if self.tenant == DEFAULT_TENANT else [f"tenant={self.tenant!r}"]), *named])

    @property
    def _owner(self) -> tuple[str, str, str]:
        """What ``principal`` is the digest of: asked for every fact of a search, so without a hash."""
        if self.user is not None:
            return self.tenant, "user", self.user
        if self.agent is not None:
            return self.tenant, "agent", self.agent
        return self.tenant, "session", self.session or ""

    def _named(self) -> tuple[tuple[str, str | None], ...]:
        return (("user", self.user), ("agent", self.agent), ("session", self.session))


def _check_id(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ScopeError(f"{name}_id must be a string, got {type(value).__name__}: {value!r}.")
    if not value.strip():
        raise ScopeError(f"{name}_id is blank ({value!r}). Pass a real id, or leave the argument out.")
    if len(value) > MAX_ID_CHARS:
        raise ScopeError(f"{name}_id has {len(value)} characters, at most {MAX_ID_CHARS} are taken.")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise ScopeError(f"{name}_id holds a control character or a lone surrogate: {value!r}.")
