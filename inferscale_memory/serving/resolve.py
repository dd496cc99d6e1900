"""From a handle to what the engine is asked: facts, token ids, salt and plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inferscale_memory.kv.keys import chunk_key
from inferscale_memory.prompt import Assembled, PromptFact
from inferscale_memory.scope import Scope
from inferscale_memory.serving.protocol import CaptureSpan, InjectSpan

PREAMBLE_OWNER = ""


@dataclass(frozen=True)
class Resolution:
    """The facts behind the handles of one prompt, as a memory resolves them.

    ``facts`` are in the order they shall stand in the prompt; ``keys`` names the chunk of each encoded one (by fact
    id), and a fact without is prefilled. ``refreshed`` facts stand behind them as plain text. ``salt(injecting)`` is
    the cache salt. With ``positional``, chunks are made for this very place and ``keys`` is empty. ``scores`` are the
    cosines the facts were recalled with, by id, where this process recalled them.
    """

    tenant: str
    owner: str
    facts: tuple[PromptFact, ...]
    refreshed: tuple[PromptFact, ...]
    keys: dict[str, str]
    salt: Callable[[bool], str]
    positional: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)


class HandleResolver(Protocol):
    """What the engine needs of a memory."""

    def resolve(
        self, handles: Sequence[str], scope: Scope | None, own: Mapping[str, Scope] | None = None
    ) -> Resolution | None:
        """Facts of all handles, merged; handles that do not open are dropped and counted. ``None``: none opened.

        Args:
            handles: text tokens as they stood in the prompt.
            scope: the scope the call names; handles of another are refused.
            own: scopes that single handles are checked against instead.
        """
        ...

    def missing(self, keys: Sequence[str]) -> None:
        """The engine could not load these chunks, or one before them; called off the engine's loop."""
        ...


@dataclass
class Plan:
    """What one prompt is sent with.

    ``inject`` covers the prompt from 0 without a hole; ``ensure`` are volatile chunks of it that must be captured
    first if the workers do not have them. ``reason`` says why facts are prefilled, if any are. ``recalled`` are the
    facts in the prompt, in its order, with the cosine each was recalled with.
    """

    token_ids: list[int]
    salt: str | None = None
    inject: list[InjectSpan] = field(default_factory=list)
    ensure: list[CaptureSpan] = field(default_factory=list)
    reason: str | None = None
    facts: int = 0
    recalled: tuple[tuple[str, float | None], ...] = ()
    dropped: tuple[str, ...] = ()
    cleaned: Any = None

    @property
    def injectable(self) -> int:
        """Tokens of the prompt, from 0, that are to be injected."""
        return self.inject[-1].end if self.inject else 0


def make_plan(assembled: Assembled, resolution: Resolution, fingerprint: str, unsupported: str | None) -> Plan:
    """Decide which tokens of an assembled prompt may be injected.

    Args:
        assembled: token ids and where the facts stand in them.
        resolution: whose facts they are and which are encoded.
        fingerprint: of the engine's model.
        unsupported: why this engine injects nothing, or ``None``.
    """
    ids = assembled.token_ids
    reason = assembled.fallback_reason or unsupported
    spans: list[InjectSpan] = []
    ensure: list[CaptureSpan] = []
    if reason is None:
        spans, ensure, reason = _spans(assembled, resolution, fingerprint)
    return Plan(
        token_ids=ids,
        salt=resolution.salt(bool(spans)),
        inject=spans,
        ensure=ensure,
        reason=reason,
        facts=len(resolution.facts) + len(resolution.refreshed),
        recalled=tuple(
            (fact.id, resolution.scores.get(fact.id))
            for fact in (*resolution.facts, *resolution.refreshed)
            if fact.id not in assembled.dropped
        ),
        dropped=assembled.dropped,
    )


def _spans(
    assembled: Assembled, resolution: Resolution, fingerprint: str
) -> tuple[list[InjectSpan], list[CaptureSpan], str | None]:
    ids, tenant = assembled.token_ids, resolution.tenant
    if not assembled.spans:
        return [], [], None
    preamble = chunk_key(
        tenant=tenant,
        owner=PREAMBLE_OWNER,
        fingerprint=fingerprint,
        context_ids=(),
        token_ids=ids[: assembled.preamble],
    )
    spans = [InjectSpan(preamble, 0, assembled.preamble)]
    ensure = [CaptureSpan(preamble, 0, assembled.preamble, volatile=True)]
    for fact_id, start, end in assembled.spans:
        if resolution.positional:
            key = chunk_key(
                tenant=tenant,
                owner=resolution.owner,
                fingerprint=fingerprint,
                context_ids=ids[:start],
                token_ids=ids[start:end],
            )
            ensure.append(CaptureSpan(key, start, end, volatile=True))
        elif (found := resolution.keys.get(fact_id)) is not None:
            key = found
        else:
            break
        spans.append(InjectSpan(key, start, end))
    if len(spans) == 1:
        return [], [], "not_encoded"
    return spans, ensure, None if len(spans) == len(assembled.spans) + 1 else "not_encoded"
