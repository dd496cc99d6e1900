"""Forcing an answer: the engine generates given tokens, whatever it would say, and reports what it thought of them."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

FORCED = "inferscale_forced"
"""Key of ``SamplingParams.extra_args``: the token ids that the answer shall have, one per generated token."""
PROCESSOR = f"{__name__}:ForcedTokens"
"""What vLLM's engine option ``logits_processors`` takes."""


class ForcedTokens(AdapterLogitsProcessor):
    """Leaves of a request's logits only those of the token that is due; requests that force nothing are untouched.

    For vLLM's V1 model runner, which CPU engines have; the V2 runner of CUDA engines wants another kind of class.
    vLLM's log-probabilities are the model's own, for it reports them from before any processor
    (``logprobs_mode="raw_logprobs"``, its default).
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse what is no list of token ids.

        Raises:
            ValueError: with what was found; vLLM refuses the request.
        """
        tokens = (sampling_params.extra_args or {}).get(FORCED)
        if tokens is not None and not (
            isinstance(tokens, list) and tokens and all(isinstance(token, int) and token >= 0 for token in tokens)
        ):
            raise ValueError(f"{FORCED} is {tokens!r}; wanted a list of token ids, at least one.")

    def is_argmax_invariant(self) -> bool:
        """It changes which token is the likeliest: that is what it is for."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """The function that vLLM calls with the tokens generated so far and the next one's logits, ``[vocabulary]``."""
        tokens = (params.extra_args or {}).get(FORCED)
        if not tokens:
            return None

        def force(generated: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(generated) >= len(tokens):
                return logits
            due = tokens[len(generated)]
            kept = logits[due].clone()
            logits.fill_(float("-inf"))
            logits[due] = kept
            return logits

        return force
