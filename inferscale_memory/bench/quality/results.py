"""What is known of one question under one setting."""

from __future__ import annotations

from dataclasses import dataclass

from inferscale_memory.bench.quality.settings import Refresh

FULL = "full_prefill"
FULL_CONTEXT = "full_context"
GOLD_EVIDENCE = "gold_evidence"
NO_MEMORY = "no_memory"
CEILINGS = (FULL_CONTEXT, GOLD_EVIDENCE, NO_MEMORY)


@dataclass(frozen=True)
class Result:
    """One question under one setting, or as plain text.

    Attributes:
        question: its id.
        conversation: what it is about.
        category: its kind.
        policy: the encoding policy, or one of ``FULL`` (the same tokens, prefilled) and ``CEILINGS``.
        refresh: as it was asked for; None for plain text.
        k: facts asked for; None where all, or those of the evidence, are in the prompt.
        facts: facts in the prompt.
        facts_left_out: facts that did not fit.
        target_tokens: tokens of the answer that was forced.
        prompt_tokens: tokens of the prompt.
        injected: of these, those whose states were injected.
        nll: of the gold answer, nats per token.
        kl: divergence from the full prefill of the same tokens, nats per token; None for plain text.
        top1: share of the answer's tokens before which both think the same token the likeliest; None for plain text.
        nll_full: the full prefill's ``nll``; None for plain text.
        answer: the greedy answer; None where none was generated.
        f1: words that it shares with the gold answer, 0 to 1.
    """

    question: str
    conversation: str
    category: str
    policy: str
    refresh: Refresh | None
    k: int | None
    facts: int
    facts_left_out: int
    target_tokens: int
    prompt_tokens: int
    injected: int
    nll: float
    kl: float | None = None
    top1: float | None = None
    nll_full: float | None = None
    answer: str | None = None
    f1: float | None = None

    @property
    def prefilled(self) -> int:
        """Prompt tokens that were not injected."""
        return self.prompt_tokens - self.injected
