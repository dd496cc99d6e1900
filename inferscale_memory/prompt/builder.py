"""Token-exact prompts: text before the facts, the facts' own token ids, text after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from inferscale_memory.errors import InvalidInputError, PromptError
from inferscale_memory.handles.text import HANDLE, strip_handles
from inferscale_memory.prompt.fitting import least_relevant_first, require_fit, warn_dropped
from inferscale_memory.prompt.messages import arrange
from inferscale_memory.prompt.plain import PlainEncoder
from inferscale_memory.prompt.template import ChatTemplate, Rendering
from inferscale_memory.prompt.types import Assembled, Message, PromptFact, TemplateTraits, Tokenizer

DEFAULT_HEADER = "Facts about the user:\n"
_PROBE: list[Message] = [{"role": "system", "content": ""}, {"role": "user", "content": "Hello."}]


class PromptBuilder:
    """Puts facts into chat and completion prompts of one model.

    Facts stand in the first system message, where the handle stood, behind a header. The chat template is rendered
    once; the text on either side of the facts is tokenized apart and joined with the facts' stored ids, so that a
    fact has the same ids in every prompt.
    """

    def __init__(self, tokenizer: Tokenizer, *, chat_template: str | None = None, header: str = DEFAULT_HEADER) -> None:
        """Wrap a Hugging Face tokenizer.

        Args:
            tokenizer: the model's own.
            chat_template: Jinja text used in place of the tokenizer's.
            header: the line right before the facts; not blank.

        Raises:
            InvalidInputError: the header is blank.
        """
        if not header.strip():
            raise InvalidInputError(
                "the header before the facts is blank; give a line such as 'Facts about the user:'."
            )
        self._tokenizer = tokenizer
        self._header = header.lstrip() if header.endswith("\n") else header.lstrip() + "\n"
        self._text = PlainEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer, chat_template, self._header)

    @property
    def header(self) -> str:
        """The line before the facts, as it is used."""
        return self._header

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a text by itself, without BOS or EOS; added tokens spelled in it count as such.

        Raises:
            InvalidInputError: the text holds a lone surrogate.
        """
        return self._text.parsed(text)

    def fact_tokens(self, text: str) -> tuple[int, ...]:
        r"""Ids of the line ``- {text}\n`` as plain text: none of them is an added token's, whatever the text spells.

        Raises:
            InvalidInputError: the text holds a lone surrogate.
            PromptError: the tokenizer has no plain spelling for the text.
        """
        return self._text.plain(f"- {text}\n")

    def neutral_preamble(self) -> tuple[int, ...]:
        """Ids of the template's opening and the header, the same whatever system prompt an application has.

        Facts are encoded behind it. A date that the template prints is held fixed, so tomorrow's is the same. Where
        the template cannot hold facts, or there is none, it is the tokenizer's BOS (if any) and the header.
        """
        return self._neutral

    def assemble(
        self,
        messages: Sequence[Message],
        facts: Sequence[PromptFact],
        *,
        max_tokens_room: int,
        max_model_len: int,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        refreshed: Sequence[PromptFact] = (),
    ) -> Assembled:
        """Build the prompt of a chat.

        Args:
            messages: in OpenAI's form, as ``extract_handles`` gives them. A handle still in a system message marks
                the place; raw handles never reach the model.
            facts: to be injected, in prompt order; empty where a handle resolved to nothing.
            max_tokens_room: tokens kept free for the answer.
            max_model_len: the model's length in tokens.
            tools: tool schemas for the template.
            template_kwargs: more options for the template, such as ``continue_final_message``.
            refreshed: facts that stand behind the injected ones and are prefilled.

        Raises:
            PromptError: the template cannot render the messages, or they do not fit even without facts.
        """
        talk = arrange(messages)
        options = {**(template_kwargs or {}), "tools": list(tools) if tools else None}
        placed = [*facts, *refreshed]
        going: tuple[PromptFact, ...] = ()
        if placed:
            rendering = self._template.render(talk, options)
            if rendering.rerender or len(rendering.pieces) == 1:
                return self._as_text(rendering, placed, max_tokens_room, max_model_len)
            sides = self._sides(rendering.pieces)
            excess = sum(map(len, sides)) + max_tokens_room - max_model_len
            copies = len(sides) - 1
            excess += copies * sum(len(fact.tokens) for fact in placed)
            going = least_relevant_first(placed, excess, copies=copies)
            if going:
                warn_dropped(going, len(placed), max_model_len)
            if len(going) < len(placed):
                return _joined(sides, facts, refreshed, going, rendering.reason)
        ids = list(self._text.parsed(self._template.render_bare(talk, options)))
        require_fit(len(ids), max_tokens_room, max_model_len)
        return Assembled(ids, 0, (), tuple(fact.id for fact in going))

    def assemble_text(
        self,
        prompt: str,
        facts: Sequence[PromptFact],
        *,
        max_tokens_room: int,
        max_model_len: int,
        refreshed: Sequence[PromptFact] = (),
        add_special_tokens: bool = True,
    ) -> Assembled:
        """Build a completion prompt.

        Args:
            prompt: the text with its handle still in it: the first one marks the place, all are removed. Without one
                the facts stand at the beginning.
            facts: as in ``assemble``.
            max_tokens_room: as in ``assemble``.
            max_model_len: as in ``assemble``.
            refreshed: as in ``assemble``.
            add_special_tokens: whether the tokenizer's own BOS opens the prompt (never a second one).

        Raises:
            PromptError: the prompt does not fit even without facts.
        """
        place = HANDLE.search(prompt)
        before, after = (prompt[: place.start()], prompt[place.end() :]) if place else ("", prompt)
        before, after = strip_handles(before), strip_handles(after)
        placed = [*facts, *refreshed]
        going: tuple[PromptFact, ...] = ()
        if placed:
            seam = "\n" if before and not before.endswith("\n") else ""
            opening = self._opening(before + seam + self._header, add_special_tokens)
            closing = self._text.parsed_continuation(after.removeprefix("\n"))
            excess = len(opening) + len(closing) + max_tokens_room - max_model_len
            excess += sum(len(fact.tokens) for fact in placed)
            going = least_relevant_first(placed, excess)
            if going:
                warn_dropped(going, len(placed), max_model_len)
            if len(going) < len(placed):
                return _joined([opening, closing], facts, refreshed, going, None)
        ids = list(self._opening(before + after, add_special_tokens))
        require_fit(len(ids), max_tokens_room, max_model_len)
        return Assembled(ids, 0, (), tuple(fact.id for fact in going))

    def describe(self) -> TemplateTraits:
        """Find out by trying how the chat template takes facts. Raises nothing."""
        bos = getattr(self._tokenizer, "bos_token", None)
        adds = bool(bos) and bool(self._text.surroundings[0])
        if not self._template.exists:
            writes = "nobody" if bos else "no token"
            return TemplateTraits(
                False, writes, adds, False, "none", False, False, "the tokenizer has no chat template"
            )
        try:
            rendering = self._template.render(arrange(_PROBE), {})
            padded = self._template.render_bare(_padded(), {})
            trims = "padded" in padded and "  padded" not in padded
        except PromptError as error:
            return TemplateTraits(True, "nobody", adds, False, "none", False, False, str(error))
        text = rendering.pieces[0].lstrip()
        writes = "no token" if not bos else "template" if text.startswith(str(bos)) else "nobody"
        placement = "none" if rendering.reason else "user" if rendering.layout == "user" else "system"
        system = placement != "user" and len(rendering.pieces) > 1
        return TemplateTraits(True, writes, adds, system, placement, trims, not rendering.reason, rendering.reason)

    @cached_property
    def _neutral(self) -> tuple[int, ...]:
        fixed = datetime(2024, 7, 26)
        # Llama's templates print a date: as a variable, or by calling strftime_now.
        frozen = {"date_string": "26 Jul 2024", "strftime_now": fixed.strftime}
        if self._template.exists:
            try:
                rendering = self._template.render(arrange(_PROBE), frozen)
            except PromptError:
                rendering = Rendering((), "none", "template: fails")
            if rendering.reason is None:
                return self._text.parsed(rendering.pieces[0])
        return self._opening(self._header, add_special_tokens=True)

    def _opening(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """Ids of the text that a completion begins with; the EOS that some tokenizers append is left out."""
        ids = self._text.parsed(text)
        around = self._text.surroundings[0] if add_special_tokens else ()
        return ids if around and ids[: len(around)] == around else (*around, *ids)

    def _sides(self, pieces: Sequence[str]) -> list[tuple[int, ...]]:
        first, *rest = pieces
        return [self._text.parsed(first), *(self._text.parsed_continuation(piece) for piece in rest)]

    def _as_text(self, rendering: Rendering, placed: Sequence[PromptFact], room: int, max_model_len: int) -> Assembled:
        """The prompt of a template that changes or drops the facts: rendered text, everything prefilled."""
        if rendering.rerender is None:
            ids = list(self._text.parsed("".join(rendering.pieces)))
            require_fit(len(ids), room, max_model_len)
            return Assembled(ids, 0, (), tuple(fact.id for fact in placed), rendering.reason)
        kept, going = list(placed), list[PromptFact]()
        while True:
            lines = "".join(self._text.defused(self._line(fact)) for fact in kept)
            ids = list(self._text.parsed(rendering.rerender(lines)))
            excess = len(ids) + room - max_model_len
            if excess <= 0 or not kept:
                break
            worst = least_relevant_first(kept, excess)
            going += worst
            kept = [fact for fact in kept if fact not in worst]
        if going:
            warn_dropped(going, len(placed), max_model_len)
        require_fit(len(ids), room, max_model_len)
        return Assembled(ids, 0, (), tuple(fact.id for fact in going), rendering.reason)

    def _line(self, fact: PromptFact) -> str:
        return str(
            self._tokenizer.decode(list(fact.tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


def _joined(
    sides: Sequence[Sequence[int]],
    facts: Sequence[PromptFact],
    refreshed: Sequence[PromptFact],
    going: Sequence[PromptFact],
    reason: str | None,
) -> Assembled:
    left_out = {fact.id for fact in going}
    first, *rest = sides
    middle: list[int] = []
    spans: list[tuple[str, int, int]] = []
    for fact in facts:
        if fact.id not in left_out:
            start = len(first) + len(middle)
            middle += fact.tokens
            spans.append((fact.id, start, start + len(fact.tokens)))
    for fact in refreshed:
        if fact.id not in left_out:
            middle += fact.tokens
    ids = list(first)
    for side in rest:
        ids += middle
        ids += side
    dropped = tuple(fact.id for fact in going)
    if reason is not None or not spans:
        return Assembled(ids, 0, (), dropped, reason)
    return Assembled(ids, len(first), tuple(spans), dropped)


def _padded() -> Any:
    return arrange([{"role": "system", "content": "  padded  "}, {"role": "user", "content": "Hello."}])
