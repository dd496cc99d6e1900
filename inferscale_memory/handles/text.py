"""The text form of a handle, ``⟦kv:LETTERS⟧``: how it is spelled, found in text and removed from it.

The payload is letters only, because template engines, HTML escapers and redaction middleware change digits, braces,
quotes and slashes on the way to the model.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from inferscale_memory.errors import InvalidInputError

OPENING = "⟦kv:"
CLOSING = "⟧"
HANDLE = re.compile(r"⟦kv:[A-Za-z]+⟧")
"""A whole handle. Whether it is a good one, only ``HandleBook.open`` can say."""

# Whole handles and openings without an end, wherever they stand; and an opening cut before its colon, at the end.
_REMAINS = re.compile(r"⟦kv:[A-Za-z]*⟧?|⟦kv?\Z")
# The rear part of a handle whose front was cut off, at the start of the text; a short one may be somebody's own text.
_REAR = re.compile(r"\A(?:kv:|v:|:)?[A-Za-z]{8,}⟧")
_MAX_PASSES = 4

_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}


def find_handles(text: str) -> list[str]:
    """Whole handles in ``text``, each once, in order of first appearance. A cut one is not found."""
    return list(dict.fromkeys(HANDLE.findall(text)))


def listed_handles(given: object) -> list[str]:
    """The handles that come beside a prompt (``kv_handles=``).

    Raises:
        InvalidInputError: it is no list; each letter of a bare handle would be taken for one.
    """
    if given is None:
        return []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInputError(f"kv_handles is a {type(given).__name__}; wanted a list, such as kv_handles=[handle].")
    return [str(handle) for handle in given]


def strip_handles(text: str) -> str:
    """``text`` without handles and without the remains of handles that were cut by a truncation.

    The result holds no handle, however handles were nested or split to survive one removal.
    """
    text = _REAR.sub("", text)
    for _ in range(_MAX_PASSES):
        text, removed = _REMAINS.subn("", text)
        if not removed:
            return text
    # Removing one handle keeps making another: crafted on purpose, and each pass costs the whole text.
    return text.replace("⟦", "") if _REMAINS.search(text) else text


def encode_letters(payload: bytes) -> str:
    """Spell bytes as letters: one big-endian number in base 52, of a length fixed by the byte count."""
    number = int.from_bytes(payload, "big")
    letters = []
    for _ in range(letters_for(len(payload))):
        number, digit = divmod(number, 52)
        letters.append(_ALPHABET[digit])
    return "".join(reversed(letters))


def decode_letters(letters: str, size: int) -> bytes | None:
    """Read ``size`` bytes back, or ``None`` where ``letters`` is not the one spelling of ``size`` bytes."""
    if len(letters) != letters_for(size):
        return None
    number = 0
    for letter in letters:
        value = _VALUE.get(letter)
        if value is None:
            return None
        number = number * 52 + value
    return number.to_bytes(size, "big") if number < 1 << (8 * size) else None


def letters_for(size: int) -> int:
    """How many letters spell ``size`` bytes."""
    count = 0
    reach = 1
    while reach < 1 << (8 * size):
        reach *= 52
        count += 1
    return count
