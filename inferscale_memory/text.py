"""What may be remembered: validation of fact and turn text, and the form in which two texts count as equal."""

from __future__ import annotations

import unicodedata

from inferscale_memory.errors import InvalidInputError

MAX_FACT_CHARS = 32_000
"""Default limit on one fact or turn, in characters (code points). A longer text is a document, not a fact."""

PREVIEW_CHARS = 60

_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


def check_text(value: object, *, what: str = "fact", max_chars: int = MAX_FACT_CHARS) -> str:
    """Return ``value`` untouched if it can be saved.

    Newlines, braces and template tokens such as ``<|im_end|>`` are ordinary text and are taken.

    Args:
        value: what the caller gave.
        what: the noun used in the message.
        max_chars: longest text taken, in code points.

    Raises:
        InvalidInputError: not a string, blank (only white space, control or zero-width characters), a NUL, a lone
            surrogate, or longer than ``max_chars``.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} text must be a string, got {type(value).__name__}.")
    if len(value) > max_chars:
        raise InvalidInputError(
            f"{what} text is over-long: {len(value)} characters, at most {max_chars} are taken. "
            "Split it into single statements."
        )
    nul = value.find("\0")
    if nul >= 0:
        raise InvalidInputError(f"{what} text holds a NUL character at position {nul}; remove it.")
    for position, char in enumerate(value):
        if "\ud800" <= char <= "\udfff":
            raise InvalidInputError(
                f"{what} text holds a lone surrogate (U+{ord(char):04X}) at position {position}, which is not valid "
                "Unicode; decode the source with the right codec."
            )
    if is_blank(value):
        raise InvalidInputError(f"{what} text is blank; a fact needs at least one visible character.")
    return value


def is_blank(text: str) -> bool:
    """Whether nothing in ``text`` is visible: white space, control and zero-width characters only."""
    return all(unicodedata.category(char) in _INVISIBLE for char in text)


def normalise(text: str) -> str:
    """The form in which two texts are the same fact: Unicode NFC, runs of white space as one space, ends stripped.

    It is used for equality only; what is stored and shown is the text as it was given. Idempotent.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def preview(value: object, chars: int = PREVIEW_CHARS) -> str:
    """A short one-line form of anything, safe to log or print: no control characters, no lone surrogates."""
    if not isinstance(value, str):
        value = f"<{type(value).__name__}>"
    head = value[: chars + 1]
    shown = "".join(c if c.isprintable() else " " for c in head[:chars]).strip()
    return shown + "…" if len(head) > chars else shown
