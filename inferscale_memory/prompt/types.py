"""What goes into a prompt and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]
"""One chat message in OpenAI's form: ``role``, ``content`` (text, parts or ``None``), tool calls."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    chat_template: Any
    bos_token: Any
    all_special_tokens: list[str]
    all_special_ids: list[int]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """Encode; the result has ``input_ids``."""

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Text of token ids."""

    def get_added_vocab(self) -> dict[str, int]:
        """Added tokens, special or not, by their text."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages as text (``tokenize=False``)."""


@dataclass(frozen=True)
class PromptFact:
    """A fact as it stands in a prompt.

    ``tokens`` are those of ``PromptBuilder.fact_tokens``; ``rank`` is 0 for the most relevant fact, and decides what
    is dropped when a prompt is too long.
    """

    id: str
    tokens: tuple[int, ...]
    rank: int = 0


@dataclass(frozen=True)
class Assembled:
    """A prompt with its facts in place.

    ``token_ids[:preamble]`` stand before the first fact; ``spans`` are (fact id, start, end) of the facts to inject,
    without a hole between them, the first starting at ``preamble``. Refreshed facts follow them and have no span.
    Where nothing is to be injected, ``spans`` is empty and ``preamble`` is 0. ``dropped`` are the ids that are not in
    the prompt, least relevant first. ``fallback_reason`` says what in the template keeps the facts from being injected.
    """

    token_ids: list[int]
    preamble: int
    spans: tuple[tuple[str, int, int], ...]
    dropped: tuple[str, ...] = ()
    fallback_reason: str | None = None


@dataclass(frozen=True)
class TemplateTraits:
    """How a model's chat template takes facts, for ``inferscale doctor``.

    Attributes:
        chat_template: whether there is one; without it only completion prompts work.
        bos: who writes the BOS token of a chat: ``template``, ``nobody``, or ``no token`` where the tokenizer has none.
        tokenizer_adds_bos: whether completion prompts get a BOS from the tokenizer.
        system_role: whether the template renders a system message.
        placement: where facts go: ``system``, ``user`` (folded into the first user message) or ``none``.
        trims: whether the template strips white space around a system text.
        injectable: whether facts can be injected at all.
        reason: why not, else ``None``.
    """

    chat_template: bool
    bos: str
    tokenizer_adds_bos: bool
    system_role: bool
    placement: str
    trims: bool
    injectable: bool
    reason: str | None
