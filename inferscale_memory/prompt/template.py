"""Rendering a chat template once, with a sentinel where the facts go, and judging what came out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from inferscale_memory.errors import PromptError
from inferscale_memory.prompt.messages import INSTRUCTION_ROLES, Conversation, texts_of
from inferscale_memory.prompt.types import Tokenizer

_Layout = Callable[[Conversation, str, str], list[dict[str, Any]] | None]


@dataclass(frozen=True)
class Rendering:
    """A rendered prompt, cut at the place of the facts.

    ``pieces`` are two texts, either side of the facts; one, where the template drops them; more, where it repeats
    them. ``layout`` names how the messages were given to the template. ``reason`` says why the facts cannot be
    injected, else ``None``. Where the template changes the content, ``rerender`` renders it with a text for the facts.
    """

    pieces: tuple[str, ...]
    layout: str
    reason: str | None = None
    rerender: Callable[[str], str] | None = None


class ChatTemplate:
    """A tokenizer's chat template, tried in the forms that templates are written for."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None, header: str) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._header = header

    @property
    def exists(self) -> bool:
        """Whether there is a template at all."""
        return bool(self._template or getattr(self._tokenizer, "chat_template", None))

    def render(self, talk: Conversation, options: Mapping[str, Any]) -> Rendering:
        """Render with the header and a sentinel at the place of the facts.

        The first form whose rendering holds the header and the sentinel once is taken: the messages as they are; the
        developer role as ``system``; the system text folded into the first user message, for templates that refuse a
        system role or silently leave it out.

        Raises:
            PromptError: the template fails in every form.
        """
        self._require()
        sentinel = _sentinel(talk, options)
        failures: list[str] = []
        dropped: Rendering | None = None
        for name, layout in _LAYOUTS.items():
            messages = layout(talk, self._header + sentinel, "\n")
            if messages is None:
                continue
            try:
                text = self._apply(messages, options)
            except Exception as error:  # a template is a program: it raises what it likes
                failures.append(f"{name}: {type(error).__name__}: {error}")
                continue
            pieces = tuple(text.split(sentinel))
            if len(pieces) == 2 and pieces[0].endswith(self._header):
                return Rendering(pieces, name)
            if len(pieces) == 1 and sentinel not in text.lower():
                dropped = dropped or Rendering(pieces, name, "template: drops the message that holds the facts")
            else:
                return self._judge(pieces, name, layout, talk, options)
        if dropped is not None:
            return dropped
        self._fail(failures)

    def render_bare(self, talk: Conversation, options: Mapping[str, Any]) -> str:
        """Render the same conversation without facts and header.

        Raises:
            PromptError: the template fails in every form.
        """
        self._require()
        failures: list[str] = []
        for name, layout in _LAYOUTS.items():
            messages = layout(talk, "", "")
            if messages is None:
                continue
            try:
                return self._apply(messages, options)
            except Exception as error:  # as above
                failures.append(f"{name}: {type(error).__name__}: {error}")
        return self._fail(failures)

    def _judge(
        self, pieces: tuple[str, ...], name: str, layout: _Layout, talk: Conversation, options: Mapping[str, Any]
    ) -> Rendering:
        if len(pieces) > 2:
            return Rendering(pieces, name, f"template: repeats the facts {len(pieces) - 1} times")

        def rerender(facts: str) -> str:
            return self._apply(layout(talk, self._header + facts.rstrip("\n"), "\n") or [], options)

        return Rendering(pieces, name, "template: changes the content that holds the facts", rerender)

    def _apply(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        if self._wants_parts:
            messages = [_in_parts(message) for message in messages]
        return self._raw(messages, options)

    def _raw(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        continuing = bool(options.get("continue_final_message"))
        arguments = {"add_generation_prompt": not continuing, **options, "tokenize": False}
        return str(self._tokenizer.apply_chat_template(messages, chat_template=self._template, **arguments))

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template reads content as a list of parts and cannot read a plain string."""
        probe = {"role": "user", "content": "kvprobe"}
        for message, parts in ((probe, False), (_in_parts(probe), True)):
            try:
                text = self._raw([message], {})
            except Exception:  # as in render; the template may only refuse this probe
                continue
            # Printed as code, a list shows its keys.
            if "kvprobe" in text and "'text'" not in text:
                return parts
        return False

    def _require(self) -> None:
        if not self.exists:
            raise PromptError(
                f"{self._named()} has no chat template, so it cannot take chat messages. Pass chat_template=..., or "
                "use a completion prompt."
            )

    def _fail(self, failures: Sequence[str]) -> NoReturn:
        raise PromptError(
            f"the chat template of {self._named()} cannot render these messages, with the system message as it is or "
            f"folded into the user's ({'; '.join(failures)}). Pass another one as chat_template=..., or change the "
            "order of the messages."
        )

    def _named(self) -> str:
        return repr(getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__)


def _sentinel(talk: Conversation, options: Mapping[str, Any]) -> str:
    """Random small letters that occur nowhere in what is rendered."""
    texts = [*texts_of(talk.messages), *texts_of(dict(options))]
    while True:
        sentinel = "kvplace" + "".join(secrets.choice("bcdfghjkmnpqrstvwxz") for _ in range(32))
        if not any(sentinel in text for text in texts):
            return sentinel


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _system_text(talk: Conversation, facts: str, end: str) -> str:
    """The system text with ``facts`` in place: a blank line before them, one after them (``end`` closes them)."""
    if not facts:
        return talk.before + talk.after
    before = f"{talk.before.rstrip()}\n\n" if talk.before.strip() else ""
    after = talk.after.lstrip("\n")
    return f"{before}{facts}" + (f"{end}{after}" if after.strip() else "")


def _as_is(talk: Conversation, facts: str, end: str) -> list[dict[str, Any]]:
    messages = [dict(message) for message in talk.messages]
    text = _system_text(talk, facts, end)
    if not text and not facts:
        # Only a handle stood in it, and it resolved to nothing.
        return messages[: talk.index] + messages[talk.index + 1 :]
    messages[talk.index]["content"] = text
    return messages


def _developer_as_system(talk: Conversation, facts: str, end: str) -> list[dict[str, Any]] | None:
    if all(message["role"] != "developer" for message in talk.messages):
        return None
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in _as_is(talk, facts, end)
    ]


def _folded(talk: Conversation, facts: str, end: str) -> list[dict[str, Any]]:
    rest = [dict(message) for i, message in enumerate(talk.messages) if i != talk.index]
    text = _system_text(talk, facts, end)
    if not text:
        return rest
    first = next((i for i, message in enumerate(rest) if message["role"] not in INSTRUCTION_ROLES), None)
    if first is None or rest[first]["role"] != "user":
        rest.insert(first or 0, {"role": "user", "content": text})
        return rest
    own = rest[first].get("content")
    if isinstance(own, list):
        rest[first]["content"] = [{"type": "text", "text": text + end}, *own]
        return rest
    gap = end if facts and text.endswith(facts) else "\n\n"
    rest[first]["content"] = text + gap + own if own else text
    return rest


_LAYOUTS: Mapping[str, _Layout] = {
    "system": _as_is,
    "developer as system": _developer_as_system,
    "user": _folded,
}
