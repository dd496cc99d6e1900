"""Taking handles out of what a model says, whole or piece by piece."""

from __future__ import annotations

import re
from typing import Any

from inferscale_memory.handles.text import strip_handles

# Handles, and openings that something else than a handle's letters follows: what follows may be removed itself, and
# the opening's end come after it.
_SPELLED = re.compile(r"⟦kv:[A-Za-z]*(?:⟧|(?=[^A-Za-z⟧]))")
# What may still become a handle when the next piece comes; beginnings before it too, for the same reason.
_OPEN = re.compile(r"(?:⟦(?:kv?)?)*⟦(?:k(?:v(?::[A-Za-z]*)?)?)?\Z")
_CUT = re.compile(r"⟦kv:[A-Za-z]*\Z")


class HandleFilter:
    """Removes handles from a text that comes in pieces, wherever the pieces were cut.

    What may be the beginning of a handle is held back until it is decided; ``finish`` gives what is left. The pieces
    given out, joined, hold no handle.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The part of the text so far that can be given out now."""
        if not self._held and "⟦" not in piece:
            return piece
        text, removed = _SPELLED.subn("", self._held + piece)
        while removed:  # removing one may have made another; each pass leaves less
            text, removed = _SPELLED.subn("", text)
        open_end = _OPEN.search(text)
        cut = len(text) if open_end is None else open_end.start()
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The rest; a handle that never ended is dropped."""
        rest, self._held = _CUT.sub("", self._held), ""
        return rest


def without_handles(answer: dict[str, Any]) -> dict[str, Any]:
    """An OpenAI answer without handles in its texts and tool arguments; changed in place where there are any."""
    for choice in answer.get("choices", ()):
        said = choice.get("message") or choice
        for name in ("content", "reasoning", "text"):
            if isinstance(said.get(name), str) and "⟦" in said[name]:
                said[name] = strip_handles(said[name])
        for call in said.get("tool_calls") or ():
            function = call.get("function") or {}
            if "⟦" in (function.get("arguments") or ""):
                function["arguments"] = strip_handles(function["arguments"])
    return answer


class AnswerFilter:
    """Removes handles from the chunks of one OpenAI stream, each choice and each tool call by itself."""

    def __init__(self) -> None:
        self._filters: dict[tuple[Any, ...], HandleFilter] = {}

    def clean(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """The chunk with its texts filtered, changed in place; a choice's last chunk gets what was held back."""
        for choice in chunk.get("choices", ()):
            index, ends = choice.get("index", 0), choice.get("finish_reason") is not None
            said = choice.get("delta", choice)
            for name in ("content", "reasoning", "text"):
                self._clean(said, name, (index, name), ends)
            for call in said.get("tool_calls") or ():
                if isinstance(call.get("function"), dict):
                    self._clean(call["function"], "arguments", (index, "tool", call.get("index")), ends)
        return chunk

    def _clean(self, holder: dict[str, Any], name: str, key: tuple[Any, ...], ends: bool) -> None:
        text = holder.get(name)
        known = self._filters.get(key)
        if isinstance(text, str) and (known or "⟦" in text):
            known = known or self._filters.setdefault(key, HandleFilter())
            holder[name] = known.feed(text)
        if ends and known is not None and (rest := known.finish()):
            holder[name] = (holder.get(name) or "") + rest
