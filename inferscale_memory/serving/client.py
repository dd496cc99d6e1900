"""Starting vLLM's async engine with the connector, and keeping what it returns beside the text."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from multiprocessing import process
from pathlib import Path
from typing import Any

from inferscale_memory._extras import require
from inferscale_memory.errors import EngineError, ModelError
from inferscale_memory.serving import compat
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
    """vLLM's ``AsyncEngineArgs``, with an unknown option named.

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
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{arguments.model!r} cannot be loaded as a model: {first}") from error


def transfer_config(root: Path, fingerprint: str, pool_bytes: int) -> Any:
    """vLLM's ``KVTransferConfig`` for this connector; loads that fail are recomputed."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=CONNECTOR_NAME,
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"root": str(root), "fingerprint": fingerprint, "pool_bytes": pool_bytes},
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

        finished: OrderedDict[str, tuple[dict[str, Any] | None, int, int]] = OrderedDict()

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

    RecordingLLM.finished = OrderedDict()
    core = None
    if in_process:
        from inferscale_memory.serving.inproc import InProcessCore

        core = InProcessCore
    with tempfile.TemporaryDirectory(prefix="inferscale-") as folder, compat.engine_core_client(core):
        mark = Path(folder) / "respawned"
        os.environ[GUARD_VARIABLE] = str(mark)
        try:
            return RecordingLLM.from_engine_args(arguments, usage_context=UsageContext.ENGINE_CONTEXT)
        except Exception as error:
            if mark.exists():
                raise EngineError(GUARD_MESSAGE) from error
            raise EngineError(f"the engine did not start: {error}") from error
        finally:
            os.environ.pop(GUARD_VARIABLE, None)
