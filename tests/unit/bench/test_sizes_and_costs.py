"""Bytes per token from configs, cost of encoding, growth with scale: the parts without an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferscale_memory.bench import encode, footprint, panels, scale, shapes
from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.standins import RandomEmbedder
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.retrieval import Embedder

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


@pytest.mark.parametrize(
    ("model", "kib"), [("Llama-3.1-8B", 128), ("Mistral-7B-v0.3", 128), ("Qwen2.5-7B", 56), ("Qwen3-14B", 160)]
)
def test_published_models_take_the_bytes_per_token_that_their_configs_say(model: str, kib: int) -> None:
    assert shapes.PUBLISHED[model].bytes_per_token == kib * 1024


def test_a_shape_is_read_from_a_config_and_its_head_size_computed_where_it_is_not_given() -> None:
    assert shapes.shape_of({**SMOLLM2, "dtype": "bfloat16"}) == shapes.KVShape(30, 3, 64, "bfloat16")
    assert shapes.shape_of({**SMOLLM2, "head_dim": 80}).head_size == 80


def test_a_model_without_grouped_heads_keeps_one_key_per_head() -> None:
    config = {name: value for name, value in SMOLLM2.items() if name != "num_key_value_heads"}
    assert shapes.shape_of(config).kv_heads == 9


def test_fp32_takes_twice_the_bytes_of_bf16() -> None:
    half, full = (shapes.shape_of({**SMOLLM2, "torch_dtype": dtype}) for dtype in ("bfloat16", "float32"))
    assert full.bytes_per_token == 2 * half.bytes_per_token == 2 * 23_040


@pytest.mark.parametrize("config", [{}, {"num_attention_heads": None}, {**SMOLLM2, "num_hidden_layers": "many"}])
def test_a_config_that_is_no_decoders_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="no decoder's"):
        shapes.shape_of(config)


def test_a_dtype_without_a_known_size_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="dtype is 'int4'; wanted one of bfloat16"):
        shapes.shape_of({**SMOLLM2, "dtype": "int4"})


def test_capacity_counts_whole_facts() -> None:
    row = shapes.capacity("m", shapes.KVShape(1, 1, 1, "float32"), 25)
    assert (row["bytes_per_token"], row["bytes_per_fact"]) == (8, 200)
    assert (row["facts_per_gib"], row["facts_per_tb"]) == ((1 << 30) // 200, 5 * 10**9)


def test_the_capacity_table_begins_with_the_model_that_is_measured() -> None:
    rows = footprint.capacities("mine", shapes.KVShape(2, 1, 64, "bfloat16"), 25)
    assert [row["model"] for row in rows] == ["mine", *shapes.PUBLISHED]


def test_a_fact_as_text_takes_more_than_its_characters_and_a_vector_more_than_its_elements() -> None:
    texts = make_facts(300, 25, lambda text: len(text.split()) + 2)
    text, vector = footprint.rows_of_text(texts)
    assert np.mean([len(one) for one in texts]) < text < 5_000
    assert 4 * footprint.EMBEDDING < vector < 8 * footprint.EMBEDDING


def test_a_row_of_encode_holds_costs_per_fact_and_rates() -> None:
    row = encode.row("preamble", [4.0, 2.0, 3.0], 10, (25.0, 40.0), encode.Saving(20.0, 5.0))
    assert (row["ms_per_fact"], row["facts_per_s"], row["prompt_tokens_per_s"]) == (300.0, 3.333, 133.33)
    assert row["spread"]["ms_per_fact"] == [250.0, 350.0]


def test_encoding_is_paid_back_when_so_many_recalls_have_saved_what_it_cost() -> None:
    row = encode.row("preamble", [3.0], 10, (25.0, 40.0), encode.Saving(20.0, 5.0))
    assert row["break_even_recalls"] == 20.0


def test_encoding_is_never_paid_back_where_injecting_saves_nothing() -> None:
    assert encode.row("none", [3.0], 10, (25.0, 25.0), encode.Saving(5.0, 5.0))["break_even_recalls"] is None


@pytest.mark.parametrize("options", [{"policies": ()}, {"facts": 0}, {"repeat": 0}])
def test_encode_refuses_what_it_cannot_measure(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="nothing to measure"):
        encode.run(**options)


def test_encode_refuses_the_policy_that_encodes_nothing_beforehand() -> None:
    with pytest.raises(InvalidInputError, match="'prefix' encodes nothing beforehand"):
        encode.run(policies=["preamble", "prefix"])


def test_the_stand_in_embedder_is_an_embedder_whose_vectors_depend_on_the_text_alone() -> None:
    embedder = RandomEmbedder(32)
    assert isinstance(embedder, Embedder)
    vectors = embedder.embed(["a", "b", "a"])
    assert np.array_equal(vectors[0], vectors[2])
    assert np.array_equal(vectors[1:2], RandomEmbedder(32).embed(["b"]))
    assert abs(float(vectors[0] @ vectors[1])) < 0.9
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    assert embedder.embed([]).shape == (0, 32)


def test_scale_measures_each_number_of_facts_of_one_user() -> None:
    rows = scale.search_scale([("few", 1), ("many", 30)], [1, 30], 2, key="facts")
    assert [row["facts"] for row in rows] == [1, 30]
    assert all(row["search_ms"] > 0 and len(row["spread"]["recall_ms"]) == 2 for row in rows)


def test_scale_measures_one_user_among_others() -> None:
    assert [(row["users"], row["facts"]) for row in scale.users_scale([1, 3], 1)] == [(1, 10), (3, 10)]


@pytest.mark.parametrize("options", [{"k": (0,)}, {"facts": ()}, {"users": (0, 1)}, {"repeat": 0}])
def test_scale_refuses_what_it_cannot_measure(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="nothing to measure"):
        scale.run(**options)


def test_medians_are_in_milliseconds_with_their_quartiles() -> None:
    assert scale.medians({"search_ms": [0.001, 0.002, 0.003]}) == {
        "search_ms": 2.0,
        "spread": {"search_ms": [1.5, 2.5]},
    }


def drawn(result: dict[str, Any], plot: Any, file: Path) -> str:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        plot(result, file)
    return file.read_text()


def test_encode_draws_costs_and_break_even_by_policy(tmp_path: Path) -> None:
    rows = [encode.row(policy, [3.0], 10, (25.0, 25.0), encode.Saving(9.0, 1.0)) for policy in encode.POLICIES]
    text = drawn({"model": "m", "engine": "e", "rows": rows}, encode.plot_encode, tmp_path / "e.svg")
    assert all(policy in text for policy in encode.POLICIES)
    assert "Recalls until it is paid back" in text


def test_memory_draws_every_model_of_the_table(tmp_path: Path) -> None:
    rows = footprint.capacities("mine", shapes.KVShape(2, 1, 64, "bfloat16"), 25)
    text = drawn({"fact_tokens": 25, "capacity": rows}, footprint.plot_footprint, tmp_path / "m.svg")
    assert all(model in text for model in ("mine", *shapes.PUBLISHED))


def test_scale_draws_its_three_tables_and_says_what_stands_in(tmp_path: Path) -> None:
    times = dict.fromkeys(("recall_ms", "plan_ms", "inject_ms", "search_ms"), 1.0)
    rows = [{"k": n, "facts": n, "users": n, **times, "spread": {name: [0.5, 2.0] for name in times}} for n in (1, 9)]
    result = {"engine": "e", "stand_in": scale.STAND_IN, "prompt": rows, "facts": rows, "users": rows}
    text = drawn(result, scale.plot_scale, tmp_path / "s.svg")
    for label in ("Facts in the prompt", "Facts of one user", "Users of 10 facts", "embedded by a stand-in"):
        assert label in text


def test_a_panel_of_bars_keeps_their_names(tmp_path: Path) -> None:
    panel = panels.Panel("t", "x", "y", bars={"one": 1.0, "two": 2.0})
    assert "two" in drawn({}, lambda _, file: panels.draw([panel], "note", file), tmp_path / "b.svg")


def test_scale_prints_three_tables_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(*_: Any, **options: Any) -> Iterator[Any]:
        assert options["arena"] > 12 * 20 * 23_040
        yield SimpleNamespace(engine=None)

    prompt = {"k": 12, "prompt_tokens": 300, "plan_bytes": 900, **scale.medians({"inject_ms": [0.1]})}
    monkeypatch.setattr(scale, "open_bench", opened)
    monkeypatch.setattr(scale, "describe", lambda engine: "vLLM x")
    monkeypatch.setattr(scale, "measure", lambda *_: [prompt])
    monkeypatch.setattr(scale, "resolve_model", lambda model, home: model)
    monkeypatch.setattr(scale, "shape_of_model", lambda model: shapes.KVShape(30, 3, 64, "bfloat16"))
    result = scale.run(k=(12,), facts=(1, 3), users=(2,), repeat=1, json=tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == result
    assert [row["facts"] for row in result["facts"]] == [1, 3]
    assert (result["users"][0]["users"], result["engine"]) == (2, "vLLM x")
    printed = capsys.readouterr().out
    assert printed.count("|--") >= 3
    assert "embedded by a stand-in" in printed
