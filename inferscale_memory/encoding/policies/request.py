"""The prompt that is run to encode a fact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferscale_memory.encoding.policies.base import ContextItem, ContextPolicy, PromptPieces
from inferscale_memory.errors import EncodingError

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact


@dataclass(frozen=True)
class EncodeRequest:
    """One prompt to run through the model, and the span of it to keep.

    Attributes:
        token_ids: the whole prompt.
        start: first token of the fact; everything before it is context.
        end: one past the fact's last token, the prompt's length.
        kept: the context items that stand in the prompt, in its order.
        left_out: those that did not fit.
    """

    token_ids: tuple[int, ...]
    start: int
    end: int
    kept: tuple[ContextItem, ...]
    left_out: tuple[ContextItem, ...] = ()

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Token ids before the fact."""
        return self.token_ids[: self.start]

    @property
    def fact_ids(self) -> tuple[int, ...]:
        """Token ids of the fact's line."""
        return self.token_ids[self.start : self.end]


def build_request(
    prompt: PromptPieces, policy: ContextPolicy, fact: Fact, items: Sequence[ContextItem], max_model_len: int
) -> EncodeRequest:
    """Lay out preamble, context and fact.

    Whole context items are left out, the first of ``items`` first, until the others keep to the policy's budget, and
    the prompt and the one token the engine must generate fit ``max_model_len``.

    Args:
        prompt: makes the token ids.
        policy: its preamble, budget and arrangement.
        fact: what is encoded.
        items: of ``policy.context``, in its order.
        max_model_len: longest prompt and answer together, in tokens.

    Raises:
        EncodingError: the fact does not fit even without context.
    """
    preamble = tuple(prompt.neutral_preamble()) if policy.neutral else ()
    line = tuple(prompt.fact_tokens(fact.text))
    room = max_model_len - 1 - len(preamble) - len(line)
    if not line or room < 0:
        raise EncodingError(
            f"fact {fact.id} is {len(line)} tokens; behind a preamble of {len(preamble)} at most "
            f"{max(0, max_model_len - 1 - len(preamble))} fit the model's length of {max_model_len}. "
            "It is kept as text only; split it into shorter facts, or start the engine with a larger max_model_len."
        )
    lines = {item: tuple(prompt.fact_tokens(item.text)) for item in items}
    first = _first_that_fits([len(lines[item]) for item in items], min(room, policy.budget or room))
    kept = policy.arrange(items[first:])
    context = [*preamble, *(token for item in kept for token in lines[item])]
    return EncodeRequest(
        (*context, *line), len(context), len(context) + len(line), tuple(kept), tuple(items[:first])
    )  # fmt: skip


def _first_that_fits(lengths: Sequence[int], room: int) -> int:
    """From which item on all of them together have at most ``room`` tokens."""
    for at in range(len(lengths) - 1, -1, -1):
        room -= lengths[at]
        if room < 0:
            return at + 1
    return 0
