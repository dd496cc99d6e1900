"""A compiled engine captures rotated keys and turns them back: close to a prefill, and measured at start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import remember, salted
from small_models import QUESTION, SYSTEM_PROMPT, facts

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.serving.resolve import Plan
from inferscale_memory.serving.warmup import distance

pytestmark = pytest.mark.full

CLOSE = 0.15
"""Log-probability over the vocabulary; 0.03 was measured, where a native prefix hit is 0.0 off."""
APART = 0.5
"""2.3 was measured."""


@pytest.fixture(scope="module")
def compiled(model_folder: Callable[[str], Path], start: Callable[..., Any]) -> Iterator[LocalEngine]:
    with start(model_folder("llama-3.1"), enforce_eager=False, in_process=False) as engine:
        yield engine


def plan_of(engine: LocalEngine, memory: Memory, user: str) -> Plan:
    remember(memory, facts(24), user)
    handle = memory.recall(QUESTION, 10, refresh=0, user_id=user)
    return engine.plan(
        [{"role": "system", "content": f"{SYSTEM_PROMPT} {handle}"}, {"role": "user", "content": QUESTION}]
    )


def run(engine: LocalEngine, plan: Plan, *, inject: bool = True) -> Any:
    return engine.generate(plan, inject=inject, logprobs=-1, detokenize=False)


def test_the_report_names_the_tap_and_its_measured_error(compiled: LocalEngine) -> None:
    report = compiled.report
    assert report.supported, report.reason
    assert report.tap is not None
    assert report.tap.tap == "un-rotated"
    assert 0.5 < report.tap.identical < 1.0
    assert report.tap.max_abs > 0.0
    assert report.logprob_error is not None


def test_injection_is_close_to_a_prefill_on_the_first_call_and_the_next(
    compiled: LocalEngine, open_memory: Callable[..., Memory], user: str
) -> None:
    plan = plan_of(compiled, open_memory(compiled, policy="prefix"), user)
    cold = run(compiled, salted(plan, "cold"), inject=False)
    first, second = run(compiled, plan), run(compiled, plan)
    assert compiled.accounting(first).injected == plan.inject[-1].end
    assert compiled.accounting(second).local_hit > 0
    assert distance(cold, first) < CLOSE
    assert distance(cold, second) < CLOSE


def test_a_plain_request_of_the_same_tokens_is_not_served_injected_rows(
    compiled: LocalEngine, open_memory: Callable[..., Memory], user: str
) -> None:
    plan = plan_of(compiled, open_memory(compiled, policy="prefix"), user)
    injected = run(compiled, plan)
    cold = run(compiled, salted(plan, "cold-and-plain"), inject=False)
    plain = run(compiled, replace(plan, salt=None), inject=False)
    assert compiled.accounting(injected).injected > 0
    assert compiled.accounting(plain).local_hit == 0
    assert distance(cold, plain) == 0.0


def test_facts_encoded_alone_are_further_off(
    compiled: LocalEngine, open_memory: Callable[..., Memory], user: str
) -> None:
    plan = plan_of(compiled, open_memory(compiled, policy="none"), user)
    cold, alone = run(compiled, salted(plan, "cold"), inject=False), run(compiled, plan)
    assert compiled.accounting(alone).injected == plan.inject[-1].end
    assert distance(cold, alone) > APART
