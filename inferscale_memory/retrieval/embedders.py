"""Embedders: sentence-transformers by default, or any callable.

A ``SentenceTransformerEmbedder`` runs in the process that made it, the API process. On a GPU its ``memory_bytes()``
and its activations come out of what ``gpu_memory_utilization`` leaves to others; call ``load()`` before the engine
starts, so that running out shows at start and not at the first question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from threading import Lock, RLock
from typing import Any

import numpy as np

from inferscale_memory._extras import require
from inferscale_memory.errors import InvalidInputError, ModelError
from inferscale_memory.retrieval.base import EmbeddingError
from inferscale_memory.retrieval.vectors import unit_rows

MAX_ID_CHARS = 256
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
ALONE_CHARS = 2_000
"""Characters of a call that one CPU thread embeds: some 30 questions, or 0.2 s."""


PROBES = ("The quick brown fox jumps over the lazy dog.", "Where did we leave the keys on Tuesday?")
"""Texts by which a callable without a name is told from another."""


class CallableEmbedder:
    """Wraps any function from texts to vectors, such as a remote embedding service.

    Args:
        fn: takes a list of texts and returns array-like ``[len(texts), dim]`` of any length but zero. Called from
            several threads at once; it does its own locking if it needs any.
        id: name under which vectors are stored, at most 256 characters. Change it whenever ``fn`` would give other
            vectors for the same text. None: a digest of the vectors of two fixed texts, to three digits; a function
            whose vectors vary by more than that gets a new one, and its facts are embedded again.
        dim: length of the vectors; every call is checked against it. None takes it from a first call.

    Raises:
        InvalidInputError: ``id`` is blank or too long, or ``dim`` is not a positive integer.
    """

    def __init__(self, fn: Callable[[list[str]], Any], id: str | None = None, dim: int | None = None) -> None:
        if id is not None and not (isinstance(id, str) and id.strip() and len(id) <= MAX_ID_CHARS):
            raise InvalidInputError(
                f"embedder id is {id!r}, want a name of 1 to {MAX_ID_CHARS} characters such as 'my-model@2'."
            )
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim <= 0):
            raise InvalidInputError(f"embedder dim is {dim!r}, want a positive integer: the length of its vectors.")
        self._fn = fn
        self._id = id
        self._dim = dim
        self._probe_lock = Lock()

    @property
    def id(self) -> str:
        """The name given, or a digest of what ``fn`` does; the latter calls it once and may raise as ``embed``."""
        self._probe()
        assert self._id is not None
        return self._id

    @property
    def dim(self) -> int:
        """The length given, or that of a first call, which may raise as ``embed`` does."""
        self._probe()
        assert self._dim is not None
        return self._dim

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embed ``texts``: ``[len(texts), dim]`` float32, rows of length 1.

        Raises:
            EmbeddingError: the function returned another shape, or a vector that is NaN, infinite or zero.
            Exception: whatever the function raises.
        """
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        return self._call(texts, self.dim)

    def _call(self, texts: Sequence[str], dim: int | None) -> np.ndarray:
        vectors = self._fn(list(texts))
        try:
            return unit_rows(vectors, [f"text {i}" for i in range(len(texts))], dim)
        except InvalidInputError as error:
            name = self._id or getattr(self._fn, "__qualname__", type(self._fn).__name__)
            raise EmbeddingError(f"embedder {name!r} gave back vectors that cannot be used: {error}") from error

    def _probe(self) -> None:
        """Find out what was not given."""
        with self._probe_lock:
            if self._id is not None and self._dim is not None:
                return
            vectors = self._call(PROBES, self._dim)
            self._dim = vectors.shape[1]
            if self._id is None:
                coarse = np.round(vectors, 3) + 0.0  # no negative zeros
                self._id = f"callable:{hashlib.sha256(coarse.astype('<f4').tobytes()).hexdigest()[:32]}"


