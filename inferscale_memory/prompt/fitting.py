"""Making a prompt fit the model's length: least relevant facts go first."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inferscale_memory.errors import PromptError
from inferscale_memory.prompt.types import PromptFact

_log = logging.getLogger(__name__)


def least_relevant_first(facts: Sequence[PromptFact], excess: int, *, copies: int = 1) -> tuple[PromptFact, ...]:
    """The facts to drop so that a prompt gets at least ``excess`` tokens shorter; all of them where that is too few.

    Of two facts of one rank the earlier goes first: the best-ranked stand last.

    Args:
        facts: in prompt order.
        excess: tokens too many; zero or less drops nothing.
        copies: how often each fact stands in the prompt.
    """
    going: list[PromptFact] = []
    order = sorted(range(len(facts)), key=lambda i: (-facts[i].rank, i))
    for i in order:
        if excess <= 0:
            break
        going.append(facts[i])
        excess -= len(facts[i].tokens) * copies
    return tuple(going)


def warn_dropped(dropped: Sequence[PromptFact], total: int, max_model_len: int) -> None:
    """Say once per prompt that facts were left out."""
    _log.warning(
        "%d of %d facts do not fit the model's length of %d tokens beside the messages and the room for the answer; "
        "the least relevant were left out. Recall fewer facts, or shorten the conversation.",
        len(dropped),
        total,
        max_model_len,
    )


def require_fit(prompt_tokens: int, room: int, max_model_len: int) -> None:
    """Refuse a prompt that does not fit even without facts.

    Raises:
        PromptError: with the numbers.
    """
    if prompt_tokens + room > max_model_len:
        raise PromptError(
            f"the prompt has {prompt_tokens} tokens without any fact and {room} are kept for the answer, "
            f"{prompt_tokens + room} in all; the model takes {max_model_len}. Shorten the conversation or lower "
            "max_tokens."
        )
