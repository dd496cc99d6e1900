"""``bench quality`` measures what it says on a real engine, or fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import embed, travels

from inferscale_memory import LocalEngine
from inferscale_memory.bench.quality import forcing, measuring
from inferscale_memory.bench.quality.data import DataSet, Question, read_data
from inferscale_memory.bench.quality.journal import Journal
from inferscale_memory.bench.quality.memories import Workbench, open_workbench
from inferscale_memory.bench.quality.results import CEILINGS, FULL
from inferscale_memory.bench.quality.settings import Setting, parse_settings
from inferscale_memory.errors import EncodingError, EngineError

POLICIES = ("none", "preamble", "preceding:5:fact")
K = 4
FACTS = [*travels(9), "The dog of Alice is called Rex and he is four years old."]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Ten facts of one user, and two questions."""
    file = tmp_path_factory.mktemp("data") / "small.jsonl"
    lines: list[dict[str, Any]] = [{"fact": text, "id": f"f{at}", "user": "alice"} for at, text in enumerate(FACTS)]
    lines += [
        {"question": "What is the dog called?", "answer": "Rex the dog", "user": "alice", "evidence": ["f9"]},
        {"question": "When was Alice in Kyoto?", "answer": 1952, "user": "alice", "category": "2"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_data([file])


@pytest.fixture(scope="module")
def bench(engine: LocalEngine, data: DataSet) -> Iterator[Workbench]:
    home = engine.settings.home
    assert home is not None
    conversations, options = data.conversations, {"embedder": embed, "index": "numpy"}
    with open_workbench(engine, home, conversations, POLICIES, **options) as bench:
        yield bench


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ANSWER_TOKENS", 4)


def test_forcing_an_answer_is_asking_for_it_token_by_token(bench: Workbench, data: DataSet) -> None:
    question = data.questions[0]
    plan = bench.plan(question, K, Setting("preamble", 0))
    answer = bench.answer_tokens("It is Rex, the dog")
    forced = forcing.force(bench.engine, plan, answer, inject=True)
    _, rows = forcing._stepwise(bench.engine, plan, answer, inject=True, salt=forcing.fresh_salt())
    assert forced.logprobs.shape == rows.shape == (len(answer), len(rows[0]))
    assert np.abs(forced.logprobs[0] - rows[0]).max() == 0.0
    # Behind the first token the engine itself adds up in another order when it decodes than when it prefills.
    stepwise = replace(forced, logprobs=rows)
    noise = forcing.divergence(stepwise, forced)
    assert noise < 0.01
    assert stepwise.nll == pytest.approx(forced.nll, abs=0.05)
    prefilled = forcing.force(bench.engine, plan, answer, inject=False)
    assert forcing.divergence(prefilled, forced) > 10 * noise
    assert np.exp(forced.logprobs.astype(np.float64)).sum(axis=1) == pytest.approx(1.0, abs=1e-3)


def test_every_setting_is_compared_with_the_full_prefill_of_its_tokens(
    bench: Workbench, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse_settings(POLICIES, ["0", "1", "k"])
    journal = Journal(tmp_path / "journal.jsonl")
    results = measuring.measure(bench, data.questions, settings, [K], journal=journal)
    rows = [result for result in results if result.policy != FULL]
    full = {result.question: result for result in results if result.policy == FULL}
    assert [(row.question, row.policy, row.refresh) for row in rows] == [
        (question.id, setting.policy, setting.refresh) for question in data.questions for setting in settings
    ]
    assert set(full) == {question.id for question in data.questions}
    for row in rows:
        reference = full[row.question]
        assert (row.prompt_tokens, row.nll_full, row.facts) == (reference.prompt_tokens, reference.nll, K)
        assert row.kl is not None
        if row.refresh == "k":
            assert (row.injected, row.prefilled) == (0, row.prompt_tokens)
            assert row.kl == pytest.approx(0.0, abs=1e-6)
            assert (row.top1, row.answer) == (1.0, reference.answer)
            assert row.nll == pytest.approx(reference.nll, abs=1e-6)
        else:
            assert 0 < row.injected < row.prompt_tokens
            assert row.kl > 0
    by_setting = {(row.question, row.policy, row.refresh): row for row in rows}
    one = data.questions[0].id
    # The best fact, which is prefilled with refresh 1, is that of the dog.
    dog = len(bench.engine.prompt.fact_tokens(FACTS[-1]))
    assert by_setting[one, "none", 0].injected - by_setting[one, "none", 1].injected == dog
    assert by_setting[one, "none", 0].kl > by_setting[one, "preamble", 0].kl

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the engine was asked again")

    monkeypatch.setattr(bench.engine, "generate", refuse)
    again = measuring.measure(bench, data.questions, settings, [K], journal=Journal(journal.file))
    assert again == results
    with pytest.raises(AssertionError, match="asked again"):
        measuring.measure(bench, data.questions, settings, [K + 1], journal=Journal(journal.file))


def test_sticky_order_keeps_facts_in_place_and_is_compared_with_its_own_tokens(bench: Workbench, data: DataSet) -> None:
    settings = parse_settings(["preamble"], ["0", "1"])
    results = measuring.measure(bench, data.questions, settings, [K], order="sticky", generate=False)
    assert all(result.answer is None and result.f1 is None for result in results)
    # With and without a refreshed fact the order differs from the second question on, and so do the references.
    references = [result for result in results if result.policy == FULL]
    assert len(references) >= len(data.questions)
    assert all(result.kl is not None and result.kl > 0 for result in results if result.policy == "preamble")


def test_ceilings_are_all_facts_the_evidence_and_none(bench: Workbench, data: DataSet) -> None:
    results = measuring.measure_ceilings(bench, data.questions)
    found = {(result.question, result.policy): result for result in results}
    one, two = (question.id for question in data.questions)
    assert {kind: found[one, kind].facts for kind in CEILINGS} == {
        "full_context": len(FACTS),
        "gold_evidence": 1,
        "no_memory": 0,
    }
    assert (two, "gold_evidence") not in found, "the second question names no evidence"
    assert all(result.injected == 0 for result in results)
    assert found[one, "gold_evidence"].nll < found[one, "no_memory"].nll


def test_of_too_many_facts_the_newest_are_the_full_context(
    bench: Workbench, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.engine, "max_model_len", 256)
    plan = bench.text_plan(data.questions[0], bench.saved["alice"].facts)
    oldest = [fact.id for fact in bench.saved["alice"].facts][: len(plan.dropped)]
    assert plan.dropped
    assert sorted(plan.dropped) == sorted(oldest)


def test_a_question_without_a_gold_answer_is_measured_over_the_models_own(bench: Workbench, data: DataSet) -> None:
    asked = Question("own", "alice", "What is the dog called?", None)
    settings = [Setting("preamble", 0), Setting("preamble", "k")]
    near, exact, full = measuring.measure(bench, [asked], settings, [K])
    assert full.f1 == 1.0
    assert (exact.kl, exact.f1) == (pytest.approx(0.0, abs=1e-6), 1.0)
    assert near.target_tokens == full.target_tokens
    assert measuring.measure_ceilings(bench, [asked]) == []


def test_a_fact_that_is_not_encoded_stops_the_measurement(
    bench: Workbench, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = bench._opened["none"].memory
    monkeypatch.setattr(memory.ledger, "lookup_all", lambda *_: {})
    with pytest.raises(EngineError, match=r"with 4 facts and none, refresh 0 is not injected whole: not_encoded"):
        bench.plan(data.questions[0], K, Setting("none", 0))


def test_an_engine_without_the_processor_is_forced_token_by_token(
    bench: Workbench, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.engine.client.model_config, "logits_processors", None)
    plan = bench.plan(data.questions[0], K, Setting("preamble", 0))
    forced = forcing.force(bench.engine, plan, bench.answer_tokens("It is"), inject=True)
    assert forced.logprobs.shape[0] == len(forced.tokens) == 2
    assert forced.injected == plan.inject[-1].end


def test_a_list_of_no_token_ids_is_refused(bench: Workbench, data: DataSet) -> None:
    plan = bench.plan(data.questions[0], K, Setting("preamble", 0))
    with pytest.raises(EncodingError, match="inferscale_forced is 'Rex'; wanted a list of token ids"):
        bench.engine.generate(plan, extra_args={"inferscale_forced": "Rex"})
