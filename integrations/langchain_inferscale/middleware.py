"""Long-term memory for ``langchain.agents.create_agent``, as one middleware."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event

from inferscale_memory import Memory
from inferscale_memory._extras import require
from inferscale_memory.daemons import await_for, wait_for
from inferscale_memory.quality import Refresh
from inferscale_memory.scope import Scope
from inferscale_memory.timeboxed import Outage, Recall, Recalls
from langchain_inferscale._checks import check_arguments, reads_handles
from langchain_inferscale._saves import Saves
from langchain_inferscale._turn import answer_of, item_of, opening_of, words_of
from langchain_inferscale.context import merged_scope, placed, run_scope, scope_ids

require("langchain.agents", "agents", "InferScaleMemoryMiddleware")

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse  # noqa: E402
from langchain.agents.middleware.types import PrivateStateAttr  # noqa: E402
from langgraph.runtime import Runtime  # noqa: E402

if TYPE_CHECKING:
    from concurrent.futures import Future

    from inferscale_memory import Handle
    from inferscale_memory.facts import AddResult

logger = logging.getLogger(__name__)

RECALL_EVENT = "inferscale_recall"
"""Name of the custom event that callbacks get once per turn: ``{"middleware": ..., "recalled": [{"id", "score"}]}``."""

OPENING = "inferscale_turn"


class MemoryState(AgentState[Any]):
    """What the middleware keeps in the agent's state: ids of messages that are there anyway, and nothing else."""

    inferscale_turn: NotRequired[Annotated[list[str], PrivateStateAttr]]


