"""What travels in ``kv_transfer_params``."""

import json

import pytest

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.serving.protocol import (
    PARAMS_KEY,
    CaptureSpan,
    InjectSpan,
    TapReport,
    capture_params,
    inject_params,
    parse_accounting,
    parse_params,
)

KEY, OTHER = "a" * 64, "b" * 64


def test_a_plan_comes_back_as_it_was_sent() -> None:
    spans = [InjectSpan(KEY, 0, 3), InjectSpan(OTHER, 3, 9)]
    plan = parse_params(inject_params(spans), prompt_tokens=10)
    assert plan is not None
    assert (plan.inject.keys, plan.inject.ends) == ((KEY, OTHER), (3, 9))
    assert [plan.inject.start(0), plan.inject.start(1), plan.inject.end] == [0, 3, 9]
    assert plan.capture == ()


def test_a_capture_comes_back_as_it_was_sent() -> None:
    spans = [CaptureSpan(KEY, 2, 5, volatile=True), CaptureSpan(OTHER, 5, 6, verify=True)]
    plan = parse_params(capture_params(spans), prompt_tokens=6)
    assert plan is not None
    assert list(plan.capture) == spans


def test_parameters_of_other_connectors_are_left_alone() -> None:
    assert parse_params(None, 5) is None
    assert parse_params({"do_remote_prefill": True}, 5) is None


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([InjectSpan(KEY, 0, 11)], "outside a prompt of 10 tokens"),
        ([InjectSpan(KEY, -1, 3)], "have a hole"),
        ([InjectSpan(KEY, 0, 3), InjectSpan(OTHER, 3, 3)], "outside a prompt"),
        ([InjectSpan(KEY, 1, 3)], "have a hole"),
        ([InjectSpan(KEY, 0, 3), InjectSpan(OTHER, 4, 5)], "have a hole"),
        ([InjectSpan("../../etc/passwd", 0, 3)], "not 1 times 64 hex digits"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans: list[InjectSpan], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_params(inject_params(spans), prompt_tokens=10)


def test_as_many_keys_as_ends_are_wanted() -> None:
    with pytest.raises(InvalidInputError, match="not 2 times 64 hex digits"):
        parse_params({PARAMS_KEY: {"v": 2, "inject": [KEY, [3, 9]]}}, 10)


def test_a_plan_grows_by_a_key_and_a_number_per_chunk() -> None:
    # What the scheduler reads for every request: no tensors, no tokens.
    spans = [InjectSpan(f"{at:064x}", 25 * at, 25 * at + 25) for at in range(400)]
    assert len(json.dumps(inject_params(spans))) < 400 * (64 + 8) + 100


@pytest.mark.parametrize(
    "raw", [{"v": 1}, {}, {"v": 2, "inject": [["x"]]}, {"v": 2, "inject": 7}, {"v": 2, "inject": [KEY, ["x"]]}, "text"]
)
def test_malformed_parameters_are_refused_and_named(raw: object) -> None:
    with pytest.raises(InvalidInputError, match="kv_transfer_params"):
        parse_params({PARAMS_KEY: raw}, 10)


def test_a_request_that_the_connector_did_not_see_has_no_accounting() -> None:
    assert parse_accounting(None) is None
    assert parse_accounting({PARAMS_KEY: {"v": 1}}) is None


def test_a_tap_is_exact_only_when_nothing_differs_and_nothing_is_wrong() -> None:
    assert TapReport("exact", 3, 3, identical=1.0, max_abs=0.0).exact
    assert not TapReport("exact", 3, 3, identical=0.99, max_abs=0.1).exact
    assert not TapReport("exact", 3, 3, identical=1.0, max_abs=0.0, problem="2 layers").exact
