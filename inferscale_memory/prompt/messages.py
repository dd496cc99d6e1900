"""Messages around a handle: finding handles where they may stand, and bringing the conversation into one form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferscale_memory.handles.text import HANDLE, find_handles, strip_handles
from inferscale_memory.prompt.types import Message

INSTRUCTION_ROLES = frozenset({"system", "developer"})
BLOCK = "kv_handle"
PLACE = "kv_place"
"""Type of the content part that marks where the facts go. A part, not a text: no text can be mistaken for it."""


@dataclass(frozen=True)
class Extracted:
    """Handles taken out of messages.

    ``handles`` are tokens, each once, in order. ``messages`` hold no handle any more; a ``{"type": "kv_place"}`` part
    stands in a system message where the first one was. They are the caller's own objects where nothing changed.
    ``ignored`` are the handles removed from places that are not scanned, such as a user's message.
    """

    handles: tuple[str, ...]
    messages: list[Message]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class Conversation:
    """Messages with one system message taken apart around the place of the facts.

    ``messages[index]`` is that system message with its whole text ``before + after`` as content; where there was none,
    an empty one was made (``created``).
    """

    messages: list[dict[str, Any]]
    index: int
    before: str
    after: str
    created: bool


def extract_handles(messages: Sequence[Message], *, memory_placed: Collection[int] = ()) -> Extracted:
    """Take the handles out of messages.

    Only system and developer messages are scanned, and those that the caller knows a memory has put there: a user (or
    a tool's output) that spells a handle gets no facts for it. From everywhere else handles are removed. Handles stand
    in text, or as parts ``{"type": "kv_handle", "handle": ...}``, bare or inside LangChain's ``non_standard`` part.

    Args:
        messages: chat messages in OpenAI's form; they are not changed.
        memory_placed: indices of messages of other roles that are scanned too.
    """
    handles: dict[str, None] = {}
    ignored: list[str] = []
    cleaned: list[Message] = []
    marked = False
    for index, message in enumerate(messages):
        instruction = message.get("role") in INSTRUCTION_ROLES
        if not _mentions_handle(message):
            cleaned.append(message)
            continue
        spelled = _spelled_content(message.get("content"), instruction)
        found = [token for text in texts_of(spelled) for token in find_handles(text)]
        rest = {key: _stripped(value) for key, value in message.items() if key != "content"}
        if instruction or index in memory_placed:
            handles.update(dict.fromkeys(found))
        else:
            ignored += found
        if instruction and found and not marked and isinstance(spelled, str):
            marked = True
            first = HANDLE.search(spelled)
            assert first is not None
            content: Any = _around_place(spelled[: first.start()], spelled[first.end() :])
        else:
            content = _stripped(spelled)
            if index in memory_placed and not as_text(content):
                continue  # it carried the handle and nothing else
        cleaned.append({**rest, "content": content} if "content" in message else rest)
    return Extracted(tuple(handles), cleaned, tuple(ignored))


def arrange(messages: Sequence[Message]) -> Conversation:
    """Merge consecutive system messages, and find or make the first one, split at the place of the facts.

    Remaining handles are taken for the place too (or removed), so no raw handle reaches the model.
    """
    merged: list[dict[str, Any]] = []
    for message in extract_handles(messages).messages:
        current = _normalised(message)
        last = merged[-1] if merged else None
        if last and current["role"] in INSTRUCTION_ROLES and last["role"] == current["role"]:
            last["content"] = _joined(last["content"], current["content"])
        else:
            merged.append(current)
    index = next((i for i, message in enumerate(merged) if message["role"] in INSTRUCTION_ROLES), None)
    created = index is None
    if index is None:
        index = 0
        merged.insert(0, {"role": "system", "content": [""]})
    before, after = "", ""
    for position, message in enumerate(merged):
        if message["role"] not in INSTRUCTION_ROLES:
            continue
        sides = message["content"]
        message["content"] = "".join(sides)
        if position == index:
            before, after = sides[0], "".join(sides[1:])
    return Conversation(merged, index, before, after, created)


def merge_instructions(messages: Sequence[Message]) -> list[Any]:
    """The messages with consecutive system ones as one, a blank line apart; many templates take but one.

    Messages that stay as they are are the caller's own. Those with more than text in them are left alone.
    """
    merged: list[Any] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last and message.get("role") in INSTRUCTION_ROLES and last.get("role") == message.get("role"):
            both = [as_text(one.get("content")) or "" for one in (last, message)]
            if all(isinstance(text, str) for text in both):
                merged[-1] = {**last, "content": "\n\n".join(filter(None, both))}
                continue
        merged.append(message)
    return merged


def as_text(content: Any) -> Any:
    """Content as a template for plain strings wants it: text parts joined by a newline; other parts are left alone."""
    if not isinstance(content, list):
        return content
    texts = [_part_text(part) for part in content]
    return content if None in texts else "\n".join(text for text in texts if text is not None)


def _normalised(message: Message) -> dict[str, Any]:
    """A fresh message; an instruction's content becomes its one or two sides of the place, as a list of strings."""
    fresh = dict(message)
    if fresh.get("role") in INSTRUCTION_ROLES:
        fresh["content"] = _sides(fresh.get("content"))
        return fresh
    fresh.setdefault("role", "user")
    if isinstance(fresh.get("content"), list):
        fresh["content"] = as_text([part for part in fresh["content"] if not _is(part, PLACE)])
    if fresh.get("tool_calls"):
        fresh["tool_calls"] = [_with_parsed_arguments(call) for call in fresh["tool_calls"]]
    return fresh


def _sides(content: Any) -> list[str]:
    if not isinstance(content, list):
        return [content or ""]
    cut = next((i for i, part in enumerate(content) if _is(part, PLACE)), None)
    if cut is None:
        return [_part_texts(content)]
    return [_part_texts(content[:cut]), _part_texts(content[cut + 1 :])]


def _joined(first: list[str], second: list[str]) -> list[str]:
    """Two system contents as one, a blank line apart; of two places the first wins."""
    *placed, left = first
    right, *rest = second
    seam = f"{left}\n\n{right}" if left and (right or "".join(rest).strip()) else left or right
    return [*placed, seam + "".join(rest)] if placed else [seam, *rest]


def _part_text(part: Any) -> str | None:
    """Text of a text part, ``None`` for any other part (an image, a place)."""
    if isinstance(part, Mapping) and part.get("type") in ("text", "input_text"):
        part = part.get("text")
    return part if isinstance(part, str) else None


def _part_texts(parts: Sequence[Any]) -> str:
    return "\n".join(text for part in parts if (text := _part_text(part)) is not None)


def _with_parsed_arguments(call: Any) -> Any:
    """Templates want tool arguments as an object; OpenAI's form carries them as JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _around_place(before: str, after: str) -> list[dict[str, str]]:
    sides = ({"type": "text", "text": strip_handles(side)} for side in (before, after))
    first, second = sides
    return [part for part in (first, {"type": PLACE}, second) if part.get("text") != ""]


def _spelled_content(content: Any, instruction: bool) -> Any:
    """Content with handle parts spelled as text; an instruction's text parts are joined to one text."""
    if not isinstance(content, list):
        return content
    parts = [
        {"type": "text", "text": token} if (token := _block_handle(part)) is not None else part for part in content
    ]
    if instruction and not any(_is(part, PLACE) for part in parts):
        return _part_texts(parts)
    return parts


def _block_handle(part: Any) -> str | None:
    if _is(part, "non_standard"):
        part = part.get("value")
    if not _is(part, BLOCK):
        return None
    handle = part.get("handle")
    return handle if isinstance(handle, str) else ""


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind


def texts_of(value: Any) -> list[str]:
    """Every string inside a value, however deep."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in texts_of(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_of(item)]
    return []


def _mentions_handle(message: Message) -> bool:
    parts = message.get("content")
    if isinstance(parts, list) and any(_block_handle(part) is not None for part in parts):
        return True
    return any(strip_handles(text) != text for text in texts_of(message) if "⟦" in text or "⟧" in text)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return strip_handles(value)
    if isinstance(value, Mapping):
        return {key: _stripped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_stripped(item) for item in value]
    return value
