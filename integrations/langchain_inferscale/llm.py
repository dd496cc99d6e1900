"""``InferScaleLLM``: a LangChain string model that resolves KV handles inside its engine, for classic chains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.llms import LLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import Runnable

from inferscale_memory.handles import listed_handles
from langchain_inferscale.answers import metadata_of, usage_of
from langchain_inferscale.context import placed
from langchain_inferscale.parameters import CONFIG, EngineParameters


class InferScaleLLM(EngineParameters, LLM):
    """Continues a string prompt; every handle in it that opens becomes injected facts, where the first one stood.

    The engine gets the prompt as it is, without a chat template: for base models, and for chains that write the whole
    conversation into one prompt. ``generation_info`` of an answer has ``kv``, ``recalled``, ``usage`` and
    ``finish_reason``, as ``ChatInferScale``'s ``response_metadata`` has.
    """

    model_config = CONFIG

    @property
    def _llm_type(self) -> str:
        return "inferscale"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return cast(LangSmithParams, {"ls_model_type": "llm", **self._ls_params(stop, kwargs)})

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text by itself, from the model's own tokenizer."""
        return self.engine.tokenize(text)

    # LangChain's own would put a batch's prompts one after the other through one call, for whom its first config names.

    def batch(self, inputs: list[Any], config: Any = None, **call: Any) -> list[str]:
        """As every runnable's: each input by itself, all at once, for whom its own config names."""
        return Runnable.batch(self, inputs, config, **call)

    async def abatch(self, inputs: list[Any], config: Any = None, **call: Any) -> list[str]:
        """Async twin of ``batch``."""
        return await Runnable.abatch(self, inputs, config, **call)

    def generate(self, *args: Any, kv_handles: Sequence[str] | None = None, **kwargs: Any) -> LLMResult:
        """As the base class does; ``kv_handles`` are placed beside the prompts, where LangChain's cache sees them."""
        with placed(listed_handles(kv_handles)):
            return super().generate(*args, **kwargs)

    async def agenerate(self, *args: Any, kv_handles: Sequence[str] | None = None, **kwargs: Any) -> LLMResult:
        """Async twin of ``generate``."""
        with placed(listed_handles(kv_handles)):
            return await super().agenerate(*args, **kwargs)

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)
        return self._result([self.engine.complete(prompt, **options) for prompt in prompts])

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)
        return self._result([await self.engine.acomplete(prompt, **options) for prompt in prompts])

    def _call(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> str:
        return self._generate([prompt], stop, **kwargs).generations[0][0].text

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        with closing(self.engine.stream_complete(prompt, **self._options(stop, kwargs))) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                piece = self._chunk(chunk)
                if run_manager:
                    run_manager.on_llm_new_token(piece.text, chunk=piece)
                yield piece

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        chunks: Any = self.engine.astream_complete(prompt, **self._options(stop, kwargs))
        async with aclosing(chunks):
            async for chunk in chunks:
                piece = self._chunk(chunk)
                if run_manager:
                    await run_manager.on_llm_new_token(piece.text, chunk=piece)
                yield piece

    def _result(self, answers: Sequence[Mapping[str, Any]]) -> LLMResult:
        def generation(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> Generation:
            return Generation(text=choice["text"], generation_info=self._info(answer, choice))

        return LLMResult(generations=[[generation(one, choice) for choice in one["choices"]] for one in answers])

    def _chunk(self, chunk: Mapping[str, Any]) -> GenerationChunk:
        choice: Mapping[str, Any] = next(iter(chunk.get("choices", ())), {})
        return GenerationChunk(text=choice.get("text") or "", generation_info=self._info(chunk, choice) or None)

    def _info(self, answer: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
        info = {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") else {}
        if "kv" in answer:
            info |= {**metadata_of(answer, self.model_name), "usage": dict(usage_of(answer) or {})}
        return info
