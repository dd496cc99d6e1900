"""What the chat model and the string model have in common: the engine, sampling parameters, handles and scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel, ConfigDict, Field, field_validator

from inferscale_memory.handles import listed_handles
from inferscale_memory.scope import digest
from inferscale_memory.serving.base import AnsweringEngine
from langchain_inferscale.context import SCOPE_IDS, call_scope, named_scope, placed_handles, placed_scopes, scope_ids

PROVIDER = "inferscale"


# A misspelt field would be ignored without a word. Named again in each model, where LangChain's own would win.
CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid", populate_by_name=True, protected_namespaces=())


class EngineParameters(BaseModel):
    """Fields of every model that answers with an engine.

    Args:
        engine: a ``LocalEngine``, or whatever keeps ``AnsweringEngine``'s contract. It is the caller's to close.
        temperature: 0 is greedy; None leaves it to the model's own default.
        top_p: nucleus sampling.
        max_tokens: longest answer, in tokens.
        stop: strings that end an answer.
        seed: makes sampling repeatable.
        timeout: seconds after which a request is aborted and ``EngineError`` raised.
        extra_body: more request fields, OpenAI's or vLLM's, such as ``{"structured_outputs": {"regex": ...}}``.
        user_id: with the other ids: refuse handles of another scope. A call's keywords go before these; without
            either, the scope that a middleware placed the handles with, or that the chain's or graph's run names.
        agent_id: see ``user_id``.
        session_id: see ``user_id``.
        tenant_id: see ``user_id``.
    """

    model_config = CONFIG

    engine: AnsweringEngine = Field(exclude=True, repr=False)
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    seed: int | None = None
    timeout: float | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)
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

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        """A copy of the model asks the same engine."""
        return super().__deepcopy__({id(self.engine): self.engine, **(memo or {})})

    # LangChain keeps a call's config to itself, unless a chain stands around the model; whom it names must count.

    def invoke(self, input: Any, config: RunnableConfig | None = None, **call: Any) -> Any:
        """As LangChain's, for whom the config names."""
        return super().invoke(input, config, **self._named(config, call))  # type: ignore[misc]

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **call: Any) -> Any:
        """Async twin of ``invoke``."""
        return await super().ainvoke(input, config, **self._named(config, call))  # type: ignore[misc]

    def stream(self, input: Any, config: RunnableConfig | None = None, **call: Any) -> Any:
        """As LangChain's, for whom the config names."""
        return super().stream(input, config, **self._named(config, call))  # type: ignore[misc]

    def astream(self, input: Any, config: RunnableConfig | None = None, **call: Any) -> Any:
        """Async twin of ``stream``."""
        return super().astream(input, config, **self._named(config, call))  # type: ignore[misc]

    def _named(self, config: RunnableConfig | None, call: dict[str, Any]) -> dict[str, Any]:
        """The call's keywords, with the ids that its config names and that neither it nor the model names itself."""
        return {**named_scope(config), **scope_ids(self), **call} if config else call

    @property
    def model_name(self) -> str:
        """The engine's model."""
        return self.engine.model

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """What an answer depends on besides the prompt; LangChain's caches compare it.

        The scope is part of it, and so are handles placed beside the messages, as a digest: else one user's answer,
        kept by a cache, would be given to another who asks the same.
        """
        names = ("temperature", "top_p", "max_tokens", "stop", "seed", "extra_body")
        params = {name: value for name in names if (value := getattr(self, name)) is not None and value != {}}
        params |= call_scope(scope_ids(self))
        handles = placed_handles()
        if handles:
            params["memory"] = digest("placed", *handles)
        return {"model_name": self.model_name, **params}

    def _ls_params(self, stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
        """Standard parameters for tracing; a call's own go before the model's."""
        found = {
            "ls_provider": PROVIDER,
            "ls_model_name": call.get("model") or self.model_name,
            "ls_temperature": call.get("temperature", self.temperature),
            "ls_max_tokens": call.get("max_tokens", self.max_tokens),
            "ls_stop": stop or self.stop,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _options(self, stop: list[str] | None, call: Mapping[str, Any], handles: Sequence[str] = ()) -> dict[str, Any]:
        """Options of one engine request.

        Args:
            stop: the call's stop strings; the model's own where None.
            call: the call's keywords.
            handles: those that stood in the prompt where the engine does not look for them.
        """
        names = ("temperature", "top_p", "max_tokens", "seed", "timeout")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        taken = ("stream", "extra_body", "kv_handles", *SCOPE_IDS)
        keywords = {name: value for name, value in call.items() if name not in taken}
        body = {**self.extra_body, **(call.get("extra_body") or {})}
        named = call_scope({**scope_ids(self), **scope_ids(call)})
        options = {**own, **body, **keywords, **named, "kv_scopes": placed_scopes(named) or None}
        if stops := stop or self.stop:
            options["stop"] = list(stops)
        every = dict.fromkeys([*placed_handles(), *listed_handles(call.get("kv_handles")), *handles])
        if every:
            options["kv_handles"] = list(every)
        return {name: value for name, value in options.items() if value is not None}
