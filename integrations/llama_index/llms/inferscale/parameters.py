"""Fields of the LLM, and the engine request that they and a call's keywords make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from inferscale_memory.serving.base import AnsweringEngine

SCOPE_IDS = ("user_id", "agent_id", "session_id", "tenant_id")

# A misspelt field would be ignored without a word. Named again in the LLM, where LlamaIndex's own would win.
CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


class EngineParameters(BaseModel):
    """The engine, sampling parameters and the scope; ``InferScale`` describes them."""

    model_config = CONFIG

    engine: AnsweringEngine = Field(exclude=True, repr=False)
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    stop: list[str] | None = None
    seed: int | None = None
    timeout: float | None = None
    additional_kwargs: dict[str, Any] = Field(default_factory=dict)
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None

    @field_validator("engine", mode="before")
    @classmethod
    def _check_engine(cls, value: Any) -> Any:
        if not isinstance(value, AnsweringEngine):
            raise ValueError(f"engine is a {type(value).__name__}; wanted a running one, such as LocalEngine('demo')")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def _options(self, call: Mapping[str, Any], handles: Sequence[str] = ()) -> dict[str, Any]:
        """Options of one engine request: the fields, over them ``additional_kwargs``, over them the call's keywords.

        Args:
            call: the call's keywords.
            handles: those that stood in the prompt where the engine does not look for them.
        """
        names = ("temperature", "top_p", "max_tokens", "stop", "seed", "timeout", *SCOPE_IDS)
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        given = {name: value for name, value in call.items() if name != "stream" and value is not None}
        options = {**own, **self.additional_kwargs, **given}
        placed = dict.fromkeys([*map(str, options.pop("kv_handles", ())), *handles])
        return {**options, "kv_handles": list(placed)} if placed else options
