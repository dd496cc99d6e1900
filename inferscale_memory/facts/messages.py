"""Reads one chat message as its wire format has it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.models import NewTurn
from inferscale_memory.handles.text import strip_handles
from inferscale_memory.text import check_text, is_blank

# Other names in use for the two speakers of a conversation.
_ROLE_ALIASES = {"human": "user", "ai": "assistant"}


def read_message(message: Mapping[str, Any], index: int, *, max_chars: int) -> NewTurn | None:
    """A message as a turn; None where it says nothing in words (a tool call, an image alone, a handle alone).

    Fields: ``role``; ``content``, a string, None, or a list of parts of which ``{"type": "text", "text": ...}`` and
    plain strings are read and joined by newlines; optional ``name`` (the speaker), ``id``, and ``timestamp`` (seconds
    since 1970, ISO 8601, or a ``datetime``; UTC where no zone is given). KV handles are removed from the text.

    Raises:
        InvalidInputError: a field is missing, malformed, or its text cannot be saved.
    """
    role = message.get("role")
    if not isinstance(role, str) or not role.strip():
        raise InvalidInputError(f"a chat message needs a 'role' such as 'user', found {role!r}.")
    role = role.strip().lower()
    role = _ROLE_ALIASES.get(role, role)
    if "content" not in message:
        raise InvalidInputError("a chat message needs a 'content'; it may be None.")
    found = _content_text(message["content"])
    if found is None:
        return None
    text = strip_handles(found)
    if text != found and is_blank(text):
        return None
    check_text(text, what="message", max_chars=max_chars)
    identity: dict[str, str] = {} if message.get("id") is None else {"id": _identity(message["id"])}
    return NewTurn(
        role=role,
        text=text,
        speaker=_speaker(message.get("name"), role),
        created_at=_time(message.get("timestamp")),
        index=index,
        **identity,
    )


def _content_text(content: object) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidInputError(
            f"message content must be a string, None or a list of parts, got {type(content).__name__}."
        )
    texts = [text for text in map(_part_text, content) if text is not None]
    return "\n".join(texts) if texts else None


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidInputError(f"a content part must be a mapping or a string, got {type(part).__name__}.")
    if part.get("type") != "text":
        return None
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidInputError(f"a text part needs a string 'text', got {type(text).__name__}.")
    return text


def _speaker(name: object, role: str) -> str:
    if name is None:
        return role.capitalize()
    if not isinstance(name, str):
        raise InvalidInputError(f"a message's 'name' must be a string, got {type(name).__name__}.")
    # One line: the speaker is the head of the fact's text.
    return " ".join(name.split()) or role.capitalize()


def _identity(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInputError(f"a message's 'id' must be a non-blank string or an integer, got {value!r}.")


def _time(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        if isinstance(value, datetime):
            found = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = datetime.fromtimestamp(value, UTC)
        elif isinstance(value, str):
            found = datetime.fromisoformat(value)
        else:
            raise ValueError(f"found {type(value).__name__}")
        # Converted here: a time at the edge of the calendar has no UTC form.
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInputError(
            f"a message's 'timestamp' must be seconds since 1970, ISO 8601 or a datetime: {error}."
        ) from error
