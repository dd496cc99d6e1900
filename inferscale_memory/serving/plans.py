"""The engine below its OpenAI surface: plans, what vLLM returns for them, and the workers' memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from inferscale_memory.errors import EncodingError
from inferscale_memory.serving import client as vllm_client
from inferscale_memory.serving.openai_api import accounting_of
from inferscale_memory.serving.protocol import Accounting, TierTokens, inject_params
from inferscale_memory.serving.resolve import HandleResolver, Plan

if TYPE_CHECKING:
    from inferscale_memory.serving.capture import Capturer
    from inferscale_memory.serving.loop import LoopThread
    from inferscale_memory.serving.prepare import Preparer
    from inferscale_memory.serving.tiers import Residency


class EnginePlans:
    """A part of ``LocalEngine``, by whose rules its methods go."""

    client: Any
    unsupported: str | None
    capturer: Capturer
    preparer: Preparer
    _loop: LoopThread
    _residency: Residency
    _resolver: HandleResolver | None
    _closed: bool

    @property
    def _open(self) -> Self:
        """This engine, unless it is closed."""
        raise NotImplementedError

    def plan(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Plan:
        """Token ids, salt and plan of a conversation, as :meth:`chat` would send it; without sending it."""
        return self._loop.run(self._open.preparer.chat(messages, dict(options)))

    def generate(self, plan: Plan, *, inject: bool = True, salt: str | None = None, **sampling: Any) -> Any:
        """Run a plan with vLLM's ``SamplingParams`` and return vLLM's final ``RequestOutput``; for benches and tests.

        Args:
            plan: from :meth:`plan`.
            inject: ``False`` prefills the same tokens.
            salt: cache salt; default the plan's own.
            sampling: fields of ``SamplingParams``.
        """
        return self._loop.run(self._generate(plan, inject=inject, salt=salt, sampling=sampling))

    async def agenerate(self, plan: Plan, *, inject: bool = True, salt: str | None = None, **sampling: Any) -> Any:
        """Async twin of :meth:`generate`."""
        return await self._loop.arun(self._generate(plan, inject=inject, salt=salt, sampling=sampling))

    def astream_generate(
        self, plan: Plan, *, inject: bool = True, salt: str | None = None, **sampling: Any
    ) -> AsyncIterator[Any]:
        """As :meth:`agenerate`, but each ``RequestOutput`` as it comes, with the tokens that are new in it."""
        return self._loop.astream(self._outputs(plan, inject=inject, salt=salt, sampling=sampling))

    def accounting(self, output: Any) -> Accounting:
        """Where the prompt tokens of a ``RequestOutput`` came from."""
        return accounting_of(output.kv_transfer_params, output.num_cached_tokens or 0, len(output.prompt_token_ids))

    async def _generate(self, plan: Plan, *, inject: bool, salt: str | None, sampling: dict[str, Any]) -> Any:
        outputs = self._outputs(plan, inject=inject, salt=salt, sampling={**sampling, "whole": True})
        finished = [output async for output in outputs]
        if not finished:
            raise EncodingError("the request ended without an output.")
        return finished[-1]

    async def _outputs(
        self, plan: Plan, *, inject: bool, salt: str | None, sampling: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        client = self._open.client
        inject = inject and bool(plan.inject)
        if inject:
            await self.capturer.ensure(plan)
        params = inject_params(plan.inject if inject else [])
        async for output in vllm_client.stream_request(
            client, plan.token_ids, params, salt=salt or plan.salt, **sampling
        ):
            if output.finished and inject:
                self.settle(plan, self.accounting(output))
            yield output

    def settle(self, plan: Plan, accounting: Accounting) -> None:
        """Learn from what became of a plan: which chunks the workers turned out not to have."""
        self.capturer.learn(plan, accounting)
        self._residency.used([span.key for span in plan.inject if span.end <= accounting.covered])
        self._report_missing(plan, accounting)

    def _report_missing(self, plan: Plan, accounting: Accounting) -> None:
        """Tell the memory which chunks the engine stopped at; it looks at their files in a thread of its own."""
        volatile = {span.key for span in plan.ensure}
        keys = [span.key for span in plan.inject if span.end > accounting.covered and span.key not in volatile]
        about_chunks = (accounting.fallback_reason or "").startswith("chunk_")
        if keys and about_chunks and self._resolver is not None:
            self._loop.loop.run_in_executor(None, self._resolver.missing, keys)

    # -- the workers' memory -------------------------------------------------------------------------------------------

    def prefetch(self, keys: Sequence[str]) -> None:
        """Have the workers bring chunks into their memory in the background; returns at once, whatever becomes of it.

        What they were asked for, or used, within the last minute is not asked for again.
        """
        if not self._closed and self.unsupported is None:
            self._loop.loop.call_soon_threadsafe(self._residency.prefetch, list(keys))

    def drop_chunks(self, tier: Literal["arena", "memory"] = "arena") -> None:
        """Have the workers forget the facts' chunks in their arena, or in host memory too; for measurements."""
        self._loop.run(self._open._residency.drop(tier))

    def loaded_tokens(self) -> TierTokens:
        """Tokens of chunks that the workers have loaded since the start, by where they found them."""
        return self._loop.run(self._open._residency.loaded())
