"""Tools with which a model saves, searches and forgets facts itself. They need langchain-core only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inferscale_memory import Memory
from inferscale_memory.errors import FactNotFoundError, InferScaleError, ScopeError
from inferscale_memory.facts import AddResult
from inferscale_memory.handles import strip_handles
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import Scope
from langchain_inferscale.context import merged_scope, run_scope, scope_ids

DEFAULT_K = 5
MAX_TOOL_K = 50

Answer = tuple[str, dict[str, Any]]
"""What the model reads, and the artifact for the application: plain data, no handle."""


class SaveMemoryArgs(BaseModel):
    """What ``save_memory`` takes."""

    text: str = Field(
        description="One fact that makes sense on its own: who and what, by name, such as "
        "'Alice is allergic to peanuts.'; not 'she is allergic to them'."
    )


class SearchMemoryArgs(BaseModel):
    """What ``search_memory`` takes."""

    query: str = Field(description="What to look for, as a question or in a few words.")
    k: int = Field(default=DEFAULT_K, ge=1, le=MAX_TOOL_K, description="How many facts at most.")


class ForgetMemoryArgs(BaseModel):
    """What ``forget_memory`` takes."""

    fact_id: str = Field(description="Id of the fact, as search_memory or save_memory gave it in square brackets.")


class MemoryTool(BaseTool):
    """What the memory tools have in common.

    Whose memory: the ids given here, those of the run's context and those of ``config["configurable"]``, all together;
    an id named twice must be the same. A call for nobody raises ``ScopeError``: that is the application's mistake, and
    no model can mend it. Everything else that goes wrong is told to the model, with the remedy.

    ``ToolMessage.artifact`` holds ids, texts and scores as plain data.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    memory: Memory = Field(exclude=True, repr=False)
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    response_format: Any = "content_and_artifact"
    handle_tool_error: Any = True
    handle_validation_error: Any = Field(default_factory=lambda: _wrong_arguments)

    def _scope(self, config: RunnableConfig | None) -> dict[str, Any]:
        ids = merged_scope({f"{self.name}'s own ids": scope_ids(self), "the run": run_scope(config)})
        Scope.of(**ids)
        return ids


class SaveMemoryTool(MemoryTool):
    """``save_memory``: remember one fact."""

    name: str = "save_memory"
    description: str = (
        "Remember a fact for later conversations: what the user says about themselves, prefers, plans or asks you to "
        "remember. Do not save what is only of use in this conversation, nor secrets such as passwords."
    )
    args_schema: Any = SaveMemoryArgs

    def _run(self, text: str, config: RunnableConfig) -> Answer:
        with _told(self.name):
            return _saved(self.memory.add([text], **self._scope(config)))

    async def _arun(self, text: str, config: RunnableConfig) -> Answer:
        with _told(self.name):
            return _saved(await self.memory.aadd([text], **self._scope(config)))


class SearchMemoryTool(MemoryTool):
    """``search_memory``: find facts, with their ids."""

    name: str = "search_memory"
    description: str = (
        "Search what is remembered about the user from earlier conversations. Gives the best facts first, each with "
        "its id in square brackets."
    )
    args_schema: Any = SearchMemoryArgs

    def _run(self, query: str, config: RunnableConfig, k: int = DEFAULT_K) -> Answer:
        with _told(self.name):
            return _found(self.memory.search(query, k, **self._scope(config)))

    async def _arun(self, query: str, config: RunnableConfig, k: int = DEFAULT_K) -> Answer:
        with _told(self.name):
            return _found(await self.memory.asearch(query, k, **self._scope(config)))


class ForgetMemoryTool(MemoryTool):
    """``forget_memory``: delete one fact."""

    name: str = "forget_memory"
    description: str = (
        "Delete a remembered fact for good, when the user asks for it or it is no longer true. Look up its id with "
        "search_memory first."
    )
    args_schema: Any = ForgetMemoryArgs

    def _run(self, fact_id: str, config: RunnableConfig) -> Answer:
        with _told(self.name):
            return _forgotten(self.memory.delete(_bare(fact_id), **self._scope(config)).id)

    async def _arun(self, fact_id: str, config: RunnableConfig) -> Answer:
        with _told(self.name):
            return _forgotten((await self.memory.adelete(_bare(fact_id), **self._scope(config))).id)


TOOLS: tuple[type[MemoryTool], ...] = (SaveMemoryTool, SearchMemoryTool, ForgetMemoryTool)


def memory_tools(
    memory: Memory,
    *,
    user_id: str | None = None,
    agent_id: str | None = None,
    session_id: str | None = None,
    tenant_id: str | None = None,
) -> list[BaseTool]:
    """``save_memory``, ``search_memory`` and ``forget_memory`` over one memory.

    The ids are those of every call; what differs from run to run comes with the run (see ``MemoryTool``).
    """
    ids: dict[str, Any] = scope_ids(
        {"user_id": user_id, "agent_id": agent_id, "session_id": session_id, "tenant_id": tenant_id}
    )
    return [tool(memory=memory, **ids) for tool in TOOLS]


def _saved(result: AddResult) -> Answer:
    if result.errors:
        raise ToolException(f"not saved: {_clean(result.errors[0].reason)}")
    fact = result.facts[0]
    created = fact.id in result.created
    said = "Saved" if created else "Known already"
    return f"{said}: [{fact.id}] {_clean(fact.text)}", {"id": fact.id, "text": fact.text, "created": created}


def _found(facts: list[ScoredFact]) -> Answer:
    artifact = {
        "facts": [
            {"id": found.fact.id, "text": found.fact.text, "score": found.score, "metadata": found.fact.metadata}
            for found in facts
        ]
    }
    lines = [f"[{found.fact.id}] {_clean(found.fact.text)}" for found in facts]
    return "\n".join(lines) or "Nothing is remembered about this.", artifact


def _forgotten(fact_id: str) -> Answer:
    return f"Forgotten: [{fact_id}].", {"id": fact_id}


@contextmanager
def _told(tool: str) -> Iterator[None]:
    """Whatever the memory raises, as an error that the model reads."""
    try:
        yield
    except ScopeError:
        raise
    except FactNotFoundError as error:
        raise ToolException(f"{_clean(str(error))} Look up the id with search_memory.") from error
    except InferScaleError as error:
        raise ToolException(f"{tool} failed: {_clean(str(error))}") from error


def _wrong_arguments(error: Any) -> str:
    """Which arguments were wrong, and how; the model repeats the call."""
    if not isinstance(error, ValidationError):
        return f"Wrong arguments: {error}"
    wrong = [f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors()]
    return f"Wrong arguments: {'; '.join(wrong)}. Call the tool again with them put right."


def _bare(fact_id: str) -> str:
    """Models repeat the brackets that an id stood in."""
    return fact_id.strip().strip("[]").strip()


def _clean(text: str) -> str:
    """One line, without handles."""
    return " ".join(strip_handles(text).split())
