"""Reading data sets: LoCoMo, LongMemEval, and JSONL of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferscale_memory.bench.quality.data.jsonl import read_jsonl
from inferscale_memory.bench.quality.data.locomo import read_locomo
from inferscale_memory.bench.quality.data.longmemeval import read_longmemeval
from inferscale_memory.bench.quality.data.types import FACT_KINDS, Conversation, DataSet, FactKind, Question
from inferscale_memory.encoding._locomo import is_locomo
from inferscale_memory.errors import InvalidInputError

__all__ = ["FACT_KINDS", "FORMATS", "Conversation", "DataSet", "FactKind", "Question", "read_data"]

FORMATS = ("locomo", "longmemeval", "jsonl")


def read_data(files: Sequence[Path], format: str | None = None, facts: FactKind = "observations") -> DataSet:
    """Read files of one format, or of any.

    Args:
        files: UTF-8, with or without a byte-order mark.
        format: one of ``FORMATS``; None finds out from the content of each.
        facts: of LoCoMo, whose observations are facts as they stand.

    Raises:
        InvalidInputError: a file cannot be read as data, or holds no question that can be used.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInputError(f"unknown format {format!r}; give one of {', '.join(FORMATS)}, or leave it out.")
    if facts not in FACT_KINDS:
        raise InvalidInputError(f"facts is {facts!r}; wanted one of {', '.join(FACT_KINDS)}.")
    data = DataSet()
    for file in files:
        found = _read(file, format, facts)
        if not found.questions:
            why = f": {found.errors[0]}" if found.errors else ""
            raise InvalidInputError(f"{file} holds no question that can be measured{why}.")
        data.add(found)
    return data


def _read(file: Path, format: str | None, facts: FactKind) -> DataSet:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read as UTF-8 text: {error}.") from error
    document = None if format == "jsonl" else _parsed(text)
    found = format or _detected(document)
    if found == "jsonl":
        return read_jsonl(text.splitlines())
    if found != _detected(document):
        raise InvalidInputError(f"{file} does not look like the format {found!r} but like {_detected(document)!r}.")
    return read_locomo(document, file.stem, facts) if found == "locomo" else read_longmemeval(document)


def _parsed(text: str) -> Any:
    """The file as one JSON document; None where it is not one."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _detected(document: Any) -> str:
    if is_locomo(document):
        return "locomo"
    first = document[0] if isinstance(document, list) and document else None
    return "longmemeval" if isinstance(first, dict) and "haystack_sessions" in first else "jsonl"
