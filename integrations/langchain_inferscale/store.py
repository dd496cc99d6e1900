"""``InferScaleStore``: a langgraph store whose items are durable and whose texts are facts of a memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from inferscale_memory._extras import require
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.items import FoundItem, Namespace, Pattern, Put, Query
from inferscale_memory.items import Item as StoredItem
from inferscale_memory.items.store import ItemStore
from inferscale_memory.items.writing import check_value
from inferscale_memory.quality import Refresh
from inferscale_memory.scope import DEFAULT_TENANT

require("langgraph.store.base", "agents", "InferScaleStore")

from langgraph.store.base import (  # noqa: E402  # after the check, which says which extra brings it
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from langchain_inferscale._sweeper import Sweeper  # noqa: E402

if TYPE_CHECKING:
    from inferscale_memory import Memory
    from inferscale_memory.handle import Handle

_Path = list[str] | str


class _Batch(NamedTuple):
    """The operations of a batch by kind, each with its place."""

    gets: list[tuple[int, GetOp]]
    searches: list[tuple[int, SearchOp]]
    lists: list[tuple[int, ListNamespacesOp]]
    puts: list[tuple[int, PutOp]]


class InferScaleStore(BaseStore):
    """A langgraph store in the memory's own database.

    It behaves as langgraph's ``InMemoryStore`` with an index does, and beyond that: it survives restarts, is shared by
    threads and processes, puts of one batch are all written or none, and items may expire. What an item is indexed by
    are facts of the memory, so ``memory.recall(query, user_id="alice")``, middleware and tools see what was put in
    ``("alice",)``. What was put in ``("alice", "preferences")`` is another's by default, ``"alice/preferences"``'s:
    neither seen nor deleted with ``"alice"``, unless ``scope=`` says so. Values are JSON objects.

    Reads of a batch see the state before its puts. An item that is overwritten keeps ``created_at``. Expired items are
    never returned, whatever ``omit_expired`` says, and erased with their facts at opening, at most a minute after
    while the store is used, or by ``sweep_ttl`` and ``start_ttl_sweeper``.

    Args:
        memory: holds the database; its embedder ranks. The caller closes it.
        fields: what of an item is indexed where ``put`` does not say, as ``IndexConfig["fields"]``: ``["$"]``, the
            default, is the whole value as one JSON text, ``["text"]`` one field, ``["turns[*].text"]`` each of a list;
            ``[]`` indexes nothing.
        ttl: langgraph's ``TTLConfig``; minutes.
        scope: whose memory a namespace is: a function to ``{"user_id": ...}`` and the like. Default: its labels joined
            by ``/`` are the user (``/``, ``%`` and control characters in labels are percent-escaped).
        tenant_id: whose namespaces; a store sees those of its tenant only.

    Raises:
        MissingExtraError: langgraph is not installed.
        InvalidInputError: ``fields`` is not a list of paths, or ``ttl`` not a mapping.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: Memory,
        *,
        fields: Sequence[str] | None = None,
        ttl: TTLConfig | None = None,
        scope: Callable[[Namespace], Mapping[str, Any]] | None = None,
        tenant_id: str = DEFAULT_TENANT,
    ) -> None:
        if ttl is not None and not isinstance(ttl, Mapping):
            raise InvalidInputError(f"ttl is a {type(ttl).__name__}; want langgraph's TTLConfig, a dict.")
        self._paths = _tokenized(["$"] if fields is None else fields)
        self.items = ItemStore(memory, tenant_id=tenant_id, scope=scope)
        """The store underneath, which needs no langgraph."""
        self.ttl_config = ttl
        self._sweeper = Sweeper(self.items)

    @property
    def memory(self) -> Memory:
        """The memory that the items' facts are in."""
        return self.items.memory

    # -- langgraph's two ---------------------------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations; reads see the state before the puts, and of several puts of one item the last counts.

        Raises:
            InvalidNamespaceError: a namespace has a label that is empty, no string, or holds a period.
            InvalidInputError: a value is not JSON, a key, filter or time to live cannot be used; nothing is written.
            StoreError: the database refused.
        """
        given = list(ops)
        batch = _sorted(given)
        puts = [self._put(op) for _, op in batch.puts]
        results: list[Result] = [None] * len(given)
        used: list[StoredItem] = []
        names = [(op.namespace, op.key) for _, op in batch.gets]
        for (place, get), item in zip(batch.gets, self.items.get(names) if names else [], strict=True):
            results[place] = None if item is None else _item(item)
            if item is not None and get.refresh_ttl:
                used.append(item)
        for place, search in batch.searches:
            found = self.items.search(_query(search))
            results[place] = [_search_item(hit) for hit in found]
            used += [hit.item for hit in found if search.refresh_ttl]
        for place, wanted in batch.lists:
            patterns = [Pattern(one.match_type, tuple(one.path)) for one in wanted.match_conditions or ()]
            results[place] = self.items.namespaces(
                patterns, max_depth=wanted.max_depth, limit=wanted.limit, offset=wanted.offset
            )
        self.items.touch(used)
        self.items.put(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async twin of ``batch``: the same in a thread; cancelling it does not undo puts that have begun."""
        return await asyncio.to_thread(self.batch, list(ops))

    # -- handles -----------------------------------------------------------------------------------------------------

    def recall(
        self,
        namespace_prefix: Namespace,
        /,
        query: str,
        k: int = 10,
        *,
        refresh: Refresh | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Handle:
        """The facts of the ``k`` items below a prefix that answer a question best, as one KV handle.

        ``refresh`` is as in ``Memory.recall``; None: as the memory is set.

        Raises:
            InvalidInputError: several scopes' items lie below the prefix (a handle holds facts of one), or an argument
                is out of range.
        """
        return self.items.recall(namespace_prefix, query, k, refresh=refresh, filter=filter)

    async def arecall(
        self,
        namespace_prefix: Namespace,
        /,
        query: str,
        k: int = 10,
        *,
        refresh: Refresh | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Handle:
        """Async twin of ``recall``."""
        return await asyncio.to_thread(self.recall, namespace_prefix, query, k, refresh=refresh, filter=filter)

    # -- time to live ------------------------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Erase expired items and their facts now; returns how many items."""
        return self.items.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep in a thread, every so many minutes (default: the config's ``sweep_interval_minutes``, else 5).

        Returns:
            What ends when the sweeper does; cancelling it stops the sweeper. Without a ``ttl`` config it is done at
            once, as with langgraph's own stores. A sweeper that runs already is returned.

        Raises:
            InvalidInputError: the interval is not a positive number.
        """
        if self.ttl_config is None:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or 5)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper and wait at most ``timeout`` seconds; whether it is over."""
        return self._sweeper.stop(timeout)

    # ----------------------------------------------------------------------------------------------------------------

    def _put(self, op: PutOp) -> Put:
        namespace = tuple(op.namespace)
        if op.value is None:
            return Put(namespace, op.key, None)
        paths = self._paths
        if op.index is False:
            paths = []
        elif op.index is not None:
            paths = _tokenized(op.index)
        value = check_value(op.key, op.value)
        texts = [text for path in paths for text in get_text_at_path(value, path)]
        return Put(namespace, op.key, value, tuple(texts), op.ttl)


def _sorted(ops: Sequence[Op]) -> _Batch:
    batch = _Batch([], [], [], [])
    for place, op in enumerate(ops):
        if isinstance(op, GetOp):
            batch.gets.append((place, op))
        elif isinstance(op, SearchOp):
            batch.searches.append((place, op))
        elif isinstance(op, ListNamespacesOp):
            batch.lists.append((place, op))
        elif isinstance(op, PutOp):
            batch.puts.append((place, op))
        else:
            raise InvalidInputError(
                f"Unknown operation type: {type(op)}; want GetOp, SearchOp, PutOp, ListNamespacesOp."
            )
        validate_op_namespace(op)
    return batch


def _tokenized(paths: Sequence[str]) -> list[_Path]:
    if isinstance(paths, str) or not all(isinstance(path, str) for path in paths):
        raise InvalidInputError(f"index paths are {paths!r}; want a list of strings, such as ['text'] or ['$'].")
    return [path if path == "$" else tokenize_path(path) for path in paths]


def _query(op: SearchOp) -> Query:
    return Query(tuple(op.namespace_prefix), op.query, op.filter, op.limit, op.offset)


def _item(item: StoredItem) -> Item:
    return Item(
        value=item.value,
        key=item.key,
        namespace=item.namespace,
        created_at=item.created_at,
        updated_at=item.updated_at,
    )


def _search_item(hit: FoundItem) -> SearchItem:
    item = hit.item
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at, hit.score)
