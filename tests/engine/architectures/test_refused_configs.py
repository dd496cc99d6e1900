"""Models and engine options that cannot be injected are recognised from vLLM's own reading of their config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import rope, sizes, write_config, write_tokenizer

from inferscale_memory.errors import ModelError
from inferscale_memory.serving.client import engine_arguments, model_config
from inferscale_memory.serving.support import refuse_config

full = pytest.mark.full
"""vLLM looks at each new model class in a process of its own, which takes seconds the first time."""


def _mistral(tmp_path: Path, **fields: Any) -> Path:
    from transformers import MistralConfig

    fields = {"sliding_window": None, "rope_parameters": rope("default"), **fields}
    return write_config(MistralConfig(**sizes(4, 2, 64, **fields)), tmp_path, "MistralForCausalLM")


def _llama(tmp_path: Path, **fields: Any) -> Path:
    from transformers import LlamaConfig

    fields = {"rope_parameters": rope("default"), **fields}
    return write_config(LlamaConfig(**sizes(4, 2, 64, **fields)), tmp_path, "LlamaForCausalLM")


def refusal(folder: Path, **options: Any) -> str | None:
    write_tokenizer(folder)
    arguments = engine_arguments(str(folder), {"max_model_len": 256, "enforce_eager": True, **options})
    return refuse_config(model_config(arguments), options)


def test_a_model_of_full_rotary_attention_is_not_refused(tmp_path: Path) -> None:
    assert refusal(_llama(tmp_path)) is None


def test_a_sliding_window_is_refused_with_its_size(tmp_path: Path) -> None:
    assert refusal(_mistral(tmp_path, sliding_window=128)) == "sliding-window attention (128)"


def test_a_window_that_the_model_does_not_use_is_not_refused(tmp_path: Path) -> None:
    from transformers import Qwen2Config

    unused = Qwen2Config(**sizes(4, 2, 64, use_sliding_window=False, sliding_window=64))
    assert refusal(write_config(unused, tmp_path, "Qwen2ForCausalLM")) is None


def test_layers_of_two_kinds_are_refused_by_name(tmp_path: Path) -> None:
    from transformers import Qwen2Config

    kinds = ["full_attention", "sliding_attention", "full_attention"]
    mixed = Qwen2Config(**sizes(4, 2, 64, use_sliding_window=True, sliding_window=64, layer_types=kinds))
    reason = refusal(write_config(mixed, tmp_path, "Qwen2ForCausalLM"))
    assert reason is not None
    assert "sliding_attention" in reason


def test_a_rotary_embedding_that_depends_on_the_prompts_length_is_refused(tmp_path: Path) -> None:
    assert refusal(_llama(tmp_path, rope_parameters=rope("dynamic", factor=2.0))) == "rope type dynamic"


def test_rotary_positions_of_several_dimensions_are_refused(tmp_path: Path) -> None:
    reason = refusal(_llama(tmp_path, rope_parameters=rope("default", mrope_section=[8, 12, 12])))
    assert reason == "multi-dimensional rotary positions (M-RoPE)"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"enable_lora": True}, "LoRA adapters"),
        ({"kv_cache_dtype": "fp8"}, "an fp8 KV cache"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "an fp8 KV cache"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative decoding"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"decode_context_parallel_size": 2}, "context parallelism"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_engine_option_that_changes_or_splits_the_cache_is_refused(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    found = refusal(_llama(tmp_path), **options)
    assert found is not None
    assert found.startswith(reason)


def _deepseek() -> tuple[Any, str]:
    from transformers import DeepseekV2Config

    shape = sizes(4, 4, 64, kv_lora_rank=64, q_lora_rank=None, qk_rope_head_dim=32, qk_nope_head_dim=32, v_head_dim=64)
    return DeepseekV2Config(**shape, n_routed_experts=4, n_shared_experts=1), "DeepseekV2ForCausalLM"


def _mamba() -> tuple[Any, str]:
    from transformers import MambaConfig

    return MambaConfig(vocab_size=640, hidden_size=128, num_hidden_layers=2), "MambaForCausalLM"


def _jamba() -> tuple[Any, str]:
    from transformers import JambaConfig

    shape = sizes(4, 2, 32, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1)
    return JambaConfig(**{**shape, "num_hidden_layers": 4}), "JambaForCausalLM"


def _bloom() -> tuple[Any, str]:
    from transformers import BloomConfig

    return BloomConfig(vocab_size=640, hidden_size=128, n_layer=2, n_head=4), "BloomForCausalLM"


def _gemma3() -> tuple[Any, str]:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(**sizes(4, 2, 64, sliding_window=64)), "Gemma3ForCausalLM"


def _gemma3n() -> tuple[Any, str]:
    from transformers import Gemma3nTextConfig

    return Gemma3nTextConfig(num_hidden_layers=30, num_kv_shared_layers=10), "Gemma3nForCausalLM"


def _whisper() -> tuple[Any, str]:
    from transformers import WhisperConfig

    return WhisperConfig(
        vocab_size=640, d_model=64, encoder_layers=1, decoder_layers=1
    ), "WhisperForConditionalGeneration"


def _llama4() -> tuple[Any, str]:
    from transformers import Llama4TextConfig

    shape = sizes(4, 2, 64, attention_chunk_size=128, num_local_experts=2, intermediate_size_mlp=256)
    return Llama4TextConfig(**shape), "Llama4ForCausalLM"


@full
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        pytest.param(_deepseek, "multi-head latent attention", id="mla"),
        pytest.param(_mamba, "state-space layers", id="mamba"),
        pytest.param(_jamba, "state-space layers", id="hybrid"),
        pytest.param(_bloom, "ALiBi", id="alibi"),
        pytest.param(_gemma3, "sliding_attention", id="gemma 3"),
        pytest.param(_gemma3n, "cross-layer KV sharing", id="cross-layer sharing"),
        pytest.param(_whisper, "encoder-decoder", id="encoder-decoder"),
        pytest.param(_llama4, "attention", id="chunked attention"),
    ],
)
def test_a_model_of_another_kind_is_refused_with_the_reason(
    tmp_path: Path, build: Callable[[], tuple[Any, str]], reason: str
) -> None:
    config, architecture = build()
    found = refusal(write_config(config, tmp_path, architecture))
    assert found is not None
    assert reason in found


def test_an_engine_length_beyond_the_models_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded as a model: .*max_model_len \(9000\).*2048"):
        refusal(_llama(tmp_path), max_model_len=9000)
