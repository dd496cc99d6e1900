"""Verifying by behaviour, once per start: what is captured and injected must reproduce a prefill."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any

from inferscale_memory.serving import compat
from inferscale_memory.serving.client import run_request
from inferscale_memory.serving.protocol import (
    CaptureSpan,
    InjectSpan,
    TapReport,
    capture_params,
    inject_params,
    parse_accounting,
    parse_tap_report,
)
from inferscale_memory.serving.support import SupportReport

if TYPE_CHECKING:
    from inferscale_memory.serving.engine import LocalEngine

PROMPT_TOKENS = 48
# What an engine that is not bit-stable may differ by: two prefills of one prompt in different batch shapes were seen
# 0.25 apart on a CPU. More than this says that the keys are wrong, not that sums were taken in another order.
MAX_ERROR = 0.5


async def verify(engine: LocalEngine) -> SupportReport:
    """Capture a short prompt, inject it, and compare with its prefill over the whole vocabulary."""
    count = min(PROMPT_TOKENS, engine.max_model_len - 2)
    vocabulary = engine.client.model_config.get_vocab_size()
    # Scattered, fixed token ids: a repetitive prompt could hide a wrong rotation.
    tokens = [(7919 * index + 13) % min(vocabulary, 4096) for index in range(1, count + 1)]
    key = hashlib.sha256(b"warm-up" + secrets.token_bytes(16)).hexdigest()
    plain = await _run(engine, tokens, inject_params([]))
    spans = [CaptureSpan(key, 0, count - 1, volatile=True, verify=True)]
    await _run(engine, tokens, capture_params(spans), skip_reading_prefix_cache=True)
    injected = await _run(engine, tokens, inject_params([InjectSpan(key, 0, count - 1)]))
    tap = parse_tap_report(injected.kv_transfer_params)
    accounting = parse_accounting(injected.kv_transfer_params)
    if tap is None:
        return SupportReport(False, "the workers never reported a capture: the attention layers cannot be hooked")
    if tap.problem:
        return SupportReport(False, tap.problem, tap)
    if accounting is None or accounting.injected != count - 1:
        return SupportReport(False, f"the warm-up prompt was not injected ({accounting})", tap)
    error = distance(plain, injected)
    return _judge(tap, error)


def _judge(tap: TapReport, error: float) -> SupportReport:
    if tap.tap == "exact" and not tap.exact:
        lost = f"{1 - tap.identical:.2%} of the keys differ, by up to {tap.max_abs}"
        reason = f"rotating captured keys does not give back what the engine wrote: {lost}"
        return SupportReport(False, reason, tap, error)
    bound = 0.0 if tap.tap == "exact" and compat.platform_is_cpu() else MAX_ERROR
    if not error <= bound:
        reason = f"the injected warm-up prompt is {error} off its prefill (log-probability)"
        return SupportReport(False, reason, tap, error)
    return SupportReport(True, None, tap, error)


async def _run(engine: LocalEngine, tokens: list[int], params: dict[str, Any], **sampling: Any) -> Any:
    limit = engine.client.model_config.max_logprobs
    # Salted with a nonce: the second prefill of the same tokens must not be a native hit.
    salt = secrets.token_hex(32)
    return await run_request(
        engine.client, tokens, params, salt=salt, detokenize=False, logprobs=max(limit, -1), **sampling
    )


def distance(first: Any, second: Any) -> float:
    """Largest difference between two outputs' first-token log-probabilities, over the tokens both report."""
    one, two = first.outputs[0].logprobs[0], second.outputs[0].logprobs[0]
    shared = one.keys() & two.keys()
    if not shared:
        return float("inf")
    return max(abs(one[token].logprob - two[token].logprob) for token in shared)
