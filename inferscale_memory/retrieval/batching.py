"""Embedding many texts so that one bad text costs only itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferscale_memory.retrieval.base import Embedder, EmbeddingError
from inferscale_memory.retrieval.vectors import unit_rows

MAX_REASON_CHARS = 500


def embed_each(embedder: Embedder, texts: Sequence[str], batch_size: int) -> list[np.ndarray | EmbeddingError]:
    """Embed ``texts`` in batches; a batch that fails is embedded again one text at a time.

    Args:
        embedder: what embeds; anything it raises is caught.
        texts: in any number.
        batch_size: texts per call of the embedder.

    Returns:
        For each text its vector, ``[dim]`` float32 of length 1, or the error it caused.
    """
    out: list[np.ndarray | EmbeddingError] = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        try:
            out.extend(_embed_checked(embedder, batch))
        except Exception:  # an embedder may raise anything; the text behind it is found below
            out.extend(_embed_or_error(embedder, text) for text in batch)
    return out


def _embed_or_error(embedder: Embedder, text: str) -> np.ndarray | EmbeddingError:
    try:
        return _embed_checked(embedder, [text])[0]
    except Exception as error:  # handed back, not hidden: the caller parks the text with it
        return EmbeddingError(f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS])


def _embed_checked(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    return unit_rows(embedder.embed(texts), [f"text {i}" for i in range(len(texts))], embedder.dim)
