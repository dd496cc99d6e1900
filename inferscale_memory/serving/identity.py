"""The fingerprint of a running engine: everything that makes its KV reusable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_memory.kv.fingerprint import model_fingerprint, tokenizer_digest, weights_digest
from inferscale_memory.scope import digest


def engine_fingerprint(model: str, config: Any, options: Mapping[str, Any], cache_dir: Path) -> str:
    """Fingerprint of the model that an engine with these options serves, 64 hex digits.

    Args:
        model: folder or hub id.
        config: vLLM's ``ModelConfig``.
        options: engine options given by the user.
        cache_dir: where digests of weight files are kept between starts.
    """
    folder = _snapshot(model, config)
    text = config.hf_text_config
    rope = dict(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {})
    rope["theta"] = getattr(text, "rope_theta", None)
    rope["positions"] = getattr(text, "max_position_embeddings", None)
    if "longrope" in map(str, rope.values()):
        # vLLM takes the long factors as soon as the engine's length exceeds the original one.
        original = rope.get("original_max_position_embeddings") or text.original_max_position_embeddings
        rope["long"] = config.max_model_len > original
    eager = bool(options.get("enforce_eager"))
    return model_fingerprint(
        weights=digest("weights", weights_digest(folder, cache_dir), *_changed_by(options)),
        dtype=config.dtype,
        rope=rope,
        layers=config.get_total_num_hidden_layers(),
        kv_heads=config.get_total_num_kv_heads(),
        head_dim=config.get_head_size(),
        tokenizer=tokenizer_digest(folder, cache_dir),
        tap="exact" if eager else "un-rotated",
        kv_cache_dtype=str(options.get("kv_cache_dtype", "auto")),
        tp_size=int(options.get("tensor_parallel_size") or 1),
        quantization=str(config.quantization) if config.quantization else None,
    )


def _changed_by(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options that change what a model computes without changing its files."""
    load_format = str(options.get("load_format", "auto"))
    seed = str(options.get("seed")) if load_format == "dummy" else ""
    return repr(options.get("hf_overrides")), load_format, seed


def _snapshot(model: str, config: Any) -> Path:
    folder = Path(model)
    if folder.is_dir():
        return folder
    # A hub id: vLLM has fetched the config already, so the snapshot folder is known to the hub's cache.
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=config.revision))
