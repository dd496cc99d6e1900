"""What stands behind a handle: the memory's side of the engine's ``HandleResolver``."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferscale_memory import metrics
from inferscale_memory.encoding.ledger import ChunkLedger, ChunkRef
from inferscale_memory.encoding.policies import Policy, chosen_at, chunk_policies
from inferscale_memory.errors import HandleError
from inferscale_memory.facts import Fact, FactStore
from inferscale_memory.handles import HandleBook, HandleRecord, SecretRing
from inferscale_memory.prompt import PromptBuilder, PromptFact
from inferscale_memory.salt import salt
from inferscale_memory.scope import Scope, digest
from inferscale_memory.serving.resolve import Resolution

logger = logging.getLogger(__name__)

TOKENIZED_FACTS = 20_000


@dataclass(frozen=True)
class EngineSide:
    """What resolving needs to know of the engine that will run the prompt."""

    fingerprint: str
    prompt: PromptBuilder


class MemoryResolver:
    """Opens handles and lays out their facts.

    Args:
        store: the facts.
        ledger: which of them are encoded.
        book: the handles.
        secrets: what salts are derived from.
        policy: what facts are encoded behind.
        engine: the engine side, once one is bound.
        lost: called with chunk keys that the engine could not load.
        scores: what a handle's facts were recalled with, by fact id; empty where this process did not recall it.
    """

    def __init__(
        self, store: FactStore, ledger: ChunkLedger, book: HandleBook, secrets: SecretRing, policy: Policy,
        engine: EngineSide, lost: Callable[[Sequence[str]], None], scores: Callable[[str], Mapping[str, float]],
    ) -> None:  # fmt: skip
        self._store, self._ledger, self._book, self._secrets = store, ledger, book, secrets
        self._policy, self._engine, self._lost, self._scores = policy, engine, lost, scores
        self._tokens: OrderedDict[tuple[str, int], tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def resolve(
        self, handles: Sequence[str], scope: Scope | None, own: Mapping[str, Scope] | None = None
    ) -> Resolution | None:
        """See ``HandleResolver``. Facts of several handles stand in the order of the handles, each once.

        Of a prompt that is too long the worst-ranked go first, those of earlier handles before those of later ones.

        Facts that are not encoded yet stand behind the encoded ones: a hole would end the injected run.
        """
        named = own or {}
        opened = [self._open(handle, named.get(handle, scope)) for handle in handles]
        records = [record for record in opened if record is not None]
        if not records:
            return None
        # The epoch before the facts: should one be deleted in between, its blocks bear the old epoch's salt, which
        # nobody asks for again.
        salts = self._salts(records)
        found = self._store.get_many({fact_id for record in records for fact_id, _ in record.facts})
        facts, refreshed = _laid_out(records, found)
        ranks = _ranks(records, [fact.id for fact in facts], [fact.id for fact in refreshed])
        placed = [self._prompt_fact(fact, ranks[fact.id]) for fact in [*facts, *refreshed]]
        keys: dict[str, str] = {}
        if not self._policy.positional:
            refs = self._refs(facts, placed)
            placed[: len(facts)] = sorted(placed[: len(facts)], key=lambda fact: fact.id not in refs)
            there = [fact.id for fact in placed[: len(refs)]]
            keys = {fact_id: chosen_at(self._policy, at, refs[fact_id]).key for at, fact_id in enumerate(there)}
        return Resolution(
            tenant=records[0].scope.tenant,
            owner=records[0].scope.principal,
            facts=tuple(placed[: len(facts)]),
            refreshed=tuple(placed[len(facts) :]),
            keys=keys,
            salt=salts,
            positional=self._policy.positional,
            scores={fact_id: score for handle in handles for fact_id, score in self._scores(handle).items()},
        )

    def _refs(self, facts: Sequence[Fact], placed: Sequence[PromptFact]) -> dict[str, dict[str, ChunkRef]]:
        """Chunks of each encoded fact by policy; one of another revision, updated since the text was read, is none."""
        names = chunk_policies(self._policy)
        found = self._ledger.lookup_all([fact.id for fact in facts], self._engine.fingerprint, names)
        refs: dict[str, dict[str, ChunkRef]] = {}
        for fact, place in zip(facts, placed, strict=False):  # the refreshed ones follow
            wanted = fact.revision, len(place.tokens)
            there = {
                name: ref for name, ref in found.get(fact.id, {}).items() if (ref.revision, ref.n_tokens) == wanted
            }
            if there:
                refs[fact.id] = there
        return refs

    def missing(self, keys: Sequence[str]) -> None:
        """The engine could not load some of these chunks; they are looked at, and encoded again if need be."""
        self._lost(keys)

    def count_tokens(self, fact: Fact) -> int:
        """Tokens of a fact's line as it will stand in the prompt; kept, so that the prompt need not count again."""
        return len(self._prompt_fact(fact, 0).tokens)

    def encode_salt(self, fact: Fact) -> str:
        """Salt of the encode request of a fact."""
        return self._salt(fact.scope, "", injecting=False, epoch=self._store.epoch(fact.scope))

    def _open(self, handle: str, scope: Scope | None) -> HandleRecord | None:
        try:
            return self._book.open(handle, scope)
        except HandleError as error:
            metrics.HANDLES_REJECTED.labels(error.reason).inc()
            logger.warning("a handle was removed from the prompt (%s): its facts are not used.", error.reason)
            return None

    def _prompt_fact(self, fact: Fact, rank: int) -> PromptFact:
        known = (fact.id, fact.revision)
        with self._lock:
            tokens = self._tokens.get(known)
        if tokens is None:
            tokens = self._engine.prompt.fact_tokens(fact.text)
            with self._lock:
                self._tokens[known] = tokens
                while len(self._tokens) > TOKENIZED_FACTS:
                    self._tokens.popitem(last=False)
        return PromptFact(fact.id, tokens, rank)

    def forget(self, fact_ids: Sequence[str]) -> None:
        """Drop what is cached of deleted facts."""
        gone = set(fact_ids)
        with self._lock:
            for known in [known for known in self._tokens if known[0] in gone]:
                del self._tokens[known]

    def _salts(self, records: Sequence[HandleRecord]) -> Callable[[bool], str]:
        scopes = sorted({record.scope.key: record.scope for record in records}.items())
        # Several scopes in one prompt share a salt of their own; any of their epochs moves it.
        merged = "" if len(scopes) == 1 else digest("scopes", *(key for key, _ in scopes))
        epoch = sum(self._store.epoch(scope) for _, scope in scopes)
        return lambda injecting: self._salt(scopes[0][1], merged, injecting=injecting, epoch=epoch)

    def _salt(self, scope: Scope, merged: str, *, injecting: bool, epoch: int) -> str:
        return salt(
            self._secrets.current(),
            tenant=scope.tenant,
            scope_key=merged or scope.key,
            fingerprint=self._engine.fingerprint,
            policy=self._policy.name,
            injecting=injecting,
            epoch=epoch,
        )