class SentenceTransformerEmbedder:
    """A sentence-transformers model, loaded at first use. Safe to use from several threads.

    Texts longer than the model's maximum (256 tokens for the default) are embedded by their beginning.

    On a CPU a few short texts, such as a question, are embedded by one thread: where an engine keeps the other cores
    busy, several wait for one another at every layer, which was measured to take 30 times as long.

    Args:
        model: folder or Hugging Face id.
        device: torch device name; None lets sentence-transformers choose (a GPU where one is visible).
        batch_size: texts per forward pass.

    Raises:
        InvalidInputError: ``model`` is blank or ``batch_size`` is not positive.
    """

    def __init__(
        self, model: str | PathLike[str] = DEFAULT_MODEL, device: str | None = None, batch_size: int = 32
    ) -> None:
        if not str(model).strip():
            raise InvalidInputError("the embedder's model is blank, want a folder or a Hugging Face id.")
        if batch_size <= 0:
            raise InvalidInputError(f"batch_size is {batch_size}, want at least 1.")
        self._name = str(model)
        self._device = device
        self._batch_size = batch_size
        self._load_lock = RLock()
        self._encode_lock = Lock()
        self._model: Any = None
        self._alone: ThreadPoolExecutor | None = None
        self._id = ""
        self._dim = 0

    @property
    def id(self) -> str:
        """``sentence-transformers:`` and a digest of weights, tokenizer and pooling; where they lie does not matter.

        Loads the model at first use, and raises as ``load`` does.
        """
        self.load()
        return self._id

    @property
    def dim(self) -> int:
        """Length of the vectors. Loads the model at first use, and raises as ``load`` does."""
        self.load()
        return self._dim

    def load(self) -> None:
        """Load the model now; does nothing the second time.

        Raises:
            MissingExtraError: sentence-transformers is not installed.
            ModelError: the model cannot be found or loaded, or has no fixed vector length.
        """
        with self._load_lock:
            if self._model is not None:
                return
            library = require("sentence_transformers", "embed", "SentenceTransformerEmbedder")
            try:
                model = library.SentenceTransformer(self._name, device=self._device)
            except Exception as error:  # the library raises nearly anything: OSError, ValueError, hub errors
                raise ModelError(
                    f"cannot load the embedding model {self._name!r}: {error} "
                    "Pass a folder that holds one, or a Hugging Face id that can be reached or is in the local cache."
                ) from error
            # Renamed in sentence-transformers 5.
            measure = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
            dim = measure()
            if not dim:
                raise ModelError(f"the embedding model {self._name!r} does not say how long its vectors are.")
            self._dim = int(dim)
            self._id = f"sentence-transformers:{_identity(model)[:32]}"
            if model.device.type == "cpu":
                self._alone = _single_threaded()
            self._model = model

    def memory_bytes(self) -> int:
        """Bytes of the weights on the device; activations come on top. Loads the model at first use."""
        self.load()
        return sum(p.numel() * p.element_size() for p in self._model.parameters())

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embed ``texts``: ``[len(texts), dim]`` float32, rows of length 1.

        Raises:
            EmbeddingError: the model failed on these texts (a lone surrogate, no memory left).
            MissingExtraError, ModelError: as ``load``.
        """
        self.load()
        if not texts:
            return np.empty((0, self._dim), dtype=np.float32)
        try:
            if self._alone is not None and sum(map(len, texts)) <= ALONE_CHARS:
                vectors = self._alone.submit(self._encode, texts).result()
            else:
                vectors = self._encode(texts)
            return unit_rows(vectors, [f"text {i}" for i in range(len(texts))], self._dim)
        except Exception as error:  # whatever it is, the caller wants one type and the cause
            raise EmbeddingError(f"{self._name!r} cannot embed {len(texts)} text(s): {error}") from error

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        with self._encode_lock:  # fast tokenizers refuse to be borrowed twice
            vectors: np.ndarray = self._model.encode(
                list(texts), batch_size=self._batch_size, convert_to_numpy=True, show_progress_bar=False
            )
            return vectors


def _single_threaded() -> ThreadPoolExecutor:
    """A thread in which torch computes alone; the number of threads of every other one stays."""
    torch = require("torch", "embed", "SentenceTransformerEmbedder")
    usual = torch.get_num_threads()

    def alone() -> None:
        torch.get_num_threads()  # a thread's first call takes over the process's number, and would do so later
        torch.set_num_threads(1)

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inferscale-embedder")
    thread.submit(alone).result()
    torch.set_num_threads(usual)  # new threads take over what was set last
    return thread


def _identity(model: Any) -> str:
    """SHA-256 over all that decides a model's vectors: every weight, the tokenizer, the modules' settings."""
    sha = hashlib.sha256()
    settings = {
        "modules": [(type(m).__name__, getattr(m, "get_config_dict", dict)()) for m in model],
        "max_seq_length": model.max_seq_length,
        "prompts": getattr(model, "prompts", None),
        "default_prompt": getattr(model, "default_prompt_name", None),
        "tokenizer": _tokenizer_state(model.tokenizer),
    }
    sha.update(json.dumps(settings, sort_keys=True, default=repr).encode())
    torch = require("torch", "embed", "SentenceTransformerEmbedder")
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(f"\0{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def _tokenizer_state(tokenizer: Any) -> Any:
    """The tokenizer as plain data, without the padding and truncation that calls leave behind in it."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else repr(type(tokenizer))
    state = json.loads(fast.to_str())
    return {key: value for key, value in state.items() if key not in ("padding", "truncation")}
