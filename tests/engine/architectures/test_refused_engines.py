"""A model that cannot be injected starts, says so once, and answers by plain prefill."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import QUESTION, SYSTEM_PROMPT, facts, rope, sizes, write_model

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.serving.protocol import InjectSpan, inject_params, parse_accounting

full = pytest.mark.full
NOT_ROTATED = "do not rotate their keys exactly once"


def _sliding_window() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**sizes(4, 2, 64, sliding_window=128, rope_parameters=rope("default")))


def _learned_positions() -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=640, n_positions=2048, n_embd=128, n_layer=2, n_head=2, eos_token_id=2)


def _layers_without_positions() -> Any:
    from transformers import SmolLM3Config

    shape = sizes(4, 2, 64, no_rope_layers=[1, 0, 1], use_sliding_window=False, rope_parameters=rope("default"))
    return SmolLM3Config(**shape)


def _rotary_in_another_library() -> Any:
    from transformers import GPTNeoXConfig

    shape = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return GPTNeoXConfig(vocab_size=640, max_position_embeddings=2048, eos_token_id=2, **shape)


REFUSED = [
    pytest.param(_sliding_window, "sliding-window attention (128)", id="sliding window"),
    pytest.param(_learned_positions, NOT_ROTATED, id="learned positions", marks=full),
    pytest.param(_layers_without_positions, NOT_ROTATED, id="layers without positions", marks=full),
    pytest.param(_rotary_in_another_library, NOT_ROTATED, id="rotary embedding of another library", marks=full),
]


def answer_by_handle(engine: LocalEngine, memory: Memory) -> dict[str, Any]:
    memory.add(facts(5), user_id="alice")
    handle = memory.recall(QUESTION, 3, user_id="alice")
    messages = [{"role": "system", "content": f"{SYSTEM_PROMPT} {handle}"}, {"role": "user", "content": QUESTION}]
    return engine.chat(messages, max_tokens=2, temperature=0)


@pytest.mark.parametrize(("build", "reason"), REFUSED)
def test_it_says_so_once_and_prefills_the_facts(
    build: Callable[[], Any],
    reason: str,
    tmp_path: Path,
    start: Callable[..., Any],
    open_memory: Callable[..., Memory],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_model(build(), tmp_path / "model")
    with caplog.at_level(logging.WARNING, "inferscale_memory"), start(folder, max_model_len=1024) as engine:
        assert engine.report.supported is False
        assert engine.report.reason == engine.unsupported
        assert reason in (engine.report.reason or "")

        answer = answer_by_handle(engine, open_memory(engine))

        assert answer["usage"]["completion_tokens"] > 0
        assert answer["kv"]["injected"] == 0
        assert answer["kv"]["prefilled"] == answer["usage"]["prompt_tokens"]
        assert answer["kv"]["fallback_reason"] == engine.report.reason
        warnings = [record.getMessage() for record in caplog.records if record.name.startswith("inferscale_memory")]
        assert warnings == [f"{folder} is served by plain prefill: {engine.report.reason}."]


@full
def test_a_request_of_embeddings_is_prefilled_whatever_its_plan_says(
    model_folder: Callable[[str], Path], start: Callable[..., Any]
) -> None:
    import torch

    with start(model_folder("llama-3.1"), enable_prompt_embeds=True) as engine:
        assert engine.report.supported
        embeddings = torch.randn(40, 256, dtype=torch.bfloat16)
        params = inject_params([InjectSpan("a" * 64, 0, 30)])

        async def generate() -> Any:
            from vllm import SamplingParams

            sampling = SamplingParams(max_tokens=2, extra_args={"kv_transfer_params": params})
            prompt = {"prompt_embeds": embeddings}
            return [output async for output in engine.client.generate(prompt, sampling, "embeddings")]

        output = asyncio.run_coroutine_threadsafe(generate(), engine._loop.loop).result(120)[-1]
        assert len(output.outputs[0].token_ids) == 2
        assert parse_accounting(output.kv_transfer_params) is None
