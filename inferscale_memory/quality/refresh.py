"""``refresh`` as callers and settings give it: how many of the best-ranked facts are prefilled as text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from inferscale_memory.errors import InvalidInputError

Refresh = int | Literal["all", "auto"]
"""A number of facts; ``"all"``, plain prompt injection; or ``"auto"``, as few as the profile of the model allows, and
without a profile as ``untuned_refresh`` says."""

_WORDS = ("all", "auto")

MOST_UNTUNED = 3
FACTS_PER_REFRESHED = 3
UNTUNED = range(5, 21)
"""Numbers of facts in a prompt of which an untuned ``"auto"`` refreshes some."""


def untuned_refresh(found: int) -> int:
    """How many of the facts found ``"auto"`` refreshes without a profile: a third, at most 3, of 5 to 20, else none.

    As measured with the default policy (``docs/quality.md``): the fewer facts there are, the more of the answer each of
    them decides, and the less there is before it that its encoding could resemble. With more than 20 a refreshed one
    costs as much time and changes less. With fewer than 5 it would undo most of what injecting spares.
    """
    return min(MOST_UNTUNED, found // FACTS_PER_REFRESHED) if found in UNTUNED else 0


def check_refresh(given: object) -> Refresh:
    """A refresh as a call gives it.

    Raises:
        InvalidInputError: it is neither a number, 0 or more, nor one of the words.
    """
    if isinstance(given, str) and given in _WORDS:
        return given  # type: ignore[return-value]
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise InvalidInputError(f"refresh is {given!r}; wanted a number of facts, 0 to k, or 'all' or 'auto'.")


def parse_refresh(given: object) -> Refresh:
    """A refresh as a variable or an option gives it: numbers may be text.

    Raises:
        InvalidInputError: as ``check_refresh``.
    """
    if isinstance(given, str):
        text = given.strip().lower()
        return check_refresh(int(text) if text.isascii() and text.isdigit() else text)
    return check_refresh(given)


RefreshField = Annotated[int | Literal["all", "auto"], BeforeValidator(parse_refresh)]
"""For fields of pydantic models."""
