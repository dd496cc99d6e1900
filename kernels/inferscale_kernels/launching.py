"""From a kernel's name and arguments to a launch: compiled on a CUDA device, interpreted in tests."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# What one program reads of the keys. 4 KiB are two 16-byte loads for each of 128 threads, and as much again of the
# values: enough bytes in flight to hide the latency of memory (about 3 MB over a whole H100 or H200) at the occupancy
# that some 40 registers allow, and few enough that five short facts already fill every multiprocessor.
_KEY_BYTES = 4096
_REGISTERS = 255
_TWIN = "inferscale_kernels._interpreted"
_lock = threading.Lock()
_forced = 0


@dataclass(frozen=True)
class Config:
    """How a launch is cut.

    Attributes:
        tile: vectors (heads of rows) per program, a power of two.
        warps: warps per program, a power of two.
    """

    tile: int
    warps: int = 4


def config_for(head_dim: int, itemsize: int) -> Config:
    """The configuration that is used: a function of the shape alone, so that nothing is tuned while serving.

    Args:
        head_dim: features per head.
        itemsize: bytes of one key element in the arena.
    """
    tile = _KEY_BYTES // (lanes(head_dim) * itemsize)
    return Config(min(max(tile, 4), 64))


def candidates(head_dim: int, itemsize: int) -> list[Config]:
    """What a search is worth trying over: half and twice the bytes per program, at 2, 4 and 8 warps.

    Fewer bytes leave threads of a warp without a 16-byte load; more spill or leave multiprocessors idle at small k.
    """
    usual = config_for(head_dim, itemsize).tile
    return [Config(tile, warps) for tile in (usual // 2, usual, usual * 2) for warps in (2, 4, 8)]


def lanes(features: int) -> int:
    """The power of two that holds ``features``."""
    return 1 << max(features - 1, 0).bit_length()


@dataclass(frozen=True)
class Launch:
    """One launch, ready to run or to be compiled for a device that is not there.

    Attributes:
        kernel: name in ``inferscale_kernels._triton``.
        grid: programs along both axes.
        arguments: run-time arguments by name.
        constants: compile-time arguments by name.
        warps: warps per program.
    """

    kernel: str
    grid: tuple[int, int]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    warps: int

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told.

        No fusion: a product that is rounded before it is added must stay so (fp32, and "native"). No limit of
        registers: left to itself, ptxas spills one to stay below a step of occupancy that these kernels do not need.
        """
        options = {"num_warps": self.warps, "num_stages": 1, "enable_fp_fusion": False}
        return options if torch.version.hip else {**options, "maxnreg": _REGISTERS}

    def run(self, device: torch.device) -> None:
        """Run on ``device``'s current stream; does not wait for it."""
        kernel = getattr(_kernels(), self.kernel)[self.grid]
        if device.type != "cuda":
            kernel(**self.arguments, **self.constants, **self.options)
            return
        with torch.cuda.device(device):
            kernel(**self.arguments, **self.constants, **self.options)


@contextmanager
def interpreted() -> Iterator[None]:
    """Run kernels by Triton's interpreter while inside, on CPU tensors: for tests, thousands of times slower.

    Applies to the whole process, may be nested. Kernels compiled before or after are not affected, and the environment
    is left as it was: engines started later inherit nothing. ``TRITON_INTERPRET=1``, set before Triton is imported,
    does the same for good.

    Raises:
        ImportError: Triton is not installed.
    """
    global _forced
    _load_interpreted()
    with _lock:
        _forced += 1
    try:
        yield
    finally:
        with _lock:
            _forced -= 1


def is_interpreted() -> bool:
    """Whether a launch made now would be interpreted."""
    return _forced > 0 or bool(_triton().knobs.runtime.interpret)


def bitwise(device: torch.device, fp8: str | None) -> str | None:
    """Which roundings the kernels spell out bit by bit on ``device``: None, those to ``"fp8"``, or ``"all"``.

    Conversions to fp8 are an instruction from compute capability 8.9 on; the interpreter has no rounding to bf16.
    """
    if is_interpreted():
        return "all"
    if fp8 is None:
        return None
    return bitwise_of(torch.cuda.get_device_capability(device)) if torch.version.hip is None else "fp8"


def bitwise_of(capability: tuple[int, int]) -> str | None:
    """:func:`bitwise` of an fp8 cache on an NVIDIA device of this compute capability."""
    return None if capability >= (8, 9) else "fp8"


def check_device(device: torch.device) -> None:
    """Refuse tensors that no kernel can reach.

    Raises:
        ImportError: Triton is not installed.
        ValueError: the tensors are not on a CUDA device, or interpreted kernels would be given addresses of one.
    """
    if is_interpreted() and device.type != "cpu":
        raise ValueError(
            f"tensors are on {device}; interpreted kernels follow the addresses of caches on the host. Use CPU "
            "tensors, or compile: outside inferscale_kernels.interpreted() and without TRITON_INTERPRET."
        )
    if device.type != "cuda" and not is_interpreted():
        raise ValueError(
            f"tensors are on {device}; Triton kernels run on CUDA devices. Use the torch reference of the same name "
            "(inject_reference, ...), or wrap the call in inferscale_kernels.interpreted() in a test."
        )


def check_indices(rows: int, device: torch.device, /, **indices: Tensor) -> None:
    """Refuse index arrays that are not ``[rows]``, contiguous, int32 or int64, on ``device``.

    Raises:
        ValueError: one does not fit; it is named.
    """
    for name, index in indices.items():
        fits = index.shape == (rows,) and index.dtype in (torch.int32, torch.int64) and index.is_contiguous()
        if not fits or index.device != device:
            raise ValueError(
                f"{name} is {index.dtype} {tuple(index.shape)} on {index.device}, strides {index.stride()}; wanted a "
                f"contiguous int32 or int64 [{rows}] on {device}."
            )


def _kernels() -> ModuleType:
    if _forced:
        return _load_interpreted()
    _triton()
    return importlib.import_module("inferscale_kernels._triton")


def _triton() -> ModuleType:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise ImportError(
            "the kernels need Triton, which is not installed: pip install triton (a CUDA build of PyTorch brings it). "
            "Without it, use the torch references (inject_reference, ...)."
        ) from error


def _load_interpreted() -> ModuleType:
    """The kernels a second time, under a name of their own: ``triton.jit`` decides at definition how they run."""
    knobs = _triton().knobs
    with _lock:
        if _TWIN not in sys.modules:
            folder = Path(__file__).parent / "_triton"
            spec = importlib.util.spec_from_file_location(
                _TWIN, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[_TWIN] = module
            try:
                with knobs.runtime.scope():
                    knobs.runtime.interpret = True
                    spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[_TWIN]
                raise
        return sys.modules[_TWIN]
