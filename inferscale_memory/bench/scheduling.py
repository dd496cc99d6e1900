"""What a request costs on the scheduler's side of the connector, measured without an engine."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferscale_memory.errors import EngineError
from inferscale_memory.serving.protocol import inject_params
from inferscale_memory.serving.resolve import Plan

ROUNDS = 200


def scheduler_us(plan: Plan, root: Path, fingerprint: str, block_size: int, rounds: int = ROUNDS) -> float:
    """Median microseconds from a request's parameters to the load that is handed to the workers.

    That is: parsing and checking the plan, finding how far it is covered, and naming chunks, blocks and tokens. What
    the chunks' files say is known by then, as it is from the second use of a chunk on.

    Args:
        plan: injected from 0 on.
        root: the KV folder.
        fingerprint: of the model.
        block_size: tokens per cache block.
        rounds: how many requests are measured.

    Raises:
        EngineError: the plan is not covered by what is in the folder.
    """
    from inferscale_memory.serving.metadata import WorkerReport
    from inferscale_memory.serving.scheduler import SchedulerSide

    side = SchedulerSide(root, fingerprint, block_size, 1)
    report = WorkerReport(stored={span.key: 1 for span in plan.ensure})
    side.update(_anything(invalid_block_ids=set(), kv_connector_worker_meta=report))
    blocks = _anything(get_block_ids=lambda: [list(range(-(-len(plan.token_ids) // block_size)))])
    taken = []
    for number in range(rounds + 1):
        request = _anything(
            request_id=str(number),
            prompt_token_ids=plan.token_ids,
            num_tokens=len(plan.token_ids),
            kv_transfer_params=inject_params(plan.inject),
            sampling_params=None,
        )
        start = time.perf_counter()
        matched = side.matched_tokens(request, 0)
        side.after_alloc(request, blocks, matched)
        taken.append(time.perf_counter() - start)
        if matched != plan.injectable:
            raise EngineError(f"{matched} tokens of the plan are covered, wanted {plan.injectable}.")
        side.finished(request)
    return 1e6 * statistics.median(taken[1:])


def _anything(**fields: Any) -> Any:
    """An object of vLLM's that is asked for these fields only."""
    return SimpleNamespace(**fields)
