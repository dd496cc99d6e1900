"""Finding handles in messages and prompts, and assembling what is sent in their place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from inferscale_memory import metrics
from inferscale_memory.errors import InvalidInputError, PromptError, ScopeError, StoreError
from inferscale_memory.handles import find_handles, listed_handles, strip_handles
from inferscale_memory.prompt import Assembled, extract_handles
from inferscale_memory.prompt.messages import PLACE, merge_instructions
from inferscale_memory.scope import DEFAULT_TENANT, Scope
from inferscale_memory.serving.resolve import Plan, Resolution, make_plan

if TYPE_CHECKING:
    from inferscale_memory.serving.engine import LocalEngine

logger = logging.getLogger(__name__)

DEFAULT_ANSWER_ROOM = 256
UNBOUNDED = 1 << 62
SCOPE_OPTIONS = ("user_id", "agent_id", "session_id", "tenant_id")


class _Whose(NamedTuple):
    """Whose handles a call accepts: those of its scope, and for single ones of a scope of their own."""

    scope: Scope | None
    own: dict[str, Scope]

    @classmethod
    def of(cls, options: dict[str, Any]) -> _Whose:
        """Take the scope keywords and ``kv_scopes`` out of a call's options.

        Raises:
            ScopeError: an id is blank or malformed, or a handle is given a scope without an owner.
        """
        scope = scope_of(options)
        given = options.pop("kv_scopes", None) or {}
        return cls(scope, {str(handle): Scope.of(**ids) for handle, ids in given.items()})


class Preparer:
    """Turns a call's messages and options into a :class:`Plan`; takes this library's own options out of them."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def chat(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> Plan:
        """Plan a conversation.

        Without a handle nothing but consecutive system messages changes: ``cleaned`` is ``None`` where there are none.
        """
        whose = _Whose.of(options)
        extra = listed_handles(options.pop("kv_handles", None))
        found = extract_handles(messages)
        handles = list(dict.fromkeys([*found.handles, *extra]))
        if found.ignored:
            metrics.HANDLES_REJECTED.labels("misplaced").inc(len(found.ignored))
            logger.warning("%d handles outside system messages were removed unresolved.", len(found.ignored))
        if not handles:
            merged = merge_instructions(found.messages)
            # Not only whole handles: remains of them too, and those in names and arguments of tools, are taken out.
            changed = len(merged) < len(messages) or any(
                mine is not theirs for mine, theirs in zip(found.messages, messages, strict=True)
            )
            return Plan(token_ids=[], cleaned=merged if changed else None)
        self._refuse(options, handles, whose)
        resolution = await self._resolve(handles, whose)
        if resolution is None or not (resolution.facts or resolution.refreshed):
            return Plan(token_ids=[], cleaned=merge_instructions(without_place(found.messages)))
        assemble = partial(
            self._engine.prompt.assemble,
            found.messages,
            resolution.facts,
            refreshed=resolution.refreshed,
            tools=options.get("tools"),
            max_model_len=self._engine.max_model_len,
            template_kwargs={**self._engine.openai.template_defaults, **_template_options(options)},
        )
        assembled = self._with_room(assemble, options)
        return self._finish(assembled, resolution, merge_instructions(without_place(found.messages)))

    async def count(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> int:
        """Tokens of a conversation's prompt with all its facts, whether it fits the model or not."""
        whose = _Whose.of(options)
        found = extract_handles(messages)
        handles = list(dict.fromkeys([*found.handles, *listed_handles(options.pop("kv_handles", None))]))
        resolution = await self._resolve(handles, whose) if handles else None
        assembled = self._engine.prompt.assemble(
            found.messages,
            resolution.facts if resolution else (),
            refreshed=resolution.refreshed if resolution else (),
            tools=options.get("tools"),
            max_tokens_room=0,
            max_model_len=UNBOUNDED,
            template_kwargs={**self._engine.openai.template_defaults, **_template_options(options)},
        )
        return len(assembled.token_ids)

    async def text(self, prompt: str, options: dict[str, Any]) -> Plan:
        """Plan a string prompt."""
        whose = _Whose.of(options)
        extra = listed_handles(options.pop("kv_handles", None))
        if not isinstance(prompt, str):
            raise InvalidInputError(f"the prompt must be a string, got {type(prompt).__name__}.")
        handles = list(dict.fromkeys([*find_handles(prompt), *extra]))
        builder = self._engine.prompt
        if not handles:
            return Plan(token_ids=[])
        self._refuse(options, handles, whose)
        resolution = await self._resolve(handles, whose)
        if resolution is None or not (resolution.facts or resolution.refreshed):
            return Plan(token_ids=[], cleaned=strip_handles(prompt))
        assemble = partial(
            builder.assemble_text,
            prompt,
            resolution.facts,
            refreshed=resolution.refreshed,
            max_model_len=self._engine.max_model_len,
        )
        assembled = self._with_room(assemble, options)
        return self._finish(assembled, resolution, strip_handles(prompt))

    def _finish(self, assembled: Assembled, resolution: Resolution, cleaned: Any) -> Plan:
        plan = make_plan(assembled, resolution, self._engine.fingerprint, self._engine.unsupported)
        plan.cleaned = cleaned
        if plan.dropped:
            metrics.FACTS_DROPPED.inc(len(plan.dropped))
        return plan

    def _refuse(self, options: Mapping[str, Any], handles: Sequence[str], whose: _Whose) -> None:
        if self._engine.require_scope and whose.scope is None and not whose.own.keys() >= set(handles):
            raise ScopeError(
                "this engine requires a scope for prompts with handles: pass user_id=, agent_id= or session_id=."
            )
        if options.get("prompt_logprobs") is not None or options.get("echo"):
            raise InvalidInputError(
                "prompt_logprobs and echo need every prompt row computed; they cannot be combined with KV handles."
            )
        for name in ("chat_template", "documents"):
            if options.get(name) is not None:
                raise InvalidInputError(f"{name} cannot be given per request beside a KV handle; set it on the engine.")

    async def _resolve(self, handles: Sequence[str], whose: _Whose) -> Resolution | None:
        resolver = self._engine.resolver
        if resolver is None:
            metrics.HANDLES_REJECTED.labels("no_memory").inc(len(handles))
            logger.warning("%d handles were removed: no memory is bound to this engine.", len(handles))
            return None
        try:
            # In a thread: it reads the database, and other answers are streamed on this loop meanwhile.
            return await asyncio.to_thread(resolver.resolve, handles, whose.scope, whose.own)
        except StoreError as error:
            # As with a memory that is closed: the question is answered without facts rather than not at all.
            metrics.HANDLES_REJECTED.labels("store").inc(len(handles))
            logger.warning("%d handles were removed: the memory cannot be read: %s", len(handles), error)
            return None

    def _with_room(self, assemble: Callable[..., Assembled], options: Mapping[str, Any]) -> Assembled:
        """Assemble with room for the answer: what the caller asked for, else some, as long as the prompt leaves any."""
        wanted = options.get("max_completion_tokens") or options.get("max_tokens")
        if wanted:
            try:
                room = int(wanted)
            except (TypeError, ValueError):
                raise InvalidInputError(f"max_tokens is {wanted!r}; wanted a number of tokens, 1 or more.") from None
            return assemble(max_tokens_room=room)
        try:
            return assemble(max_tokens_room=min(DEFAULT_ANSWER_ROOM, self._engine.max_model_len // 4))
        except PromptError:
            return assemble(max_tokens_room=1)


def _template_options(options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("add_generation_prompt", "continue_final_message", "reasoning_effort")
    known = {name: options[name] for name in names if options.get(name) is not None}
    return {**known, **(options.get("chat_template_kwargs") or {})}


def without_place(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as an application wrote them, less the handles and the mark where the facts go."""
    return [_without_place(dict(message)) for message in messages]


def _without_place(message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    kept = [part for part in parts if not (isinstance(part, Mapping) and part.get("type") == PLACE)]
    if len(kept) == len(parts):
        return message
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in kept):
        return {**message, "content": "".join(str(part["text"]) for part in kept)}
    return {**message, "content": kept}


def scope_of(options: dict[str, Any]) -> Scope | None:
    """Take the scope keywords out of a call's options; ``None`` when it names none.

    Raises:
        ScopeError: an id is blank or malformed.
    """
    given = {name: options.pop(name) for name in SCOPE_OPTIONS if name in options}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    return Scope.of(**{"tenant_id": DEFAULT_TENANT, **given})
