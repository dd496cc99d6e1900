"""The shapes that ``sources`` reads, one function per format. Items are checked one by one; a bad one is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

SCOPE_KEYS = ("tenant_id", "user_id", "agent_id", "session_id")
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}


@dataclass(frozen=True)
class SourceItem:
    """One thing read from a file.

    Attributes:
        kind: ``fact`` is remembered as it stands; ``message`` is a chat message to extract facts from; ``turn`` is
            a message kept only as encoding context of the facts that name it.
        text: never blank.
        scope: the ids that the file itself gives, as keywords of ``Scope.of``.
        turn_ids: of a fact its source turns; of a turn or message its own id in the file, where it has one.
        time: when it was said; aware, UTC where the file names no zone.
        line: line in JSONL, else the item's 1-based number.
        id: stable name made from the content (see ``sources.Source``), or the file's own.
    """

    kind: Literal["fact", "message", "turn"]
    text: str
    line: int
    scope: dict[str, str] = field(default_factory=dict)
    role: str | None = None
    speaker: str | None = None
    turn_ids: tuple[str, ...] = ()
    time: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class BadItem:
    """One thing that could not be used, and why."""

    line: int
    reason: str


def text_problem(text: object) -> str | None:
    """Why ``text`` cannot be remembered, or None."""
    if not isinstance(text, str):
        return f"the text is a {type(text).__name__}, not a string"
    if not text.strip():
        return "the text is blank"
    if "\x00" in text:
        return "the text holds a NUL character"
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        return "the text holds a lone surrogate"
    return None


def content_text(content: Any) -> Any:
    """Text of a message's content: a string, or the joined text blocks of a list; anything else comes back as is."""
    if not isinstance(content, list):
        return content
    parts = []
    for block in content:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            parts.append(block["text"])
    return "\n".join(parts)


def _time(value: Any) -> datetime | None:
    """ISO 8601 or seconds since 1970.

    Raises:
        ValueError: it is neither.
    """
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        parsed = datetime.fromisoformat(value)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise ValueError(f"the time {value!r} is neither ISO 8601 nor seconds since 1970") from error
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def _string(entry: dict[str, Any], *names: str) -> str | None:
    """First of ``names`` that is set; numbers are taken as their digits.

    Raises:
        ValueError: it is neither a string nor a number.
    """
    for name in names:
        value = entry.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"{name!r} is a {type(value).__name__}, not a string")
        return str(value)
    return None


# --- JSONL ---


def is_record(document: Any) -> bool:
    """Whether this is what one line of JSONL holds."""
    return isinstance(document, dict) and ("text" in document or ("role" in document and "content" in document))


def record(entry: Any, line: int) -> SourceItem | BadItem:
    """One JSONL line: ``{"text": ..., "user_id": ...}`` or ``{"role": ..., "content": ...}``.

    Both may carry ``user_id``, ``agent_id``, ``session_id``, ``tenant_id``, ``speaker`` (or ``name``), ``time`` (or
    ``created_at``), ``turn_id`` or ``turn_ids``, ``id`` and an object ``metadata``.
    """
    if not is_record(entry):
        return BadItem(line, "wanted an object with 'text', or with 'role' and 'content'")
    text = entry["text"] if "text" in entry else content_text(entry["content"])
    problem = text_problem(text)
    if problem:
        return BadItem(line, problem)
    metadata = entry.get("metadata") or {}
    turn_ids = entry.get("turn_ids") or []
    if not isinstance(metadata, dict):
        return BadItem(line, f"'metadata' is a {type(metadata).__name__}, not an object")
    if not isinstance(turn_ids, list) or not all(isinstance(t, str) for t in turn_ids):
        return BadItem(line, "'turn_ids' is not a list of strings")
    try:
        own_turn = _string(entry, "turn_id")
        return SourceItem(
            kind="fact" if "text" in entry else "message",
            text=text,
            line=line,
            scope={key: value for key in SCOPE_KEYS if (value := _string(entry, key)) is not None},
            role=_string(entry, "role"),
            speaker=_string(entry, "speaker", "name"),
            turn_ids=tuple(turn_ids) or ((own_turn,) if own_turn else ()),
            time=_time(entry.get("time", entry.get("created_at"))),
            metadata=metadata,
            id=_string(entry, "id") or "",
        )
    except ValueError as error:
        return BadItem(line, str(error))


# --- LangChain ---


def is_langchain_message(entry: Any) -> bool:
    """Whether this is one entry of ``messages_to_dict``."""
    return isinstance(entry, dict) and isinstance(entry.get("type"), str) and isinstance(entry.get("data"), dict)


def langchain(document: Any) -> Iterator[SourceItem | BadItem]:
    """A list made by LangChain's ``messages_to_dict``. System and tool messages say nothing about a user: skipped."""
    for number, entry in enumerate(document, 1):
        if not is_langchain_message(entry):
            yield BadItem(number, "wanted an object with 'type' and an object 'data'")
            continue
        data = entry["data"]
        role = _ROLES.get(entry["type"], entry["type"])
        if role == "chat":
            role = str(data.get("role") or "user")
        if role not in ("user", "assistant"):
            continue
        if not _only_calls_tools(data, data.get("content")):
            yield _message(number, role, data.get("content"), data, {})


# --- LlamaIndex ---


def llama_index(document: Any) -> Iterator[SourceItem | BadItem]:
    """A ``SimpleChatStore``: messages by store key, which becomes the session id. System and tool ones are skipped."""
    number = 0
    for key, messages in document["store"].items():
        for entry in messages if isinstance(messages, list) else [messages]:
            number += 1
            if not isinstance(entry, dict):
                yield BadItem(number, f"{key!r}: a message is a {type(entry).__name__}, not an object")
                continue
            role = str(entry.get("role") or "user")
            if role not in ("user", "assistant"):
                continue
            content = entry["blocks"] if entry.get("blocks") else entry.get("content")
            if not _only_calls_tools(entry, content):
                yield _message(number, role, content, entry, {"session_id": key} if key.strip() else {})


def _only_calls_tools(entry: dict[str, Any], content: Any) -> bool:
    """Whether this is an assistant's message without words, as it stands before every tool's answer."""
    extra = entry.get("additional_kwargs")
    calls = entry.get("tool_calls") or (isinstance(extra, dict) and extra.get("tool_calls"))
    if isinstance(content, list):
        calls = calls or any(isinstance(b, dict) and "tool" in str(b.get("block_type", b.get("type"))) for b in content)
    return bool(calls) and not str(content_text(content) or "").strip()


def _message(
    number: int, role: str, content: Any, entry: dict[str, Any], scope: dict[str, str]
) -> SourceItem | BadItem:
    """A chat message from its parts."""
    text = content_text(content)
    problem = text_problem(text)
    if problem:
        return BadItem(number, f"{role} message: {problem}")
    extra = entry.get("additional_kwargs")
    named = entry.get("name") or (extra.get("name") if isinstance(extra, dict) else None)
    own = entry.get("id")
    return SourceItem(
        kind="message",
        text=text,
        line=number,
        scope=scope,
        role=role,
        speaker=named if isinstance(named, str) and named.strip() else None,
        turn_ids=(own,) if isinstance(own, str) and own else (),
    )
