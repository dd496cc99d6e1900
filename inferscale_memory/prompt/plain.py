"""Text to token ids as plain text: no piece of it can become a control token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from inferscale_memory.errors import InvalidInputError, PromptError
from inferscale_memory.prompt.types import Tokenizer

# What may stand before a text while it is encoded; the first one whose own ids stay apart from the text's is used.
_ANCHORS = ("\n", "-", ".", "a")
_MAX_DEFUSING = 4


def check_unicode(text: str) -> None:
    """Refuse what no tokenizer takes.

    Raises:
        InvalidInputError: the text holds a lone surrogate.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"the text holds a lone surrogate at character {error.start}; remove it, for example with "
            "text.encode('utf-8', 'replace').decode()."
        ) from error


class PlainEncoder:
    """Encodes text pieces so that they can be put together by their ids.

    Three things are kept off: special tokens that a tokenizer puts around a text, the space that SentencePiece-like
    tokenizers put before one, and, in ``plain``, added tokens (special or not) spelled out in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        # White space and single characters that are added but not special (Gemma, Phi) are ordinary text: they steer
        # nothing, and the tokenizer may have no other spelling for them.
        self._forbidden = {
            text: token
            for text, token in {**added, **special}.items()
            if text and (text in special or (len(text) > 1 and text.replace("▁", " ").strip()))
        }
        self._forbidden_ids = frozenset(self._forbidden.values())
        longest_first = sorted(self._forbidden, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None

    @cached_property
    def surroundings(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Special tokens that the tokenizer puts before and after a text by default, such as BOS and EOS."""
        bare = self.parsed("-")
        dressed = tuple(self._tokenizer("-", add_special_tokens=True).input_ids)
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start], dressed[start + len(bare) :]
        return (), ()

    def parsed(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered text from its beginning: added tokens spelled in it count as such; none are put around.

        Raises:
            InvalidInputError: the text holds a lone surrogate.
        """
        check_unicode(text)
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids) if text else ()

    def parsed_continuation(self, text: str) -> tuple[int, ...]:
        """Like ``parsed``, for a text that follows another: without the space some tokenizers put before a text."""
        if not text or not self._prefixes:
            return self.parsed(text)
        for anchor in _ANCHORS:
            before = self.parsed(anchor)
            whole = self.parsed(anchor + text)
            if whole[: len(before)] == before:
                return whole[len(before) :]
        return self.parsed(text)

    def plain(self, text: str) -> tuple[int, ...]:
        """Ids of a text that follows another, none of them an added token's.

        Raises:
            InvalidInputError: the text cannot be encoded, as a lone surrogate cannot.
            PromptError: the tokenizer has no plain spelling for it.
        """
        check_unicode(text)
        ids = self._encode_all(self._split(text))
        if self._forbidden_ids.isdisjoint(ids):
            return ids
        # A normalizer made a control token of look-alikes, or the vocabulary holds it as a word of its own.
        ids = self._encode_all(text)
        if self._forbidden_ids.isdisjoint(ids):
            return ids
        names = sorted(name for name, token in self._forbidden.items() if token in ids)
        raise PromptError(
            f"the tokenizer reads {names} as control tokens even character by character, so a text that holds them "
            "cannot stand in a prompt as plain text. Take the characters out of the text."
        )

    def defused(self, text: str) -> str:
        """``text`` with a space inside every spelled-out added token: for the one case where text is rendered."""
        if self._control is None:
            return text
        for _ in range(_MAX_DEFUSING):
            if not self._control.search(text):
                return text
            text = self._control.sub(lambda match: f"{match[0][0]} {match[0][1:]}" if len(match[0]) > 1 else "", text)
        # A token that holds a space of its own may survive one more space for ever.
        while self._control.search(text):
            text = self._control.sub("", text)
        return text

    @cached_property
    def _prefixes(self) -> bool:
        newline = self.parsed("\n")
        return self.parsed("\n- x")[len(newline) :] != self.parsed("- x")

    def _split(self, text: str) -> list[str]:
        """Cut inside every spelled-out added token, until no piece holds one (or none can be cut)."""
        if self._control is None:
            return [text]
        pieces: list[str] = []
        start = position = 0
        while match := self._control.search(text, position):
            position = match.start() + 1
            if len(match[0]) > 1:
                pieces.append(text[start:position])
                start = position
        return [*pieces, text[start:]]

    def _encode_all(self, pieces: Sequence[str]) -> tuple[int, ...]:
        return tuple(token for piece in pieces for token in self.parsed_continuation(piece))
