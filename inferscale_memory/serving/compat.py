"""Every private or unstable name of vLLM that the project touches, in one place.

Run on vLLM 0.32's CPU build; the sources of 0.32 and 0.33 for CUDA were read for the same names. Written so that a name
that moved fails here, with the name in the message, instead of deep inside a step.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

KNOWN_VLLM = ("0.32", "0.33")


# --- scheduler side ---------------------------------------------------------------------------------------------------


def scheduled_requests(output: SchedulerOutput) -> Iterator[tuple[str, int, int]]:
    """Yield ``(request id, tokens computed before this step, tokens computed in it)`` for every scheduled request."""
    counts = output.num_scheduled_tokens
    for request in output.scheduled_new_reqs:
        yield request.req_id, request.num_computed_tokens, counts[request.req_id]
    cached = output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield request_id, computed, counts[request_id]


def block_ids_of(output: SchedulerOutput, request_id: str) -> list[int]:
    """The cache blocks of a request scheduled in this step, in prompt order (one cache group only)."""
    state = output.kv_connector_block_state
    groups = state.get_block_ids(request_id) if state is not None else None
    if not groups:
        raise RuntimeError(f"vLLM offers no block ids for request {request_id!r} (kv_connector_block_state).")
    return list(groups[0])


# --- worker side ------------------------------------------------------------------------------------------------------


def attention_layers(config: VllmConfig) -> dict[str, Any]:
    """Layer name -> attention module of the loaded model, in the order they were built."""
    return dict(config.compilation_config.static_forward_context)


def connector_worker() -> Any:
    """The worker's side of our connector in this process, or ``None``."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    return getattr(get_kv_transfer_group(), "worker", None) if has_kv_transfer_group() else None


def split_cache(cache: torch.Tensor, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A layer's cache as key and value views ``[blocks, block_size, kv_heads, head_dim]``, or ``None``.

    FlashAttention, FlashInfer, Triton and FlexAttention of 0.32 and 0.33 keep ``[blocks, kv_heads, block_size,
    2 * head_dim]`` of any strides, keys first. Others of that shape may pack differently: the caller tries.
    """
    if cache.dim() != 4 or cache.shape[1] != kv_heads or cache.shape[3] != 2 * head_dim:
        return None
    keys, values = cache.transpose(1, 2).split(head_dim, dim=-1)
    return keys, values


def rotary_modules() -> list[Any]:
    """Every rotary module that ``get_rope`` made in this process."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    return list(dict.fromkeys(_ROPE_DICT.values()))


def rotary_forward(module: Any, *, native: bool) -> Callable[..., Any]:
    """The rotary arithmetic this engine runs.

    Args:
        module: a rotary module of the model.
        native: ``forward_native`` (model dtype per operation), which compiled engines trace; else what the module
            dispatches to in an eager engine (the compiled op: fp32, one rounding, in place).
    """
    forward = getattr(module, "_inferscale_forward", None) or module.forward
    # LongRoPE's module is no custom op: its one forward is what both kinds of engine run.
    return getattr(module, "forward_native", forward) if native else forward


def slot_mappings(forward_context: Any) -> dict[str, torch.Tensor]:
    """Layer name -> cache slot of every token row of this step; empty in dummy runs."""
    mapping = forward_context.slot_mapping
    return mapping if isinstance(mapping, dict) else {}


def current_forward_context() -> Any:
    """The forward context of the running step."""
    from vllm.forward_context import get_forward_context

    return get_forward_context()


def is_compiled(config: VllmConfig) -> bool:
    """Whether the model's forward is traced by torch.compile, so that Python hooks inside it do not run."""
    from vllm.config import CompilationMode

    if config.model_config.enforce_eager:
        return False
    return config.compilation_config.mode not in (None, CompilationMode.NONE)


# --- engine -----------------------------------------------------------------------------------------------------------


@contextmanager
def engine_core_client(factory: Callable[..., Any] | None) -> Iterator[None]:
    """While open, AsyncLLM builds its engine-core client with ``factory``; ``None`` leaves vLLM's own.

    With a factory the worker is asked to stay in this process too: unless its multiprocessing is switched off, vLLM on
    a CPU turns the in-process executor into one with a worker process.
    """
    if factory is None:
        yield
        return
    from vllm.v1.engine.core_client import EngineCoreClient

    original = EngineCoreClient.__dict__["make_async_mp_client"]
    EngineCoreClient.make_async_mp_client = staticmethod(factory)
    switch = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(switch)
    os.environ[switch] = "0"
    try:
        yield
    finally:
        EngineCoreClient.make_async_mp_client = original
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


async def serving_state(client: Any, model: str, overrides: dict[str, Any]) -> Any:
    """Build vLLM's own OpenAI serving objects around ``client``, as its HTTP server does.

    Args:
        client: an engine client.
        model: the name answers carry.
        overrides: server arguments by their ``argparse`` name, such as ``tool_call_parser``.

    Returns:
        The application state: ``openai_serving_chat``, ``openai_serving_completion`` and their kin.
    """
    from starlette.datastructures import State
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = _cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", model])
    for name, value in overrides.items():
        if not hasattr(arguments, name):
            raise TypeError(f"vLLM's server takes no option {name!r}.")
        setattr(arguments, name, value)
    state = State()
    await init_app_state(client, state, arguments, await client.get_supported_tasks())
    return state


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of vLLM's HTTP front end, which the serving layer takes, and those of its engine."""
    names = _cli_args().FrontendArgs.__dataclass_fields__
    frontend = {name: value for name, value in options.items() if name in names}
    return frontend, {name: value for name, value in options.items() if name not in names}


def _cli_args() -> ModuleType:
    """The module of the server's arguments: ``launchers`` in 0.32, ``common`` in 0.33."""
    for folder in ("launchers", "common"):
        name = f"vllm.entrypoints.{folder}.cli_args"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImportError(f"vLLM keeps its server arguments elsewhere; {' and '.join(KNOWN_VLLM)} are known.")


def prepare_environment() -> None:
    """Defaults that vLLM reads from the environment; must run before vLLM is imported, and never override the user's.

    Its log is kept to errors, its usage statistics are switched off, and on a CPU its cache is bounded: by default it
    would take most of the machine's memory.
    """
    for name, value in (
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "4"),
    ):
        os.environ.setdefault(name, value)


def platform_is_cpu() -> bool:
    """Whether this vLLM build runs on a CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def device_memory() -> int:
    """Bytes of the accelerator's memory in all."""
    from vllm.platforms import current_platform

    return int(current_platform.get_device_total_memory())


def host_memory() -> int:
    """Bytes of this machine's memory in all."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# --- errors -----------------------------------------------------------------------------------------------------------


def is_callers_mistake(error: BaseException) -> bool:
    """Whether vLLM blames the request."""
    from vllm.exceptions import VLLMClientError

    return isinstance(error, VLLMClientError)


def is_too_long(error: BaseException) -> bool:
    """Whether vLLM found that the prompt does not fit the model's length."""
    return is_callers_mistake(error) and getattr(error, "parameter", None) in ("input_tokens", "input_text")
