"""What travels between the connector's two sides: indices down to the workers, reports up to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from inferscale_memory.serving.protocol import TapReport


@dataclass
class CapturePiece:
    """Rows of one capture span that are computed in this step.

    ``[begin, stop)`` are prompt positions, a part of the chunk's ``[start, end)``; ``block_ids[i]`` is the cache block
    that holds positions ``[(first_block + i) * block_size, ...)``. ``tokens`` are the chunk's token ids, int32 bytes,
    and ``context`` the digest of what stands before it, in the piece that ends the chunk.
    """

    request_id: str
    key: str
    start: int
    end: int
    begin: int
    stop: int
    first_block: int
    block_ids: list[int]
    volatile: bool
    verify: bool
    tokens: bytes | None = None
    context: str | None = None


@dataclass
class LoadRun:
    """Fill prompt positions ``[begin, stop)`` of a request from chunks, before this step's forward.

    The chunks follow each other from position ``start`` on, the ``i``-th ends at ``ends[i]``; the first may begin
    before ``begin`` and the last may end after ``stop``. ``tokens`` are the prompt's token ids at ``[start, ends[-1])``
    as int32 bytes: the worker refuses a chunk of other tokens. ``block_ids`` are those of the whole request.
    """

    request_id: str
    begin: int
    stop: int
    start: int
    block_ids: list[int]
    keys: tuple[str, ...]
    ends: tuple[int, ...]
    tokens: bytes


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Everything the workers need in one step."""

    captures: list[CapturePiece] = field(default_factory=list)
    loads: list[LoadRun] = field(default_factory=list)


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """What the workers did since the last report; counts are by worker, so that tensor-parallel ranks can be told."""

    stored: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    load_errors: dict[str, str] = field(default_factory=dict)
    tap: TapReport | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merge another worker's report into a new one; the worse tap report wins."""
        assert isinstance(other, WorkerReport)
        stored = dict(self.stored)
        for key, count in other.stored.items():
            stored[key] = stored.get(key, 0) + count
        taps = [report for report in (self.tap, other.tap) if report is not None]
        return WorkerReport(
            stored=stored,
            gone=self.gone | other.gone,
            load_errors={**self.load_errors, **other.load_errors},
            tap=min(taps, key=lambda report: (report.problem is None, report.identical)) if taps else None,
        )

    def __bool__(self) -> bool:
        return bool(self.stored or self.gone or self.load_errors or self.tap)
