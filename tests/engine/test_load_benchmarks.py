"""The benchmarks of load, encoding, size and scale measure what they say on a real engine, or fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.bench import encode, footprint, scale, shapes, throughput
from inferscale_memory.bench.common import (
    Bench,
)
from inferscale_memory.bench.conditions import Asker
from inferscale_memory.bench.load import WrongSourceError
from inferscale_memory.bench.prompts import (
    conversation,
)
from inferscale_memory.bench.throughput import Workload

LOAD = Workload(users=(2,), k=4, questions=1, output_tokens=3)


class ToyMem0:
    """Finds the facts that it was given, newest first, one of them too few."""

    def __init__(self) -> None:
        self.versions = {"mem0ai": "toy"}
        self.texts: dict[str, list[str]] = {}

    async def add(self, user: str, texts: list[str]) -> int:
        self.texts[user] = texts
        return len(texts)

    async def search(self, user: str, query: str, k: int) -> tuple[str, ...]:
        return tuple(reversed(self.texts[user][1:]))

    async def pipe_ms(self, texts: list[str]) -> float:
        return 0.1


@pytest.fixture
def bench(engine: LocalEngine, memory_for: Callable[..., Memory]) -> Bench:
    return Bench(engine, memory_for("preamble"))


def test_throughput_measures_every_condition_and_pass(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def toy(*_: Any) -> AsyncIterator[ToyMem0]:
        yield ToyMem0()

    monkeypatch.setattr(throughput, "open_mem0", toy)
    result = throughput.measure(bench, LOAD, Path("python"))
    rows = {(row["pass"], row["condition"]): row for row in result["rows"]}
    conditions = {("cold", name) for name in ("inject", "prompt", "mem0")}
    assert rows.keys() == conditions | {("warm", name) for _, name in conditions} | {
        ("engine", "inject"),
        ("engine", "prompt"),
    }
    facts = LOAD.k * LOAD.fact_tokens
    for (_, condition), row in rows.items():
        assert (row["completed"], row["failed"]) == (2, 0)
        # The facts come from KV for us and are computed, or hit where the user asked before, for the others.
        from_kv = row["injected"] + row["local_hit"] if condition == "inject" else row["injected"]
        assert from_kv >= (2 * facts if condition == "inject" else 0)
        assert row["qps_over_prompt"] > 0
    assert rows["cold", "prompt"]["prefilled"] > 2 * facts
    assert rows["cold", "inject"]["prefilled"] < rows["cold", "mem0"]["prefilled"]
    assert rows["cold", "mem0"]["overlap"] == 0.75
    assert result["mem0"]["pipe_ms"] == 0.1


def test_throughput_offers_an_open_loop(bench: Bench) -> None:
    load = Workload(users=(3,), k=2, questions=1, output_tokens=2, rate=50.0, passes=("engine",))
    result = throughput.measure(bench, load)
    assert result["loop"] == "open loop at 50 questions/s"
    assert [(row["condition"], row["completed"]) for row in result["rows"]] == [("inject", 3), ("prompt", 3)]


async def test_throughput_takes_no_time_of_a_prompt_whose_facts_were_not_injected(bench: Bench, user: str) -> None:
    bench.memory.add(["Ada likes fish.", "Bob likes rice."], user_id=user)  # encoded or not: too few tokens
    bench.memory.flush()
    asker = Asker(bench, k=2, fact_tokens=1_000, tokens=2)
    with pytest.raises(WrongSourceError, match="wanted all of its 2000 fact tokens from KV"):
        await asker.ask("inject", user, "Who likes fish?")


async def test_facts_of_mem0_stand_in_the_prompt_as_ours_do_as_text(bench: Bench, user: str) -> None:
    texts = ["Ada likes fish.", "Bob likes rice."]
    bench.memory.add(texts, user_id=user)
    bench.memory.flush()
    asker = Asker(bench, k=2, fact_tokens=1, tokens=1)
    handle = bench.memory.recall("Who likes fish?", k=2, refresh=2, user_id=user)
    found = tuple(scored.fact.text for scored in handle.facts)
    as_text = bench.engine.count_tokens(asker.as_text("Who likes fish?", found))
    ours = bench.engine.count_tokens(conversation("Who likes fish?", handle), user_id=user)
    assert as_text == ours


def test_a_streamed_generation_gives_the_tokens_of_a_whole_one(bench: Bench) -> None:
    bench.remember(3, 20)
    plan = bench.engine.plan(bench.messages("Who?", 3), max_tokens=4, user_id="bench")

    async def streamed() -> list[list[int]]:
        outputs = bench.engine.astream_generate(plan, salt="streamed", max_tokens=4, ignore_eos=True)
        return [list(output.outputs[0].token_ids) async for output in outputs]

    parts = asyncio.run(streamed())
    whole = bench.engine.generate(plan, salt="whole", max_tokens=4, ignore_eos=True)
    assert len(parts) > 1
    assert list(itertools.chain(*parts)) == list(whole.outputs[0].token_ids)


def test_encode_measures_each_policy_and_when_it_is_paid_back(engine: LocalEngine) -> None:
    result = encode.measure(engine, engine.settings.home, ["preamble", "preceding:2:turn"], 6, 25, 1)
    apart, behind = result["rows"]
    assert (apart["policy"], behind["policy"]) == ("preamble", "preceding:2:turn")
    assert apart["fact_tokens"] == 25
    # Behind two turns of some 27 tokens each, but for the first two facts.
    assert behind["prompt_tokens"] > apart["prompt_tokens"] + 30
    assert result["prefill_ms_per_fact"] > 0
    assert all(row["ms_per_fact"] > 0 for row in result["rows"])


def test_memory_weighs_what_is_really_there(bench: Bench, demo_model: Path) -> None:
    tiers = {row["tier"]: row["bytes_per_fact"] for row in footprint.measure(bench, 3, 25)}
    shape = shapes.shape_of_model(str(demo_model))
    assert tiers["workers' memory"] == 25 * shape.bytes_per_token
    assert 0 < tiers["disk"] - tiers["workers' memory"] < 4_096
    assert tiers["vector"] > 4 * footprint.EMBEDDING
    assert tiers["text"] > 25


def test_scale_measures_prompts_of_more_and_more_facts(bench: Bench) -> None:
    few, many = scale.measure(bench, [2, 6], 25, 2)
    assert (few["k"], many["k"], many["prompt_tokens"] - few["prompt_tokens"]) == (2, 6, 100)
    assert many["plan_bytes"] > few["plan_bytes"] > 0
    for row in (few, many):
        assert min(row["recall_ms"], row["plan_ms"], row["inject_ms"]) > 0
