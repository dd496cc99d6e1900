"""Names of models: two engines share KV only if everything that shapes it is the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from inferscale_memory.errors import InvalidInputError, ModelError
from inferscale_memory.scope import digest

SCHEMA = 1
"""Raised whenever chunks of an earlier release must not be reused."""

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf")
# A model's own code runs with trust_remote_code, and quantization is described beside the config in some formats.
_CONFIGS = ("config.json", "params.json", "quant*_config.json", "*.py")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
)
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")
# A file written again within the clock tick of its last write keeps its times: such fresh files are not cached.
_FRESH_NS = 2_000_000_000


def fingerprint(fields: Mapping[str, Any]) -> str:
    """Hash named values, whatever their order, without two different mappings ever giving the same bytes.

    Args:
        fields: JSON-like values; ``1`` and ``1.0`` are the same number, lists and tuples the same sequence.

    Returns:
        64 hex digits.

    Raises:
        InvalidInputError: a value is not JSON-like, or not a finite number.
    """
    parts: list[str] = []
    for name in sorted(fields):
        try:
            text = json.dumps(_canonical(fields[name]), sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"field {name!r} cannot be part of a fingerprint: {error}.") from error
        parts += [name, text]
    return digest("fingerprint", *parts)


def model_fingerprint(
    *,
    weights: str,
    dtype: object,
    rope: Mapping[str, Any],
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokenizer: str,
    tap: str,
    kv_cache_dtype: str,
    tp_size: int,
    lora: str | None = None,
    quantization: str | None = None,
) -> str:
    """Name what makes a chunk reusable; a change of any of it makes every old chunk a miss.

    Args:
        weights: from ``weights_digest``.
        dtype: of the model, ``"bfloat16"`` or ``torch.bfloat16``.
        rope: every parameter of the rotary embedding, scaling included.
        layers: number of attention layers.
        kv_heads: KV heads per layer, over all ranks.
        head_dim: features per head.
        tokenizer: from ``tokenizer_digest``.
        tap: how keys were taken: exact or un-rotated.
        kv_cache_dtype: of the engine's cache, such as ``"auto"``.
        tp_size: number of tensor-parallel ranks.
        lora: digest of the adapter, None without one.
        quantization: method of the weights, None without one.

    Returns:
        64 hex digits.
    """
    return fingerprint(
        {
            "schema": SCHEMA,
            "weights": weights,
            "dtype": str(dtype).removeprefix("torch."),
            "rope": rope,
            "layers": layers,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "tokenizer": tokenizer,
            "tap": tap,
            "kv_cache_dtype": kv_cache_dtype,
            "tp_size": tp_size,
            "lora": lora,
            "quantization": quantization,
        }
    )


def weights_digest(folder: Path, cache_dir: Path | None = None) -> str:
    """Hash a model's configuration, code and weights: names and SHA-256 of the files an engine loads.

    A file that is a link into a Hugging Face cache (``blobs/<sha256>``) is not read: its blob's name is its hash.
    Others are read once, then remembered by path, size and times in ``cache_dir``.

    Args:
        folder: of the model, or one GGUF file.
        cache_dir: where to remember hashes, created if missing; None remembers nothing.

    Returns:
        64 hex digits.

    Raises:
        ModelError: no such folder, no ``config.json`` or weights in it, or unreadable.
    """
    folder = Path(folder)
    if folder.is_file():
        return _digest_files("weights", [folder], cache_dir)
    weights = _matching(folder, _WEIGHTS)
    configs = _matching(folder, _CONFIGS)
    if not weights or not configs:
        wanted = "weights (*.safetensors, *.bin, *.pt, *.gguf)" if configs else "config.json"
        raise ModelError(f"{folder} is not a model folder: no {wanted} in it. Pass a folder in Hugging Face format.")
    return _digest_files("weights", [*configs, *weights], cache_dir)


def tokenizer_digest(folder: Path, cache_dir: Path | None = None) -> str:
    """Hash a tokenizer's files. The chat template is left out where it has its own file: it only picks tokens.

    A folder without tokenizer files (a model fed with token ids) has a digest too, always the same.

    Args:
        folder: of the tokenizer, or one GGUF file.
        cache_dir: as in ``weights_digest``.

    Raises:
        ModelError: no such folder, or unreadable.
    """
    folder = Path(folder)
    found = [folder] if folder.is_file() else _matching(folder, _TOKENIZER)
    return _digest_files("tokenizer", found, cache_dir)


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys must be strings, got {list(value)!r}")
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder. Pass the folder of a model in Hugging Face format.")
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def _digest_files(kind: str, paths: list[Path], cache_dir: Path | None) -> str:
    known = _read_cache(cache_dir)
    with ThreadPoolExecutor(max_workers=4) as threads:  # hashing releases the interpreter lock
        try:
            results = list(threads.map(lambda path: _file_sha256(path, known), paths))
        except OSError as error:
            raise ModelError(f"cannot read the model's files: {error}.") from error
    fresh = {name: entry for _, name, entry in results if entry is not None and known.get(name) != entry}
    if cache_dir is not None and fresh:
        _write_cache(cache_dir, fresh)
    return digest(kind, *(part for path, (sha, *_) in zip(paths, results, strict=True) for part in (path.name, sha)))


def _file_sha256(path: Path, known: Mapping[str, list[Any]]) -> tuple[str, str, list[Any] | None]:
    """Hash one file; also returns its name in the cache and the entry to remember, None if it must not be."""
    real = path.resolve()
    if path.is_symlink() and real.parent.name == "blobs" and _BLOB_NAME.fullmatch(real.name):
        return real.name, str(real), None
    stamp = _stamp(real)
    entry = known.get(str(real))
    if isinstance(entry, list) and entry[:-1] == stamp and _BLOB_NAME.fullmatch(str(entry[-1])):
        return entry[-1], str(real), entry
    with real.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
    settled = _stamp(real) == stamp and time.time_ns() - stamp[1] > _FRESH_NS
    return sha, str(real), [*stamp, sha] if settled else None


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    # The change time too: copying with preserved times can put other weights under the same size and mtime.
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _read_cache(cache_dir: Path | None) -> dict[str, list[Any]]:
    if cache_dir is None:
        return {}
    try:
        entries = json.loads((cache_dir / "digests.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _write_cache(cache_dir: Path, fresh: Mapping[str, list[Any]]) -> None:
    """Add entries. Two processes at once may lose one's entries, never mix them: those files are hashed again."""
    temp = cache_dir / f".digests.{os.getpid()}.{secrets.token_hex(8)}"
    with contextlib.suppress(OSError):  # only a cache: a read-only folder costs time
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temp.write_text(json.dumps(_read_cache(cache_dir) | dict(fresh)), "utf-8")
            temp.replace(cache_dir / "digests.json")
        finally:
            temp.unlink(missing_ok=True)
