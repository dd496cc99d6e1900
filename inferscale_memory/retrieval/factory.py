"""Vector indexes by name, for settings and command lines."""

from __future__ import annotations

from importlib.util import find_spec

from inferscale_memory.errors import ConfigError
from inferscale_memory.retrieval.base import VectorIndex

INDEX_KINDS = ("auto", "torch", "faiss", "faiss-gpu", "numpy")


def open_index(kind: str = "auto", *, device: str = "auto") -> VectorIndex:
    """Make an empty index.

    Args:
        kind: ``"torch"``, ``"faiss"``, ``"faiss-gpu"`` or ``"numpy"``; ``"auto"`` takes torch where it sees a GPU,
            else numpy: one user's facts are a small matrix, and torch's threads wait for one another wherever an
            engine keeps the cores busy.
        device: for torch (see ``TorchIndex``).

    Raises:
        ConfigError: no such kind, or the device does not exist.
        MissingExtraError: the kind needs a package that is not installed.
    """
    if kind == "auto":
        kind = "torch" if device != "cpu" and _sees_a_gpu() else "numpy"
    if kind == "torch":
        from inferscale_memory.retrieval.torch_index import TorchIndex

        return TorchIndex(device)
    if kind in ("faiss", "faiss-gpu"):
        from inferscale_memory.retrieval.faiss_index import FaissIndex

        return FaissIndex(gpu=kind == "faiss-gpu")
    if kind == "numpy":
        from inferscale_memory.retrieval.numpy_index import NumpyIndex

        return NumpyIndex()
    raise ConfigError(f"no vector index is called {kind!r}; want one of {', '.join(INDEX_KINDS)}.")


def _sees_a_gpu() -> bool:
    if not find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()
