"""Compile every kernel for GPUs that are not there: ``python -m inferscale_kernels.compile_report [--json F]``.

Launches are built as in production, from tensors on the CPU, and compiled ahead for compute capabilities 8.0 (A100),
9.0 (H100, H200) and 10.0 (B200). Registers, stack and shared memory are those of the cubin. Spilled registers live on
the stack, so the goal is a stack of 0; anything else makes the command exit with 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.capture import rows_launch
from inferscale_kernels.fp8 import Fp8
from inferscale_kernels.launching import Config, Launch, bitwise_of, candidates
from inferscale_kernels.transfer import Rotation, Turn, transfer_launch

TARGETS = (80, 90, 100)
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Case:
    """One specialisation: a kernel, the model it is for, and how it turns keys.

    Attributes:
        kernel: ``inject``, ``capture`` or ``rows``.
        dtype: the model's.
        head_dim: features per head.
        rotary_dim: how many of them are rotated.
        neox: layout of pairs.
        turn: ``op``, ``native``, ``undo``, or None: moved as they are.
        fp8: format of the cache, or None.
        config: how the launch is cut; None: as in production.
    """

    kernel: str
    dtype: torch.dtype = torch.bfloat16
    head_dim: int = 128
    rotary_dim: int = 128
    neox: bool = True
    turn: Turn | None = "op"
    fp8: Fp8 | None = None
    config: Config | None = None

    @property
    def name(self) -> str:
        """As the table shows it."""
        parts = [self.kernel, str(self.dtype).removeprefix("torch."), f"head {self.head_dim}"]
        if self.turn is not None:
            parts += [self.turn, "neox" if self.neox else "interleaved"]
            parts += [] if self.rotary_dim == self.head_dim else [f"rotary {self.rotary_dim}"]
        parts += [] if self.fp8 is None else [self.fp8]
        parts += [] if self.config is None else [f"tile {self.config.tile}", f"warps {self.config.warps}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Compiled:
    """What came out. Bytes, but for ``registers`` (per thread)."""

    case: str
    target: str
    registers: int
    stack: int
    shared: int


def cases() -> Iterator[Case]:
    """Every branch of the kernels with every head size that is common; then the configurations that the bench tries.

    Partial rotation and fp8 do not meet in every dtype: what they change in a kernel does not depend on it.
    """
    dtypes, sizes = (torch.bfloat16, torch.float16, torch.float32), (64, 96, 128, 256)
    kinds: tuple[tuple[str, Turn], ...] = (("inject", "op"), ("inject", "native"), ("capture", "undo"))
    formats: tuple[Fp8, ...] = ("e4m3", "e5m2")
    for dtype, size in product(dtypes, sizes):
        yield Case("rows", dtype, size, turn=None)
        for (kernel, turn), neox in product(kinds, (True, False)):
            yield Case(kernel, dtype, size, size, neox, turn)
    for size, (kernel, turn), neox in product(sizes, kinds, (True, False)):
        yield Case(kernel, torch.bfloat16, size, size // 2, neox, turn)
        for fp8 in formats:
            yield Case(kernel, torch.bfloat16, size, size, neox, turn, fp8)
    for dtype, (kernel, turn), fp8 in product(dtypes[1:], kinds, formats):
        yield Case(kernel, dtype, turn=turn, fp8=fp8)
    for kernel, as_is in product(("inject", "capture"), (None, *formats)):
        yield Case(kernel, turn=None, fp8=as_is)
    for head in (64, 128):
        for config in candidates(head, 2):
            yield Case("inject", torch.bfloat16, head, head, config=config)
            yield Case("capture", torch.bfloat16, head, head, turn="undo", config=config)


def covering_cases() -> list[Case]:
    """A few that meet every branch of the kernels at least once."""
    return [
        Case("inject"),
        Case("inject", torch.float16, 96, 48, neox=False, turn="native"),
        Case("inject", torch.float32, 256, 256, fp8="e4m3"),
        Case("inject", torch.bfloat16, 64, 32, fp8="e5m2"),
        Case("inject", turn=None),
        Case("capture", torch.float32, 128, neox=False, turn="undo"),
        Case("capture", torch.bfloat16, 128, 128, neox=False, turn="undo", fp8="e4m3"),
        Case("rows", torch.bfloat16, 64, turn=None),
    ]


def build(case: Case, target: int) -> Launch:
    """The launch of ``case`` as production would make it on ``sm_<target>``: 8 KV heads, packed K|V, blocks of 16."""
    heads, slots, size = 8, 32, case.head_dim
    arena = torch.empty(2, slots, heads, size, dtype=case.dtype)
    index = torch.zeros(slots, dtype=torch.int64)
    if case.kernel == "rows":
        return rows_launch(arena[0], arena[1], index, arena[0], arena[1], index, case.config)
    packed = torch.empty(2, heads, 16, 2 * size, dtype=torch.uint8 if case.fp8 else case.dtype).transpose(1, 2)
    scales = torch.ones(1) if case.fp8 else None
    caches = PagedCaches.of([packed[..., :size]], [packed[..., size:]], fp8=case.fp8, k_scale=scales, v_scale=scales)
    table = torch.empty(64, case.rotary_dim, dtype=case.dtype)
    return transfer_launch(
        arena[:1],
        arena[1:],
        index,
        index,
        index,
        caches,
        None if case.turn is None else Rotation(table, None, case.neox, case.rotary_dim),
        into_cache=case.kernel == "inject",
        turn=case.turn,
        bitwise=bitwise_of(divmod(target, 10)) if case.fp8 else None,
        config=case.config,
    )


def compile_case(case: Case, target: int) -> Compiled:
    """Compile for ``sm_<target>`` and read the cubin.

    Raises:
        ImportError: Triton is not installed.
    """
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.backends.compiler")
    source, options = ahead(triton, build(case, target))
    compiled = triton.compile(source, target=compiler.GPUTarget("cuda", target, 32), options=options)
    used = _resources(triton, compiled.asm["cubin"])
    return Compiled(case.name, f"sm_{target}", used["REG"], used["STACK"] + used["LOCAL"], compiled.metadata.shared)


def report(wanted: Iterable[Case], targets: Iterable[int] = TARGETS) -> list[Compiled]:
    """Compile every case for every target."""
    targets = tuple(targets)
    return [compile_case(case, target) for case in wanted for target in targets]


def ahead(triton: Any, launch: Launch) -> tuple[Any, dict[str, Any]]:
    """The launch as (source, options) for ``triton.compile``, specialised by the rules of a launch on a device."""
    kernel = getattr(importlib.import_module("inferscale_kernels._triton"), launch.kernel)
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    hints: dict[tuple[int, ...], list[list[Any]]] = {}
    for parameter in kernel.params:
        name = parameter.name
        if name in launch.constants:
            signature[name], constants[name] = "constexpr", launch.constants[name]
            continue
        value = launch.arguments[name]
        specialised = isinstance(value, int) and not parameter.do_not_specialize
        if value is None or (specialised and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = specialised and value % 16 == 0
        else:
            signature[name] = _TYPES[value.dtype]
            divisible = not parameter.do_not_specialize_on_alignment
        if divisible:
            hints[(parameter.num,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature, constants, hints)
    return source, launch.options


def _resources(triton: Any, cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        printed = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed)}
    if set(found) != {"REG", "STACK", "LOCAL"}:
        raise RuntimeError(f"cuobjdump printed {printed!r}; wanted REG, STACK and LOCAL. Try another Triton release.")
    return found


def table(rows: list[Compiled]) -> str:
    """A Markdown table, one line per case, one column per target: registers / stack / shared memory."""
    targets = sorted({row.target for row in rows}, key=lambda target: int(target[3:]))
    lines = ["| kernel | " + " | ".join(targets) + " |", "|---" * (len(targets) + 1) + "|"]
    for case in dict.fromkeys(row.case for row in rows):
        found = {row.target: f"{row.registers} / {row.stack} / {row.shared}" for row in rows if row.case == case}
        lines.append(f"| {case} | " + " | ".join(found.get(target, "") for target in targets) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Compile, print the table; 1 if a register spilled."""
    parser = argparse.ArgumentParser(description="Compile every kernel for sm_80, sm_90 and sm_100; needs no GPU.")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--covering", action="store_true", help="a few cases that meet every branch, not all")
    options = parser.parse_args(arguments)
    rows = report(covering_cases() if options.covering else cases())
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    spilled = [row for row in rows if row.stack]
    sys.stdout.write("registers per thread / stack in bytes / shared memory in bytes\n\n" + table(rows) + "\n\n")
    sys.stdout.write(f"{len(rows)} compilations, {len(spilled)} with a stack (spilled registers).\n")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