class InferScaleMemoryMiddleware(AgentMiddleware[MemoryState, Any, Any]):
    """Recalls facts for each user message, hands them to ``ChatInferScale``, and saves the turn afterwards.

    One search per user message serves every model call of the turn. Facts that come from messages of this very
    conversation take no slot: the prompt holds those as text. The handle travels beside the messages
    (``context.placed``): it is in no state, checkpoint, trace or output, and no other middleware can damage it.
    Callbacks get an event ``inferscale_recall``. After the run the user's messages and the final answer are saved,
    under their message ids, so that saving them again changes nothing; tool calls and results are not.

    Memory helps and never hinders: where a search fails or takes longer than ``timeout`` the agent answers without, and
    one warning tells of the outage; a turn that could not be saved is told of by a warning each.

    Whose memory: the ids given here, those of the run's context and those of ``config["configurable"]``, all together;
    an id named twice must be the same. A run that names nobody is refused.

    Middleware that stands behind this one in the list and calls a ``ChatInferScale`` of its own in ``wrap_model_call``
    gets the facts too: put this one last to give them to the agent's model alone.

    Args:
        memory: bound to the engine of the agent's model.
        k: how many facts; None: as the memory is set.
        refresh: how many of the best-ranked are prefilled as text, ``"all"`` or ``"auto"``; None: as the memory is set.
        threshold: leave out facts of a lower cosine; None: none.
        timeout: seconds that a turn waits for its search, and again for its save. A save goes on in the background.
        save: False saves nothing.
        per_run: False leaves the run's ids aside: the memory of the ids given here, shared by all who use the agent.
        user_id: whose memory, where it is the same in every run.
        agent_id: as ``user_id``.
        session_id: as ``user_id``.
        tenant_id: as ``user_id``.
        name: tells several of an agent apart; it names graph nodes, so it should stay the same between restarts.

    Raises:
        InvalidInputError: an argument is out of range; a ``ScopeError`` if it is an id.
        ConfigError: ``memory`` is not a ``Memory``.
    """

    state_schema = MemoryState

    def __init__(
        self,
        memory: Memory,
        *,
        k: int | None = None,
        refresh: Refresh | None = None,
        threshold: float | None = None,
        timeout: float = 2.0,
        save: bool = True,
        per_run: bool = True,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_arguments(memory, k, refresh, threshold, timeout)
        self.tools = []
        self.memory, self.k, self.refresh, self.threshold, self.timeout = memory, k, refresh, threshold, timeout
        self._save, self._per_run, self._name = save, per_run, name
        given = {"user_id": user_id, "agent_id": agent_id, "session_id": session_id, "tenant_id": tenant_id}
        self._given = scope_ids(given)
        if not per_run:
            Scope.of(**self._given)
        # Half, so that a handle does not expire between two steps of one turn.
        self._recalls = Recalls(timeout=timeout, ttl=memory.settings.handle_ttl / 2)
        self._saves = Saves(self.name)
        self._outage = Outage(self.name)
        self._told_of_model = False

    @property
    def name(self) -> str:
        """See the class."""
        return self._name or type(self).__name__

    # -- the turn begins -----------------------------------------------------------------------------------------------

    def before_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Note which messages open the turn.

        Raises:
            ScopeError: the run names nobody, or contradicts itself or the ids given here.
        """
        ids = self._scope(runtime)
        opening = [message.id for message in opening_of(state["messages"]) if message.id is not None]
        for message_id in opening:
            self._recalls.drop(ids, message_id)
        return {OPENING: opening}

    async def abefore_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Async twin of ``before_agent``."""
        return self.before_agent(state, runtime)

    # -- the model is called -------------------------------------------------------------------------------------------

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the turn's facts beside its messages.

        Raises:
            ScopeError: as ``before_agent``.
        """
        ids = self._scope(request.runtime)
        recall, begun = self._search(request, ids)
        if recall is not None:
            wait_for(recall.found, recall.seconds_left)
        found = None if recall is None else self._outage.outcome(recall, begun, self.timeout)
        if found is not None and begun:
            with suppress(RuntimeError):  # called by hand, there is no run to report to
                dispatch_custom_event(RECALL_EVENT, self._event(found))
        with placed([found] if found else [], ids):
            return handler(request)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Async twin of ``wrap_model_call``."""
        ids = self._scope(request.runtime)
        recall, begun = self._search(request, ids)
        if recall is not None:
            await await_for(recall.found, recall.seconds_left)
        found = None if recall is None else self._outage.outcome(recall, begun, self.timeout)
        if found is not None and begun:
            with suppress(RuntimeError):  # called by hand, there is no run to report to
                await adispatch_custom_event(RECALL_EVENT, self._event(found))
        with placed([found] if found else [], ids):
            return await handler(request)

    def _search(self, request: ModelRequest[Any], ids: dict[str, Any]) -> tuple[Recall | None, bool]:
        """The turn's search, and whether this call began it; None where there is nothing to search for."""
        self._tell_of_model(request.model)
        noted = _noted(request.state)
        messages = request.state.get("messages") or request.messages
        spoken = [message for message in opening_of(messages, noted) if words_of(message).strip()]
        if spoken:
            text = words_of(spoken[-1])
            in_prompt = [message.id for message in request.messages if message.id is not None]
            return self._recalls.of(ids, spoken[-1].id, text, partial(self._recall, text, ids, in_prompt))
        kept = (self._recalls.known(ids, message_id) for message_id in reversed(noted))
        return next((recall for recall in kept if recall is not None), None), False

    def _recall(self, text: str, ids: dict[str, Any], in_prompt: list[str]) -> Handle:
        known = self.memory.store.facts_of_messages(in_prompt, Scope.of(**ids))
        return self.memory.recall(text, self.k, self.refresh, threshold=self.threshold, exclude=known, **ids)

    def _event(self, handle: Handle) -> dict[str, Any]:
        recalled = [{"id": scored.fact.id, "score": scored.score} for scored in handle.facts]
        return {"middleware": self.name, "recalled": recalled}

    def _tell_of_model(self, model: Any) -> None:
        if self._told_of_model or reads_handles(model):
            return
        self._told_of_model = True
        logger.warning(
            "%s: the agent's model is a %s, which cannot take facts; they are recalled and saved, but not injected. "
            "Give create_agent a ChatInferScale.",
            self.name,
            type(model).__name__,
        )

    # -- the turn is over ----------------------------------------------------------------------------------------------

    def after_agent(self, state: MemoryState, runtime: Runtime[Any]) -> None:
        """Save what the user said and what was answered."""
        saving = self._begin_saving(state, runtime)
        if saving is not None:
            wait_for(saving, self.timeout)

    async def aafter_agent(self, state: MemoryState, runtime: Runtime[Any]) -> None:
        """Async twin of ``after_agent``."""
        saving = self._begin_saving(state, runtime)
        if saving is not None:
            await await_for(saving, self.timeout)

    def _begin_saving(self, state: MemoryState, runtime: Runtime[Any]) -> Future[AddResult] | None:
        ids = self._scope(runtime)
        items = self._said(state, ids)
        if not self._save or not items:
            return None
        return self._saves.begin(items, lambda: self.memory.add(items, **ids))

    def _said(self, state: MemoryState, ids: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The user's messages and the answer, as ``Memory.add`` takes them; the turn's searches are over."""
        noted = _noted(state)
        there = {message.id: item_of(message) for message in opening_of(state["messages"], noted)}
        items = []
        for message_id in noted or there:
            recall = None if message_id is None else self._recalls.known(ids, message_id)
            if message_id in there:
                items.append(there[message_id])
            elif recall is not None:  # it was summarised away during the turn
                items.append({"role": "user", "content": recall.text, "id": message_id})
            if message_id is not None:
                self._recalls.drop(ids, message_id)
        answer = answer_of(state["messages"])
        items += [] if answer is None else [item_of(answer)]
        return [item for item in items if item["content"].strip()]

    def _scope(self, runtime: Runtime[Any] | None) -> dict[str, Any]:
        sources = {f"{self.name}'s own ids": self._given}
        if self._per_run:
            sources["the run"] = run_scope(context=getattr(runtime, "context", None))
        ids = merged_scope(sources)
        Scope.of(**ids)
        return ids


def _noted(state: Mapping[str, Any]) -> list[str]:
    """Ids of the messages that opened the turn; none where the middleware's first hook did not run."""
    return state.get(OPENING) or []