def _laid_out(records: Sequence[HandleRecord], found: dict[str, Fact]) -> tuple[list[Fact], list[Fact]]:
    """Facts to inject and facts to refresh, in prompt order; deleted ones are left out, doubles stand once."""
    late = {fact_id for record in records for fact_id, _ in record.facts[len(record.facts) - record.refresh :]}
    wanted = {fact_id: record.scope for record in records for fact_id, _ in record.facts}
    there = [
        found[fact_id] for fact_id, scope in wanted.items() if fact_id in found and scope.covers(found[fact_id].scope)
    ]
    return [fact for fact in there if fact.id not in late], [fact for fact in there if fact.id in late]


def _ranks(records: Sequence[HandleRecord], facts: Sequence[str], refreshed: Sequence[str]) -> dict[str, int]:
    """Rank of every fact in the whole prompt, 0 for the most relevant: refreshed ones before injected ones."""
    own: dict[str, tuple[int, int]] = {}
    for number, record in enumerate(records):
        for (fact_id, _), rank in zip(record.facts, record.ranks, strict=True):
            own.setdefault(fact_id, (-number, rank))
    best_first = [*sorted(refreshed, key=own.__getitem__), *sorted(facts, key=own.__getitem__)]
    return {fact_id: rank for rank, fact_id in enumerate(best_first)}
