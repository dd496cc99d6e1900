"""Models on the real engine that follow a script, and what is known of their calls afterwards.

The demo model is too small to choose freely, so each step of a script states a regex, which guided decoding enforces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from pydantic import BaseModel, Field

from inferscale_memory import LocalEngine
from inferscale_memory.handles import find_handles
from langchain_inferscale import ChatInferScale, InferScaleLLM
from langchain_inferscale.messages import to_engine


def exactly(text: str) -> str:
    """A regex for this text; ``re.escape`` escapes more than the grammar compiler knows."""
    return re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text)


@dataclass
class Call:
    """One model call."""

    prompt: str | list[BaseMessage]
    kv: dict[str, Any] = field(default_factory=dict)
    recalled: list[dict[str, Any]] = field(default_factory=list)

    @property
    def handles(self) -> list[str]:
        """Handles that stood in the prompt."""
        return find_handles(self.prompt if isinstance(self.prompt, str) else repr(self.prompt))


class Recorder(BaseCallbackHandler):
    """Writes down the calls of one model, in order."""

    raise_error = True

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._going_on: dict[Any, Call] = {}

    def on_chat_model_start(self, serialized, messages, *, run_id, **kwargs):
        self._going_on[run_id] = Call(messages[0])

    def on_llm_start(self, serialized, prompts, *, run_id, **kwargs):
        self._going_on[run_id] = Call(prompts[0])

    def on_llm_end(self, response: LLMResult, *, run_id, **kwargs):
        call = self._going_on.pop(run_id)
        [[generation]] = response.generations
        message = getattr(generation, "message", None)
        metadata = message.response_metadata if message is not None else generation.generation_info
        call.kv, call.recalled = metadata["kv"], metadata["recalled"]
        self.calls.append(call)


class Steered(BaseModel):
    """Mixed into a model: each call follows the next regex of ``script``; ``None`` leaves the model free."""

    script: list[str | None] = Field(default_factory=list)
    recorder: Any = Field(default_factory=Recorder)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.callbacks = [self.recorder]

    def _options(self, *arguments: Any) -> dict[str, Any]:
        step = self.script[len(self.recorder.calls)]
        steering = {} if step is None else {"structured_outputs": {"regex": step}}
        return {**super()._options(*arguments), **steering}


class SteeredChat(Steered, ChatInferScale):
    """A chat model that follows a script."""


class SteeredLLM(Steered, InferScaleLLM):
    """A string model that follows a script."""


MODELS = {"chat": SteeredChat, "llm": SteeredLLM}


def covered(engine: LocalEngine, call: Call) -> int:
    """How many tokens of a call's prompt stand up to the end of its facts, and can come from KV; 0 without a handle."""
    if not call.handles:
        return 0
    if isinstance(call.prompt, str):
        resolution = engine.resolver.resolve(call.handles, None)
        room = {"max_tokens_room": 64, "max_model_len": engine.max_model_len}
        return engine.prompt.assemble_text(call.prompt, resolution.facts, **room).spans[-1][2]
    sent, handles = to_engine(call.prompt)
    return engine.plan(sent, kv_handles=handles).inject[-1].end
