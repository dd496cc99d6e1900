"""Prompts that are measured: how they are asked for, and when one is no use to a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferscale_memory.errors import EngineError

if TYPE_CHECKING:
    from inferscale_memory.encoding.encoder import FlushReport
    from inferscale_memory.serving.engine import LocalEngine
    from inferscale_memory.serving.resolve import Plan

SYSTEM = "You are a helpful assistant."
CPU_BLOCK = 128
"""Tokens of a cache block of vLLM on a CPU."""


def check_encoded(report: FlushReport) -> None:
    """Refuse to measure what was not encoded.

    Raises:
        EngineError: some facts could not be.
    """
    if report.parked:
        raise EngineError(f"{len(report.parked)} facts were not encoded: {report.parked[0].reason}")


def check_whole(plan: Plan, what: str) -> Plan:
    """The plan of ``what``, which was to be injected.

    Raises:
        EngineError: it is not, or not as far as it was meant to be.
    """
    if plan.reason or plan.dropped or not plan.inject:
        raise EngineError(f"{what} is not injected whole: {plan.reason or plan.dropped}.")
    return plan


def bare_plan(engine: LocalEngine, question: str) -> Plan:
    """A question without facts, behind the same system text."""
    from inferscale_memory.serving.resolve import Plan

    room: dict[str, Any] = {"max_tokens_room": 1, "max_model_len": engine.max_model_len}
    return Plan(token_ids=engine.prompt.assemble(conversation(question), (), **room).token_ids)


def prompt_length(tokens: int) -> int:
    """``max_model_len`` for prompts and answers of so many tokens: whole blocks of a CPU engine."""
    return -(-tokens // CPU_BLOCK) * CPU_BLOCK


def conversation(question: str, handle: str = "") -> list[dict[str, str]]:
    """The messages of a question, with the handle in the system message."""
    system = f"{SYSTEM}\n{handle}" if handle else SYSTEM
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]
