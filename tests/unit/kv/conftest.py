from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from inferscale_memory.kv import Chunk, ChunkStore, chunk_key, context_digest

torch = pytest.importorskip("torch")

MODEL = hashlib.sha256(b"a model").hexdigest()
OTHER_MODEL = hashlib.sha256(b"another model").hexdigest()


def build_chunk(number: int = 0, *, shape=(2, 3, 2, 4), dtype=torch.bfloat16, rank=0, world=1, model=MODEL) -> Chunk:
    """A chunk of random states; ``number`` names it and seeds its content."""
    random = torch.Generator().manual_seed(number)
    tokens = tuple(range(number, number + shape[1]))
    return Chunk(
        key=chunk_key(tenant="t", owner="o", fingerprint=model, context_ids=(1, 2), token_ids=tokens),
        token_ids=tokens,
        fingerprint=model,
        context_digest=context_digest((1, 2)),
        layer_names=tuple(f"layers.{i}.attn" for i in range(shape[0])),
        keys=torch.randn(shape, generator=random).to(dtype),
        values=torch.randn(shape, generator=random).to(dtype),
        rank=rank,
        world=world,
    )


def assert_equal_chunks(left: Chunk, right: Chunk) -> None:
    """Field by field, tensors to the bit."""
    for name in ("key", "token_ids", "fingerprint", "context_digest", "layer_names", "rank", "world"):
        assert getattr(left, name) == getattr(right, name), name
    for name in ("keys", "values"):
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)), name


@pytest.fixture
def make_chunk() -> Callable[..., Chunk]:
    return build_chunk


@pytest.fixture
def same() -> Callable[[Chunk, Chunk], None]:
    return assert_equal_chunks


@pytest.fixture
def model() -> str:
    return MODEL


@pytest.fixture
def other_model() -> str:
    return OTHER_MODEL


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return ChunkStore(tmp_path / "kv")


@pytest.fixture
def unprivileged_dir(without_root: Callable[[Path], AbstractContextManager[Path]]) -> Iterator[Path]:
    """A folder that the test owns while it runs without root's power to ignore permissions."""
    with without_root(Path(tempfile.mkdtemp(dir="/tmp"))) as folder:
        yield folder
