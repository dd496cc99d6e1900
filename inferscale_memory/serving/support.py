"""Which models can be injected: inspected from the config before start, from the layers after load, then by behaviour.

No list of class names decides. What is refused here is served by plain prefill, after one clear message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferscale_memory.serving.protocol import TapReport

SUPPORTED_ROPE = frozenset({"default", "linear", "llama3", "yarn", "longrope"})
FULL_ATTENTION = frozenset({"full_attention", "attention"})


@dataclass(frozen=True)
class SupportReport:
    """Whether this engine injects, and what that was decided on.

    ``logprob_error`` is the largest difference over the vocabulary between a plain prefill of the warm-up prompt and
    the same prompt injected; ``None`` where it was not measured.
    """

    supported: bool
    reason: str | None = None
    tap: TapReport | None = None
    logprob_error: float | None = None

    def __str__(self) -> str:
        if not self.supported:
            return f"plain prefill: {self.reason}"
        tap = self.tap
        named = f"{tap.tap} tap, {tap.identical:.2%} of elements identical" if tap else "unknown tap"
        return f"injecting: {named}, warm-up log-probability error {self.logprob_error}"


def refuse_config(config: Any, options: Mapping[str, Any]) -> str | None:
    """Why a model with this config cannot be injected, or ``None``; asked before the engine starts.

    Args:
        config: vLLM's ``ModelConfig``.
        options: the engine options given by the user.
    """
    text = config.hf_text_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    kinds = {str(r.get("rope_type", r.get("type", "default"))) for r in (nested or [rope])}
    layer_types = set(getattr(text, "layer_types", None) or ())
    checks: list[tuple[object, str]] = [
        (config.is_encoder_decoder, "an encoder-decoder model"),
        (config.is_attention_free or config.is_hybrid or config.has_inner_state, "it has state-space layers (Mamba)"),
        (config.use_mla, "multi-head latent attention (MLA) keeps no per-head keys"),
        (config.uses_alibi, "ALiBi biases instead of rotary keys"),
        (config.uses_mrope, "multi-dimensional rotary positions (M-RoPE)"),
        (config.is_multimodal_model, "a multimodal model: positions and tokens are not text alone"),
        (getattr(text, "num_kv_shared_layers", 0), "layers share their keys and values (cross-layer KV sharing)"),
        (layer_types - FULL_ATTENTION, f"layers without full attention: {', '.join(sorted(layer_types))}"),
        (not layer_types and config.get_sliding_window(), f"sliding-window attention ({config.get_sliding_window()})"),
        (getattr(text, "attention_chunk_size", None), "chunked local attention"),
        (getattr(text, "dual_chunk_attention_config", None), "dual chunk attention rotates keys by chunk"),
        (getattr(text, "is_causal", True) is False, "attention is not causal"),
        (kinds - SUPPORTED_ROPE, f"rope type {', '.join(sorted(kinds))}"),
        (options.get("enable_lora"), "LoRA adapters change the keys and values"),
        (options.get("speculative_config"), "speculative decoding adds layers of a draft model"),
        (str(options.get("kv_cache_dtype", "auto")).startswith("fp8"), "an fp8 KV cache"),
        ((options.get("pipeline_parallel_size") or 1) > 1, "pipeline parallelism splits the layers"),
        ((options.get("data_parallel_size") or 1) > 1, "data parallelism: preambles live in one replica only"),
        ((options.get("decode_context_parallel_size") or 1) > 1, "context parallelism splits the tokens"),
    ]
    return next((reason for found, reason in checks if found), None)


def refuse_layers(modules: Mapping[str, Any]) -> str | None:
    """Why a loaded model's attention layers cannot be injected, or ``None``.

    Args:
        modules: layer name -> vLLM attention module, of every layer that has a cache.
    """
    if not modules:
        return "no attention layer has a cache"
    shapes = {(int(m.num_kv_heads), int(m.head_size)) for m in modules.values() if hasattr(m, "num_kv_heads")}
    for name, module in modules.items():
        if not hasattr(getattr(module, "impl", None), "do_kv_cache_update") or not hasattr(module, "num_kv_heads"):
            return f"layer {name} has no per-head cache write"
        attention = getattr(module, "attn_type", "decoder")
        if getattr(attention, "value", attention) != "decoder":
            return f"layer {name} is not causal self-attention ({attention})"
        if getattr(module, "sliding_window", None):
            return f"layer {name} has a sliding window of {module.sliding_window}"
        if getattr(module, "kv_sharing_target_layer_name", None):
            return f"layer {name} shares the keys of {module.kv_sharing_target_layer_name}"
        if getattr(module, "head_size_v", module.head_size) != module.head_size:
            return f"layer {name} has values of another width than its keys"
        if getattr(module.impl, "alibi_slopes", None) is not None:
            return f"layer {name} uses ALiBi"
        if str(getattr(module, "kv_cache_dtype", "auto")).startswith("fp8"):
            return f"layer {name} has an fp8 cache"
    if len(shapes) != 1:
        return f"layers of different shapes (heads, head size): {sorted(shapes)}"
    return None
