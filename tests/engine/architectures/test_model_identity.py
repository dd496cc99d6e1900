"""Whatever changes a model's KV changes its fingerprint, so that every chunk of before is a miss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import dtype_of, rope

from inferscale_memory.errors import ChunkError
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.keys import chunk_key, context_digest
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving.client import engine_arguments, model_config
from inferscale_memory.serving.identity import engine_fingerprint

NAME = "llama-3.1"
TOKENS = (5, 6, 7)


def fingerprint(folder: Path, cache: Path, **options: Any) -> str:
    options = {"enforce_eager": True, "max_model_len": 512, **options}
    return engine_fingerprint(str(folder), model_config(engine_arguments(str(folder), options)), options, cache)


def edit_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_one_layer(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.self_attn.k_proj.weight"][0, 0] += 1.0
    save_file(weights, path, {"format": "pt"})


def change_rope_scaling(folder: Path) -> None:
    edit_json(folder / "config.json", rope_parameters=rope("linear", factor=2.0))


def change_rope_base(folder: Path) -> None:
    edit_json(folder / "config.json", rope_parameters=rope("default") | {"rope_theta": 20_000.0})


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["merges"].pop()
    path.write_text(json.dumps(fields))


def nothing(folder: Path) -> None:
    pass


CHANGES = [
    pytest.param(change_one_layer, {}, id="weights of one layer"),
    pytest.param(change_rope_scaling, {}, id="rope scaling"),
    pytest.param(change_rope_base, {}, id="rope base"),
    pytest.param(change_tokenizer, {}, id="tokenizer"),
    pytest.param(nothing, {"dtype": "float32"}, id="dtype"),
    pytest.param(nothing, {"enforce_eager": False}, id="tap"),
    pytest.param(nothing, {"tensor_parallel_size": 2}, id="tensor parallel ranks"),
    pytest.param(nothing, {"kv_cache_dtype": "fp8"}, id="cache dtype"),
]


@pytest.fixture
def folder(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a model, to be changed."""
    assert dtype_of(NAME) == "bfloat16"
    return shutil.copytree(model_folder(NAME), tmp_path / "model")


def test_the_same_model_elsewhere_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(folder, tmp_path / "cache") == fingerprint(other, tmp_path / "cache")


@pytest.mark.parametrize(("change", "options"), CHANGES)
def test_a_change_makes_every_chunk_of_before_a_miss(
    change: Callable[[Path], None], options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    before = fingerprint(folder, tmp_path / "cache")
    store = ChunkStore(tmp_path / "kv")
    key = chunk_key(tenant="t", owner="o", fingerprint=before, context_ids=(), token_ids=TOKENS)
    shape = (3, len(TOKENS), 2, 64)
    store.put(
        Chunk(
            key=key,
            token_ids=TOKENS,
            fingerprint=before,
            context_digest=context_digest(()),
            keys=torch.zeros(shape, dtype=torch.bfloat16),
            values=torch.zeros(shape, dtype=torch.bfloat16),
            layer_names=("0", "1", "2"),
        )
    )
    assert store.exists(key, before)

    change(folder)
    after = fingerprint(folder, tmp_path / "cache", **options)

    assert after != before
    assert chunk_key(tenant="t", owner="o", fingerprint=after, context_ids=(), token_ids=TOKENS) != key
    assert not store.exists(key, after)
    with pytest.raises(ChunkError):
        store.get(key, after)
