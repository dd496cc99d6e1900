"""Scheduler side of the connector: how much of a prompt is covered, what workers must do, where tokens came from."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.kv.keys import context_digest
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving import compat
from inferscale_memory.serving.metadata import CapturePiece, LoadRun, StepMetadata, WorkerReport
from inferscale_memory.serving.protocol import (
    PARAMS_KEY,
    VERSION,
    Accounting,
    CaptureSpan,
    InjectPlan,
    RequestPlan,
    TapReport,
    parse_params,
)

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


@dataclass
class RequestState:
    """What the scheduler remembers of a request that has a plan."""

    plan: RequestPlan
    prompt: Sequence[int]
    reason: str | None = None
    covered: int = 0  # prompt tokens found covered when the request was last matched
    load: LoadRun | None = None
    loaded: LoadRun | None = None
    accounting: Accounting | None = None


class SchedulerSide:
    """Decides from the plan, the store on disk and the workers' reports; shares nothing else with the workers."""

    def __init__(self, root: Path, fingerprint: str, block_size: int, world: int) -> None:
        self.block_size = block_size
        self.world = world
        self.fingerprint = fingerprint
        self.store = ChunkStore(root, rank=0, world=world)
        self.tap: TapReport | None = None
        self.blocks: KVCacheManager | None = None
        self._generation = self.store.generation()
        self._here: set[str] = set()  # chunks that every worker can load: on disk, or volatile in all of them
        self._volatile: dict[str, int] = {}
        self._states: dict[str, RequestState] = {}

    # -- admission -----------------------------------------------------------------------------------------------------

    def matched_tokens(self, request: Request, local_hit: int) -> int:
        """Tokens past ``local_hit`` that can be injected; never the whole request. May be called again and again."""
        state = self._state(request)
        if state is None or not state.plan.inject:
            return 0
        covered, state.reason = self._covered(state.plan.inject, local_hit)
        # vLLM must compute at least one token; a resumed request counts its own output too.
        covered = state.covered = min(covered, request.num_tokens - 1)
        if _needs_every_row(request):
            state.reason = "prompt_logprobs"
            return 0
        return max(0, covered - local_hit)

    def _covered(self, inject: InjectPlan, local_hit: int) -> tuple[int, str | None]:
        self._refresh()
        # What native blocks hold already need not be there as a chunk: an unused chunk may have been evicted.
        first = bisect_right(inject.ends, local_hit)
        if self._here.issuperset(inject.keys[first:]):
            return inject.end, None
        for index in range(first, len(inject.keys)):
            if not self._available(inject.keys[index]):
                return inject.start(index), "chunk_missing" if index else "preamble_missing"
        return inject.end, None

    def _refresh(self) -> None:
        # A chunk deleted by any process moves the store's generation: what was known on disk is looked up again.
        generation = self.store.generation()
        if generation != self._generation:
            self._generation = generation
            self._here = {key for key, count in self._volatile.items() if count >= self.world}

    def _available(self, key: str) -> bool:
        if key in self._here:
            return True
        if self.store.exists(key, self.fingerprint):
            self._here.add(key)
            return True
        return False

    def _state(self, request: Request) -> RequestState | None:
        state = self._states.get(request.request_id)
        if state is None:
            prompt = request.prompt_token_ids
            if prompt is None or getattr(request, "mm_features", None) or getattr(request, "lora_request", None):
                return None
            try:
                plan = parse_params(request.kv_transfer_params, len(prompt))
            except InvalidInputError as error:
                logger.warning("request %s is served by plain prefill: %s", request.request_id, error)
                return None
            if plan is None:
                return None
            state = self._states[request.request_id] = RequestState(plan, prompt)
        return state

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def after_alloc(self, request: Request, blocks: KVCacheBlocks, injected: int) -> None:
        """Remember what to load once vLLM has given the request its blocks."""
        state = self._state(request)
        if state is None:
            return
        state.load = None
        if injected:
            # What was matched holds, even if a chunk was deleted since: then the load fails and is recomputed.
            stop = state.covered
            state.load = self._load_run(request.request_id, state, stop - injected, stop, blocks.get_block_ids()[0])

    def _load_run(self, request_id: str, state: RequestState, begin: int, stop: int, block_ids: list[int]) -> LoadRun:
        inject = state.plan.inject
        first, last = bisect_right(inject.ends, begin), bisect_left(inject.ends, stop)
        start = inject.start(first)
        return LoadRun(
            request_id=request_id,
            begin=begin,
            stop=stop,
            start=start,
            block_ids=list(block_ids),
            keys=inject.keys[first : last + 1],
            ends=inject.ends[first : last + 1],
            tokens=np.asarray(state.prompt[start : inject.ends[last]], dtype=np.int32).tobytes(),
        )

    def build(self, output: SchedulerOutput) -> StepMetadata:
        """Metadata of this step; loads are handed out once, captures piece by piece as their tokens are scheduled."""
        metadata = StepMetadata()
        for request_id, computed, scheduled in compat.scheduled_requests(output):
            state = self._states.get(request_id)
            if state is None:
                continue
            self._account(state, computed)
            if state.load is not None:
                metadata.loads.append(state.load)
                state.loaded, state.load = state.load, None
            if any(span.end > computed and span.start < computed + scheduled for span in state.plan.capture):
                blocks = compat.block_ids_of(output, request_id)
                for span in state.plan.capture:
                    piece = self._piece(request_id, state, span, computed, computed + scheduled, blocks)
                    if piece is not None:
                        metadata.captures.append(piece)
        return metadata

    def _piece(
        self, request_id: str, state: RequestState, span: CaptureSpan, begin: int, stop: int, blocks: list[int]
    ) -> CapturePiece | None:
        begin, stop = max(begin, span.start), min(stop, span.end)
        if begin >= stop:
            return None
        first, last = begin // self.block_size, (stop - 1) // self.block_size
        tokens, context = None, None
        if stop == span.end:
            context = context_digest(state.prompt[: span.start])
            tokens = np.asarray(state.prompt[span.start : span.end], dtype=np.int32).tobytes()
        return CapturePiece(
            request_id=request_id,
            key=span.key,
            start=span.start,
            end=span.end,
            begin=begin,
            stop=stop,
            first_block=first,
            block_ids=blocks[first : last + 1],
            volatile=span.volatile,
            verify=span.verify,
            tokens=tokens,
            context=context,
        )

    def _account(self, state: RequestState, computed: int) -> None:
        # Only the first admission counts; a resumed request keeps the figures of its first pass.
        if state.accounting is not None:
            return
        injected = state.load.stop - state.load.begin if state.load is not None else 0
        reason = state.reason if state.plan.inject.end > computed else None
        state.accounting = Accounting(injected, computed - injected, len(state.prompt) - computed, reason)

    # -- reports -------------------------------------------------------------------------------------------------------

    def update(self, output: KVConnectorOutput) -> None:
        """Take in what the workers stored, evicted and failed to load."""
        self._uncache(output.invalid_block_ids)
        report = output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            for key, count in report.stored.items():
                self._volatile[key] = self._volatile.get(key, 0) + count
                if self._volatile[key] >= self.world:
                    self._here.add(key)
            for key in report.gone:
                self._volatile.pop(key, None)
                self._here.discard(key)
            if report.tap is not None:
                self.tap = report.tap
            for request_id, reason in report.load_errors.items():
                self._load_failed(request_id, reason, output.invalid_block_ids)

    def _uncache(self, invalid: set[int]) -> None:
        """Take blocks of a failed load, and those computed over them, out of the native prefix cache.

        vLLM recomputes them in place and leaves them cached meanwhile; a request that is aborted or preempted before
        that is done would leave garbage for the next one of the same salt.
        """
        if not invalid or self.blocks is None:
            return
        for request_id in self._states:
            ids = self.blocks.get_block_ids(request_id)[0]
            bad = next((index for index, block in enumerate(ids) if block in invalid), None)
            if bad is not None:
                self.blocks.evict_blocks(set(ids[bad:]))

    def _load_failed(self, request_id: str, reason: str, invalid: set[int]) -> None:
        state = self._states.get(request_id)
        if state is None or state.loaded is None or state.accounting is None:
            return
        bad = next((i for i, block in enumerate(state.loaded.block_ids) if block in invalid), None)
        if bad is None:
            return
        good = max(0, bad * self.block_size - state.loaded.begin)
        lost = max(0, state.accounting.injected - good)
        state.accounting = replace(
            state.accounting,
            injected=state.accounting.injected - lost,
            prefilled=state.accounting.prefilled + lost,
            fallback_reason=reason,
        )

    def finished(self, request: Request) -> dict[str, Any] | None:
        """What the caller gets back through ``kv_transfer_params``; forgets the request."""
        state = self._states.pop(request.request_id, None)
        if state is None:
            return None
        result: dict[str, Any] = {"v": VERSION}
        if state.accounting is not None:
            result["accounting"] = state.accounting.as_dict()
        if self.tap is not None:
            result["tap"] = asdict(self.tap)
        return {PARAMS_KEY: result}


def _needs_every_row(request: Request) -> bool:
    """Whether the request reads rows that an injected prompt does not compute.

    Prompt logprobs set ``skip_reading_prefix_cache``, and vLLM then drops the answer anyway. Where a caller turned that
    off, only undetokenized ones are safe: the uncovered rows are garbage that vLLM's detokenizer dies of.
    """
    if getattr(request, "skip_reading_prefix_cache", False):
        return True
    sampling = getattr(request, "sampling_params", None)
    return bool(sampling is not None and sampling.prompt_logprobs is not None and sampling.detokenize)
