"""Readers of what an application already has: JSONL, LoCoMo, LangChain histories, LlamaIndex chat stores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from inferscale_memory.encoding import _formats, _locomo
from inferscale_memory.encoding._formats import BadItem, SourceItem
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.scope import digest

__all__ = ["FORMATS", "Source", "SourceError", "SourceItem", "detect_format", "read_source"]

FORMATS = ("jsonl", "locomo", "langchain", "llama-index")


@dataclass(frozen=True)
class SourceError:
    """One item that could not be used.

    Attributes:
        line: line of the file in JSONL; elsewhere the item's 1-based number.
        reason: what was found and what was wanted; never the item's text.
    """

    line: int
    reason: str


class Source:
    """An open file of things to remember. Iterating reads it; ``errors`` grows on the way.

    Every item has an id made from its own content and from how often the same content came before it, so that reading
    the same file twice, or a file that has grown since, gives the old items the ids they had: adding is idempotent and
    an interrupted import is resumed by starting it again.
    """

    def __init__(self, path: Path, format: str, document: Any, *, by_session: bool = False) -> None:
        self.path = path
        self.format = format
        self.errors: list[SourceError] = []
        self._document = document
        self._by_session = by_session

    def __iter__(self) -> Iterator[SourceItem]:
        """Yield the good items in the file's order. A second pass starts over, ``errors`` too."""
        self.errors.clear()
        seen: Counter[str] = Counter()
        for found in self._read():
            if isinstance(found, BadItem):
                self.errors.append(SourceError(found.line, found.reason))
                continue
            if found.id:
                yield found
                continue
            content = digest(found.kind, found.role, found.speaker, found.text, *_flat(found.scope), *found.turn_ids)
            yield replace(found, id=digest("source", content, str(seen[content])))
            seen[content] += 1

    def _read(self) -> Iterator[SourceItem | BadItem]:
        if self.format == "jsonl":
            yield from _read_lines(self.path)
            return
        readers: dict[str, Callable[[Any], Iterator[SourceItem | BadItem]]] = {
            "locomo": partial(_locomo.locomo, by_session=self._by_session),
            "langchain": _formats.langchain,
            "llama-index": _formats.llama_index,
        }
        yield from readers[self.format](self._document)


def read_source(path: str | Path, format: str | None = None, *, by_session: bool = False) -> Source:
    """Open a file of facts or messages.

    Args:
        path: UTF-8 text, with or without a byte-order mark.
        format: one of ``FORMATS``; None finds out from the content.
        by_session: keep the sessions of a LoCoMo conversation apart: none is context of another. As a rule one
            conversation is one memory.

    Raises:
        InvalidInputError: there is no such file, it is not UTF-8 or not of the format, or the format is not known.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise InvalidInputError(f"unknown format {format!r}; give one of {', '.join(FORMATS)}, or leave it out.")
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file. Give a JSONL, LoCoMo, LangChain or LlamaIndex file.")
    if format == "jsonl" or (format is None and _starts_with_record(path)):
        return Source(path, "jsonl", None)
    document = _whole_document(path)
    found = detect_format(document)
    if format is not None and document is not None and found != format:
        raise InvalidInputError(f"{path} does not look like the format {format!r} but like {found!r}.")
    if format is not None and document is None:
        raise InvalidInputError(f"{path} is not one JSON document, which the format {format!r} is; try 'jsonl'.")
    return Source(path, found, document, by_session=by_session)


def detect_format(document: Any) -> str:
    """Tell the format from a parsed JSON document; None (not one document) is JSONL.

    Raises:
        InvalidInputError: it is JSON, but of no shape that is known here.
    """
    if document is None or _formats.is_record(document):
        return "jsonl"
    if _locomo.is_locomo(document):
        return "locomo"
    if isinstance(document, dict) and isinstance(document.get("store"), dict):
        return "llama-index"
    if isinstance(document, list) and any(_formats.is_langchain_message(entry) for entry in document):
        return "langchain"
    raise InvalidInputError(
        f"cannot tell the format of this JSON {type(document).__name__}. Known are JSONL with a 'text' or "
        "'role' and 'content' per line, LoCoMo conversations, lists made by LangChain's messages_to_dict, and "
        "LlamaIndex's SimpleChatStore."
    )


def _starts_with_record(path: Path) -> bool:
    """Whether the first line is a JSONL record: such a file is read line by line, however large it is."""
    with path.open("rb") as file:
        try:
            return _formats.is_record(json.loads(file.readline().decode("utf-8-sig")))
        except (ValueError, RecursionError):
            return False


def _whole_document(path: Path) -> Any:
    """Parse the file as one JSON document; None where it is not one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        # A broken line spoils one item of a JSONL file only, so its own reader decodes line by line.
        if b"\n" in path.read_bytes().strip():
            return None
        raise InvalidInputError(f"{path} is not UTF-8 text ({error.reason}); convert it to UTF-8.") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_lines(path: Path) -> Iterator[SourceItem | BadItem]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if line:
                    yield _formats.record(json.loads(line), number)
            except UnicodeDecodeError as error:
                yield BadItem(number, f"not UTF-8 text: {error.reason} at byte {error.start}")
            except json.JSONDecodeError as error:
                yield BadItem(number, f"not JSON: {error.msg} at column {error.colno}")
            except (ValueError, RecursionError) as error:
                yield BadItem(number, f"not usable JSON: {type(error).__name__}")


def _flat(scope: dict[str, str]) -> list[str]:
    return [part for pair in sorted(scope.items()) for part in pair]
