"""Every Prometheus metric of the library, in one private registry.

The registry is private so that importing this module twice, or beside an application's own default registry, never
raises "duplicated timeseries". Expose it with ``prometheus_client.make_asgi_app(registry=metrics.REGISTRY)``.
Metrics are per process: what the engine's worker counts travels to the caller in the request's accounting.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()
"""Holds every metric below."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"inferscale_{name}", text, labels, registry=REGISTRY)


def _seconds(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(f"inferscale_{name}_seconds", text, labels, registry=REGISTRY, buckets=_SECONDS)


ENCODED = _counter("encoded_chunks", "Facts whose attention state was captured and stored")
ENCODE_RETRIES = _counter("encode_retries", "Encodings that failed and were tried again")
ENCODE_PARKED = _counter("encode_parked", "Facts set aside after their last failed encoding")
ENCODE_DISCARDED = _counter("encode_discarded", "Chunks thrown away because a fact was deleted or changed meanwhile")
ENCODE_WAITING = Gauge("inferscale_encode_waiting", "Facts waiting to be encoded, at the last scan", registry=REGISTRY)
ENCODE_SECONDS = _seconds("encode", "One capture request, from sending to the chunk on disk")
CAPTURE_MISMATCHES = _counter("capture_mismatches", "Captures whose rows differ from their span in some layer")
CHUNKS_LOST = _counter("chunks_lost", "Chunks recorded as ready whose file was gone or unreadable")
CHUNKS_PURGED = _counter("chunks_purged", "Chunk files deleted because a fact they carry traces of was")

INJECTED_TOKENS = _counter("injected_tokens", "Prompt tokens written into the cache from chunks")
LOCAL_HIT_TOKENS = _counter("local_hit_tokens", "Prompt tokens found in the engine's own prefix cache")
PREFILLED_TOKENS = _counter("prefilled_tokens", "Prompt tokens run through the model")
FALLBACKS = _counter("fallbacks", "Requests with facts of which some were prefilled, by reason", "reason")
HANDLES_REJECTED = _counter("handles_rejected", "Handles removed from a prompt unresolved, by reason", "reason")
FACTS_DROPPED = _counter("facts_dropped", "Recalled facts left out because the prompt would not have fitted")
AGENT_MEMORY_FAILURES = _counter(
    "agent_memory_failures", "Recalls and saves that failed while an agent went on without", "work", "reason"
)

RECALL_SECONDS = _seconds("recall", "One recall: embedding, search, ordering and minting the handle")
SEARCH_SECONDS = _seconds("search", "One vector search, the query's embedding included")


def exposition() -> bytes:
    """All metrics in the Prometheus text format, UTF-8."""
    return generate_latest(REGISTRY)
