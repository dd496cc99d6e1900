"""Mem0 behind a pipe: run by the interpreter of Mem0's own virtual environment, never imported by this library.

JSON lines on stdin, ``{"id", "op", ...}``; for each one line on stdout, ``{"id", ...}`` or ``{"id", "error"}``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

NO_LLM = "http://127.0.0.1:9/v1"
"""Mem0 wants a language model even where it is told to infer nothing; this one cannot be reached."""


def open_memory(folder: str, embedder: str, dim: int) -> Any:
    """Mem0 as it comes, with its default vector store (embedded Qdrant), everything in ``folder``."""
    from mem0 import Memory

    return Memory.from_config(
        {
            "llm": {"provider": "openai", "config": {"api_key": "unused", "openai_base_url": NO_LLM}},
            "embedder": {"provider": "huggingface", "config": {"model": embedder, "embedding_dims": dim}},
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": f"{folder}/qdrant", "on_disk": True, "embedding_model_dims": dim},
            },
            "history_db_path": f"{folder}/history.db",
        }
    )


def add(memory: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Save one user's texts as they stand; those that are there already are not saved twice."""
    scope = {"user_id": request["user"]}
    known = {item["memory"] for item in memory.get_all(filters=scope, top_k=100_000)["results"]}
    missing = [text for text in request["texts"] if text not in known]
    for text in missing:
        memory.add(text, infer=False, **scope)
    return {"added": len(missing)}


def search(memory: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The best ``k`` texts of a user, best first; no threshold but Mem0's lowest, a cosine of 0."""
    start = time.perf_counter()
    found = memory.search(request["query"], top_k=request["k"], filters={"user_id": request["user"]}, threshold=0.0)
    texts = [item["memory"] for item in found["results"]]
    return {"texts": texts, "seconds": time.perf_counter() - start}


def ping(memory: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Send the texts back: what the pipe costs."""
    return {"texts": request["texts"]}


OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {"add": add, "search": search, "ping": ping}


def serve(memory: Any, requests: TextIO, answers: TextIO) -> None:
    """Answer one request after the other until stdin ends."""
    for line in requests:
        request = json.loads(line)
        try:
            answer = OPERATIONS[request["op"]](memory, request)
        except Exception as error:  # whatever Mem0 raises is for the bench to report
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"id": request["id"], **answer}) + "\n")
        answers.flush()


def _no_network(*_: Any) -> None:
    raise OSError("the benchmark allows no network.")


def main() -> None:
    """``mem0_worker.py FOLDER EMBEDDER DIM``; the first line it writes holds the versions in use."""
    folder, embedder, dim = sys.argv[1:4]
    # Mem0 prints notices; the pipe is for answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=folder, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    socket.socket.connect = _no_network  # type: ignore[method-assign]
    memory = open_memory(folder, embedder, int(dim))
    import importlib.metadata

    names = ("mem0ai", "qdrant-client", "sentence-transformers", "torch")
    versions = {name: importlib.metadata.version(name) for name in names}
    answers.write(json.dumps({"id": -1, "versions": versions}) + "\n")
    answers.flush()
    serve(memory, sys.stdin, answers)


if __name__ == "__main__":
    main()
