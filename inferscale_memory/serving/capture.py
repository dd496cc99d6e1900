"""Capture requests: encoding a chunk, making sure that a prompt's own chunks exist, nudging the workers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferscale_memory import metrics
from inferscale_memory.errors import EncodingError
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving.client import run_request
from inferscale_memory.serving.protocol import (
    Accounting,
    CaptureResult,
    CaptureSpan,
    capture_params,
    inject_params,
    parse_params,
)
from inferscale_memory.serving.resolve import Plan

logger = logging.getLogger(__name__)

KNOWN_KEYS = 65_536
# A volatile chunk that does not fit the workers' arena would otherwise be captured again for every question.
MAX_LOST = 3
LOST_SECONDS = 60.0


class Capturer:
    """Sends one-token requests that capture; lives on the engine's loop.

    Which volatile chunks the workers hold is only assumed here (``_known``). A wrong assumption costs a prefill: the
    scheduler reports the hole, :meth:`learn` forgets the chunk, and the next question captures it again.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._known: OrderedDict[str, int] = OrderedDict()  # key -> where its chunk begins
        self._lost: OrderedDict[str, tuple[int, float]] = OrderedDict()  # key -> times, and when last
        self._flights: dict[str, asyncio.Future[None]] = {}
        config = client.vllm_config
        self._limit = config.model_config.max_model_len - 1
        transfer = config.kv_transfer_config
        self._store: ChunkStore | None = None
        self._fingerprint = ""
        if transfer is not None:
            extra = transfer.kv_connector_extra_config
            self._fingerprint = str(extra["fingerprint"])
            self._store = ChunkStore(Path(extra["root"]), world=config.parallel_config.tensor_parallel_size)

    async def capture(self, token_ids: Sequence[int], spans: Sequence[CaptureSpan], *, salt: str) -> CaptureResult:
        """Encode; see ``LocalEngine.capture``."""
        if self._store is None:
            return CaptureResult(frozenset(), {span.key: "this engine captures nothing" for span in spans})
        params = capture_params(spans)
        parse_params(params, len(token_ids))
        await self._send(token_ids, params, salt)
        stored, failed = set(), {}
        for span in spans:
            if span.volatile or self._store.exists(span.key, self._fingerprint):
                stored.add(span.key)
            else:
                metrics.CAPTURE_MISMATCHES.inc()
                failed[span.key] = "the worker did not capture every row of it, or could not write it (see its log)"
        return CaptureResult(frozenset(stored), failed)

    async def ensure(self, plan: Plan) -> None:
        """Capture the prompt's own volatile chunks (its preamble) that the workers do not have; single flight."""
        missing = [span for span in plan.ensure if span.key not in self._known and self._worth(span.key)]
        while missing:
            flying = {self._flights[span.key] for span in missing if span.key in self._flights}
            if not flying:
                await self._fly(plan, missing)
                return
            await asyncio.wait(flying)
            missing = [span for span in missing if span.key not in self._known and self._worth(span.key)]

    async def _fly(self, plan: Plan, missing: Sequence[CaptureSpan]) -> None:
        flight: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flights.update({span.key: flight for span in missing})
        try:
            end = min(max(span.end for span in missing), self._limit)
            spans = [span for span in missing if span.end <= end]
            # Salted with a nonce: nothing is ever read back from these blocks, and nobody else may hit them.
            await self._send(plan.token_ids[:end], capture_params(spans), secrets.token_hex(32))
            for span in spans:
                self._known[span.key] = span.start
            while len(self._known) > KNOWN_KEYS:
                self._known.popitem(last=False)
        except EncodingError as error:
            # The question itself is still answered, by prefill.
            logger.warning("a prompt's own chunks could not be captured: %s", error)
            for span in missing:
                self._lose(span.key)
        finally:
            for span in missing:
                self._flights.pop(span.key, None)
            flight.set_result(None)

    def learn(self, plan: Plan, accounting: Accounting) -> None:
        """Forget volatile chunks that turned out not to be there."""
        for span in plan.ensure:
            if span.end <= accounting.covered:
                self._lost.pop(span.key, None)
            elif accounting.fallback_reason is not None and span.key in self._known:
                del self._known[span.key]
                self._lose(span.key)

    def _lose(self, key: str) -> None:
        times, _ = self._lost.pop(key, (0, 0.0))
        self._lost[key] = times + 1, time.monotonic()
        while len(self._lost) > KNOWN_KEYS:
            self._lost.popitem(last=False)

    def _worth(self, key: str) -> bool:
        times, last = self._lost.get(key, (0, 0.0))
        return times < MAX_LOST or time.monotonic() - last > LOST_SECONDS

    async def nudge(self) -> None:
        """Run one step, in which the workers look at the store's generation and drop what holds facts but no file."""
        for key in [key for key, start in self._known.items() if start]:
            del self._known[key]
        await self._send([1], inject_params([]), secrets.token_hex(32))

    async def _send(self, token_ids: Sequence[int], params: dict[str, Any], salt: str) -> None:
        await run_request(self._client, token_ids, params, salt=salt, detokenize=False, skip_reading_prefix_cache=True)
