"""LLMs on the real engine that follow a script and write down their calls.

The demo model is too small to choose its steps, so a script states the shape of an answer, and vLLM's guided decoding
holds the model to it. Nothing else is changed: each request goes through ``InferScale`` to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from pydantic import Field

from inferscale_memory import Memory
from inferscale_memory.handles import find_handles
from llama_index.llms.inferscale import InferScale

Messages = Sequence[Mapping[str, Any]]
Steer = Callable[[Messages], dict[str, Any]]
"""Request fields for the next answer, from the messages that it answers."""

WORD = "[A-Z][a-z]{2,8}"


@dataclass
class Call:
    """One request of a model, and what the engine said of its prompt."""

    handles: list[str]
    token_ids: list[int]
    reach: int
    """Tokens up to the end of the facts that can be injected; 0 where there are none."""
    facts: int
    """Tokens of those facts."""
    kv: dict[str, Any] = field(default_factory=dict)
    recalled: list[str] = field(default_factory=list)


class Scripted(InferScale):
    """An LLM that follows a script; one that is asked by one conversation at a time."""

    steer: Steer = Field(exclude=True)
    calls: list[Any] = Field(default_factory=list, exclude=True)

    def _request(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> Any:
        sent, options = super()._request(messages, call)
        sent, options = self._placed(sent, {**options, **self.steer(sent)})
        plan = self.engine.plan(sent, **options)
        spans = plan.inject
        self.calls.append(
            Call(
                handles=handles_of(sent, options),
                token_ids=plan.token_ids or self._rendered(sent, options),
                reach=spans[-1].end if spans else 0,
                facts=spans[-1].end - spans[0].end if spans else 0,
            )
        )
        return sent, options

    def _placed(self, sent: list[dict[str, Any]], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return sent, options

    def _rendered(self, sent: Messages, options: Mapping[str, Any]) -> list[int]:
        """Token ids of a prompt without a handle, which vLLM renders by itself; their number is compared later."""
        room = {"max_tokens_room": 0, "max_model_len": self.engine.max_model_len}
        return self.engine.prompt.assemble(sent, [], tools=options.get("tools"), **room).token_ids

    def _tell(self, answer: Mapping[str, Any], span_id: str | None) -> None:
        super()._tell(answer, span_id)
        if "kv" in answer:
            self.calls[-1].kv = dict(answer["kv"])
            assert answer["usage"]["prompt_tokens"] == len(self.calls[-1].token_ids)
            self.calls[-1].recalled = [fact["id"] for fact in answer["recalled"]]


class InPlainText(Scripted):
    """The same with the facts written into the system message where the handle would stand: prompt injection."""

    memory: Memory = Field(exclude=True)

    def _placed(self, sent: list[dict[str, Any]], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        placed = [{"role": "system", "content": self._text(handle)} for handle in options.pop("kv_handles", ())]
        for one in sent:
            content = one["content"]
            for handle in find_handles(content):
                content = content.replace(handle, self._text(handle))
            if content != one["content"] and placed and placed[-1]["role"] == "system":
                # One blank line before the facts, whatever the message before them ends with.
                placed[-1]["content"] = placed[-1]["content"].rstrip()
            placed.append({**one, "content": content})
        return placed, options

    def _text(self, handle: str) -> str:
        return "Facts about the user:\n" + "".join(f"- {one.fact.text}\n" for one in self.memory.explain(handle).facts)


def handles_of(sent: Messages, options: Mapping[str, Any]) -> list[str]:
    """The handles of a request that the engine opens."""
    placed = [handle for one in sent if one["role"] == "system" for handle in find_handles(one["content"])]
    return [*placed, *options.get("kv_handles", ())]


# -- scripts -----------------------------------------------------------------------------------------------------------


def shaped(regex: str) -> dict[str, Any]:
    """Request fields that hold an answer to a shape."""
    return {"structured_outputs": {"regex": regex}, "max_tokens": 60}


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """Request fields that make an answer the call of a tool, as the engine's parser reads it.

    Args:
        name: the tool.
        arguments: JSON with regexes for values, its braces included.
    """
    call = f'{{"name": "{name}", "arguments": {arguments}}}'
    escaped = re.sub(r"(?<!\d)([{}])(?!\d)", r"\\\1", call)
    return shaped(f"<tool_call>\\n{escaped}\\n</tool_call>")


def freely(sent: Messages) -> dict[str, Any]:
    """A few tokens of the model's own choice."""
    return {"max_tokens": 4}


def by_steps(*steps: dict[str, Any]) -> Steer:
    """The next step after each tool's result; the last one ends a turn."""

    def steer(sent: Messages) -> dict[str, Any]:
        asked = max(at for at, one in enumerate(sent) if one["role"] == "user")
        return steps[sum(one["role"] == "tool" for one in sent[asked:])]

    return steer


def by_reasoning(sent: Messages) -> dict[str, Any]:
    """What ReActAgent parses: an action, and an answer after its observation."""
    thought = f"Thought: {WORD}\n"
    if sent[-1]["content"].startswith("Observation:"):
        return shaped(f"{thought}Answer: {WORD}")
    return shaped(f'{thought}Action: look_up\nAction Input: \\{{"topic": "[a-z]{{3,8}}"\\}}')
