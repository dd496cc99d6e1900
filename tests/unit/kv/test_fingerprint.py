from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferscale_memory.kv.fingerprint as module
from inferscale_memory.errors import InvalidInputError, ModelError
from inferscale_memory.kv.fingerprint import fingerprint, model_fingerprint, tokenizer_digest, weights_digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = {
    "weights": "w",
    "dtype": "bfloat16",
    "rope": {"rope_type": "default", "theta": 10000.0},
    "layers": 30,
    "kv_heads": 3,
    "head_dim": 64,
    "tokenizer": "t",
    "tap": "exact",
    "kv_cache_dtype": "auto",
    "tp_size": 1,
}


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.randoms())
def test_the_order_of_fields_does_not_matter(fields, rng):
    items = list(fields.items())
    rng.shuffle(items)
    assert fingerprint(dict(items)) == fingerprint(fields)


@given(st.text(max_size=3), st.text(max_size=3))
def test_two_fields_are_never_read_as_one(left, right):
    assert fingerprint({"a": left, "b": right}) != fingerprint({"a": left + right, "b": ""}) or right == ""


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": "null"}, False),
        ({"a": 0.1}, {"a": 0.1 + 2**-54}, False),
    ],
)
def test_equal_values_and_only_those_are_equal(left, right, equal):
    assert (fingerprint(left) == fingerprint(right)) == equal


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), {1: 2}, {"x": b"bytes"}])
def test_a_value_without_one_meaning_is_refused_by_name(value):
    with pytest.raises(InvalidInputError, match="field 'rope' cannot be part of a fingerprint"):
        fingerprint({"rope": value})


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "other"},
        {"dtype": "float16"},
        {"rope": {"rope_type": "yarn", "theta": 10000.0}},
        {"layers": 31},
        {"kv_heads": 9},
        {"head_dim": 128},
        {"tokenizer": "other"},
        {"tap": "unrotated"},
        {"kv_cache_dtype": "fp8"},
        {"tp_size": 2},
        {"lora": "adapter"},
        {"quantization": "awq"},
    ],
)
def test_every_property_of_a_model_is_in_its_fingerprint(change):
    assert model_fingerprint(**{**FIELDS, **change}) != model_fingerprint(**FIELDS)


def test_a_torch_dtype_and_its_name_are_the_same():
    torch = pytest.importorskip("torch")
    assert model_fingerprint(**{**FIELDS, "dtype": torch.bfloat16}) == model_fingerprint(**FIELDS)


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name, text in {
        "config.json": "{}",
        "model.safetensors": "weights",
        "tokenizer.json": "tokens",
        "chat_template.jinja": "chat",
        "README.md": "hello",
    }.items():
        (model / name).write_text(text)
        os.utime(model / name, (1_000_000, 1_000_000))
    return model


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("config.json", {"weights"}),
        ("model.safetensors", {"weights"}),
        ("extra.safetensors", {"weights"}),
        ("modeling_custom.py", {"weights"}),
        ("tokenizer.json", {"tokenizer"}),
        ("special_tokens_map.json", {"tokenizer"}),
        ("chat_template.jinja", set()),
        ("README.md", set()),
    ],
)
def test_a_digest_changes_with_the_files_it_is_about(folder, name, changed):
    def digests():
        return {"weights": weights_digest(folder), "tokenizer": tokenizer_digest(folder)}

    before = digests()
    (folder / name).write_text("changed!")
    after = digests()
    assert {kind for kind in before if before[kind] != after[kind]} == changed


def test_the_digest_does_not_depend_on_where_the_folder_is(folder):
    before = weights_digest(folder)
    assert weights_digest(folder.rename(folder.with_name("moved"))) == before


def test_a_digest_is_read_once_and_then_remembered(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(module, "_FRESH_NS", 0)
    first = weights_digest(folder, cache)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert weights_digest(folder, cache) == first
    assert [path.name for path in cache.iterdir()] == ["digests.json"]


def test_weights_swapped_under_the_same_size_and_time_are_noticed(folder, tmp_path):
    before = weights_digest(folder, tmp_path / "cache")
    (folder / "model.safetensors").write_text("WEIGHTS")
    os.utime(folder / "model.safetensors", (1_000_000, 1_000_000))
    assert weights_digest(folder, tmp_path / "cache") != before


def test_a_file_written_just_now_is_not_remembered(folder, tmp_path):
    (folder / "model.safetensors").write_text("weights")
    weights_digest(folder, tmp_path / "cache")
    known = json.loads((tmp_path / "cache" / "digests.json").read_text())
    assert {Path(name).name for name in known} == {"config.json"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 3}'])
def test_a_broken_cache_is_ignored_and_replaced(folder, tmp_path, content):
    (tmp_path / "digests.json").write_text(content)
    assert weights_digest(folder, tmp_path) == weights_digest(folder)
    assert any(name.endswith("config.json") for name in json.loads((tmp_path / "digests.json").read_text()))


def test_a_cache_that_cannot_be_written_costs_only_time(folder, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    assert weights_digest(folder, tmp_path / "cache") == weights_digest(folder)


def test_a_link_into_a_hub_cache_is_named_by_its_blob_and_not_read(folder, monkeypatch):
    sha = hashlib.sha256(b"weights").hexdigest()
    plain = weights_digest(folder)
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / sha)
    (folder / "model.safetensors").symlink_to(blobs / sha)
    read = []
    digest_of = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: (read.append(file.name), digest_of(file, name))[1])
    assert weights_digest(folder) == plain
    assert [Path(name).name for name in read] == ["config.json"]


def test_a_single_gguf_file_has_digests(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert weights_digest(path) != tokenizer_digest(path)


def test_what_is_not_a_model_folder_is_refused_by_name(tmp_path, folder):
    with pytest.raises(ModelError, match="is not a folder"):
        weights_digest(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"no config\.json in it"):
        weights_digest(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights \(\*\.safetensors"):
        weights_digest(folder)
    with pytest.raises(ModelError, match="is not a folder"):
        tokenizer_digest(tmp_path / "nothing")
