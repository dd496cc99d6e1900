from __future__ import annotations

import importlib

from prometheus_client import REGISTRY as DEFAULT_REGISTRY

from inferscale_memory import metrics


def test_every_metric_is_exposed_under_the_librarys_name():
    names = [metric.name for metric in metrics.REGISTRY.collect()]
    assert {"inferscale_encoded_chunks", "inferscale_fallbacks", "inferscale_recall_seconds"} <= set(names)
    assert all(name.startswith("inferscale_") for name in names)
    assert b"inferscale_encode_parked_total" in metrics.exposition()


def test_counts_are_kept_by_reason():
    before = metrics.HANDLES_REJECTED.labels("expired")._value.get()
    metrics.HANDLES_REJECTED.labels("expired").inc()
    counted = metrics.REGISTRY.get_sample_value("inferscale_handles_rejected_total", {"reason": "expired"})
    assert counted == before + 1


def test_the_applications_own_registry_is_left_alone():
    assert not [m.name for m in DEFAULT_REGISTRY.collect() if m.name.startswith("inferscale_")]


def test_the_module_may_be_imported_twice():
    spec = importlib.util.find_spec("inferscale_memory.metrics")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.REGISTRY is not metrics.REGISTRY
