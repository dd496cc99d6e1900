"""Starting vLLM's async engine with the connector, and keeping what it returns beside the text."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from multiprocessing import process
from pathlib import Path
from typing import Any

from inferscale_memory._extras import require
from inferscale_memory.errors import EncodingError, EngineError, ModelError
from inferscale_memory.serving import compat
from inferscale_memory.serving.options import ConnectorOptions
from inferscale_memory.serving.protocol import CONNECTOR_MODULE, CONNECTOR_NAME

GUARD_VARIABLE = "INFERSCALE_SPAWN_MARK"
GUARD_MESSAGE = (
    "the engine runs in processes of its own, which import your script again: put the code that starts it under\n"
    '    if __name__ == "__main__":\n'
    "(or pass in_process=True)."
)
KEEP_FINISHED = 4096


def refuse_respawn() -> None:
    """Stop a script without a ``__main__`` guard, which is being imported again by the engine's own process.

    Raises:
        EngineError: this is that process; the parent is told through a mark and raises the same message.
    """
    if getattr(process.current_process(), "_inheriting", False):
        mark = os.environ.get(GUARD_VARIABLE)
        if mark:
            Path(mark).touch()
        raise EngineError(GUARD_MESSAGE)


def engine_arguments(model: str, options: Mapping[str, Any]) -> Any:
    """VLLM's ``AsyncEngineArgs``, with an unknown option named.

    Raises:
        EngineError: an option is not one of vLLM's.
        MissingExtraError: vLLM is not installed.
    """
    require("vllm", "cpu", "the local engine")
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = AsyncEngineArgs.__dataclass_fields__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise EngineError(f"vLLM takes no engine option {', '.join(map(repr, unknown))}.")
    return AsyncEngineArgs(model=model, **options)


def model_config(arguments: Any) -> Any:
    """Read the model's config without loading it.

    Raises:
        ModelError: the folder or id is not a model vLLM can read.
    """
    try:
        return arguments.create_model_config()
    except Exception as error:  # vLLM and transformers raise many kinds; all mean the same to a user
        raise ModelError(f"{arguments.model!r} cannot be loaded as a model: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """What an error says in one line; a validation error's own first line only counts its faults."""
    faults = getattr(error, "errors", None)
    text = str(faults()[0]["msg"]) if callable(faults) and faults() else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


def transfer_config(options: ConnectorOptions) -> Any:
    """VLLM's ``KVTransferConfig`` for this connector; loads that fail are recomputed."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=CONNECTOR_NAME,
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=options.as_dict(),
    )


def start_client(arguments: Any, *, in_process: bool) -> Any:
    """Start vLLM's ``AsyncLLM``; must be called on the loop that will use it.

    Raises:
        EngineError: the engine did not start; the message holds the first cause that is known.
    """
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    class RecordingLLM(AsyncLLM):
        """Keeps each request's last ``kv_transfer_params``: vLLM's streaming answers do not carry them."""

        finished: OrderedDict[str, tuple[dict[str, Any] | None, int, int]]

        async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            async for output in super().generate(*args, **kwargs):
                if output.finished:
                    prompt = len(output.prompt_token_ids or ())
                    self.finished[output.request_id] = (
                        output.kv_transfer_params,
                        output.num_cached_tokens or 0,
                        prompt,
                    )
                    while len(self.finished) > KEEP_FINISHED:
                        self.finished.popitem(last=False)
                yield output

    core = None
    if in_process:
        from inferscale_memory.serving.inproc import InProcessCore

        core = InProcessCore
    with tempfile.TemporaryDirectory(prefix="inferscale-") as folder, compat.engine_core_client(core):
        mark = Path(folder) / "respawned"
        os.environ[GUARD_VARIABLE] = str(mark)
        try:
            client = RecordingLLM.from_engine_args(arguments, usage_context=UsageContext.ENGINE_CONTEXT)
        except Exception as error:
            if mark.exists():
                raise EngineError(GUARD_MESSAGE) from error
            raise EngineError(f"the engine did not start: {error}") from error
        finally:
            os.environ.pop(GUARD_VARIABLE, None)
    client.finished = OrderedDict()
    return client


async def run_request(
    client: Any, token_ids: Sequence[int], params: Mapping[str, Any], *, salt: str | None, **sampling: Any
) -> Any:
    """Run one request outside the OpenAI surface, greedily, and return vLLM's final ``RequestOutput``.

    Arguments and errors are those of :func:`stream_request`.
    """
    final = None
    async for output in stream_request(client, token_ids, params, salt=salt, whole=True, **sampling):
        final = output
    if final is None or not final.finished:
        raise EncodingError("the request ended without an output.")
    return final


async def stream_request(
    client: Any,
    token_ids: Sequence[int],
    params: Mapping[str, Any],
    *,
    salt: str | None,
    whole: bool = False,
    **sampling: Any,
) -> AsyncGenerator[Any, None]:
    """Run one request outside the OpenAI surface, greedily, and yield vLLM's ``RequestOutput`` as they come.

    Args:
        client: from :func:`start_client`.
        token_ids: the prompt.
        params: its ``kv_transfer_params``.
        salt: its cache salt, ``None`` for a request that holds nobody's facts.
        whole: yield the final output only, which holds all tokens; else each holds those that are new.
        sampling: fields of vLLM's ``SamplingParams``; one output token by default. ``extra_args`` travel beside ours.

    Raises:
        EngineError: the engine has died.
        EncodingError: this request failed.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.exceptions import EngineDeadError

    extra = {**sampling.pop("extra_args", {}), "kv_transfer_params": dict(params)}
    options = SamplingParams(
        **{"temperature": 0.0, "max_tokens": 1, **sampling},
        output_kind=RequestOutputKind.FINAL_ONLY if whole else RequestOutputKind.DELTA,
        extra_args=extra,
    )
    prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
    if salt is not None:
        prompt["cache_salt"] = salt
    outputs = client.generate(prompt, options, secrets.token_hex(16))
    try:
        async for output in outputs:
            yield output
    except EngineDeadError as error:
        raise EngineError("the engine has died; start a new one.") from error
    except Exception as error:
        raise EncodingError(f"the request failed: {type(error).__name__}: {error}") from error
    finally:
        # A reader that leaves early must not leave the request running.
        await outputs.aclose()
