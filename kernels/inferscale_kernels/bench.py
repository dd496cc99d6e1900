"""How fast and how exact the kernels are on this machine: ``python -m inferscale_kernels.bench [--json F] [--search]``.

Needs torch, Triton and a CUDA device; takes a few minutes at most. A figure counts the states' bytes once read and once
written; index arrays and rotary tables are not counted. Each launch finds the L2 cache filled with other data, and is
measured by events on the device, queued behind that filling, so that the host's part is not in it (it stands in a
column of its own). ``of copy`` compares with the device's bandwidth copying a large buffer, ``same bytes`` is a plain
copy of as many bytes under the same conditions: what a kernel could at best be at that size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.capture import capture_cache, capture_rows
from inferscale_kernels.exactness import check_rounding
from inferscale_kernels.inject import inject
from inferscale_kernels.launching import Config, candidates, check_device, config_for, interpreted

FACT_TOKENS = 25
BLOCK = 16


@dataclass(frozen=True)
class Model:
    """What of a model decides how many bytes are moved."""

    name: str
    layers: int
    heads: int
    head_dim: int


MODELS = (
    Model("SmolLM2-135M", 30, 3, 64),
    Model("Llama-3.1-8B", 32, 8, 128),
    Model("Qwen2.5-7B", 28, 4, 128),
    Model("Qwen3-14B", 40, 8, 128),
)
FACTS = (5, 50, 400)


@dataclass(frozen=True)
class Timing:
    """One measured launch: microseconds are medians; ``spread_us`` is the distance of the quartiles."""

    kernel: str
    model: str
    facts: int
    megabytes: float
    device_us: float
    spread_us: float
    host_us: float
    gigabytes_per_s: float
    of_copy: float
    same_bytes_us: float
    config: str


class Clock:
    """Times launches on one device; on a CPU (smoke mode) by the wall clock, which means nothing there."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self._on_device = device.type == "cuda"
        # Larger than any L2, and slow enough to fill that the host has queued what is measured before it is done.
        self._other = torch.empty(512 * 2**20 if self._on_device else 16, dtype=torch.uint8, device=device)

    def seconds(self, run: Callable[[], Any]) -> list[float]:
        """Time on the device of each of ``repeats`` runs, cold L2."""
        run()
        return [self._once(run) for _ in range(self.repeats)]

    def host_seconds(self, run: Callable[[], Any]) -> float:
        """What queuing one run costs the host, median."""
        self.wait()
        taken = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
            self.wait()
        return statistics.median(taken)

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        if self._on_device:
            torch.cuda.synchronize(self.device)

    def _once(self, run: Callable[[], Any]) -> float:
        if not self._on_device:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._other.fill_(1)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class Workload:
    """Arena, paged caches and indices for ``facts`` facts of one model, bf16, in the layout of vLLM's FlashAttention.

    Facts lie whole but in random order in the arena; blocks are those of a paged cache in use, in random order.
    """

    def __init__(self, model: Model, facts: int, device: torch.device) -> None:
        self.model, self.facts = model, facts
        rows, size = facts * FACT_TOKENS, model.head_dim
        random = torch.Generator().manual_seed(facts)
        arena = torch.empty(2, model.layers, rows, model.heads, size, dtype=torch.bfloat16, device=device).normal_()
        self.keys, self.values = arena[0], arena[1]
        blocks = -(-rows // BLOCK)
        packed = [
            torch.zeros(blocks, model.heads, BLOCK, 2 * size, dtype=torch.bfloat16, device=device).transpose(1, 2)
            for _ in range(model.layers)
        ]
        self.caches = PagedCaches.of([x[..., :size] for x in packed], [x[..., size:] for x in packed])
        order = torch.randperm(facts, generator=random)[:, None] * FACT_TOKENS + torch.arange(FACT_TOKENS)
        self.source = order.flatten().to(device)
        paged = torch.randperm(blocks, generator=random)[:, None] * BLOCK + torch.arange(BLOCK)
        self.slots = paged.flatten()[:rows].to(device)
        self.positions = torch.arange(rows).to(device)
        angles = torch.arange(rows)[:, None] / 1e5 ** (torch.arange(0, size, 2) / size)
        self.table = torch.cat((angles.cos(), angles.sin()), -1).to(torch.bfloat16).to(device)
        self.bytes = 2 * arena.numel() * arena.element_size()

    def runs(self, config: Config | None = None) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Name, bytes moved and a call, per kernel."""
        how = {"neox": True, "rotary_dim": self.model.head_dim, "config": config}
        into = partial(inject, self.keys, self.values, self.source, self.positions, self.slots, self.caches, self.table)
        yield "inject, op", self.bytes, partial(into, rounding="op", **how)
        yield "inject, native", self.bytes, partial(into, rounding="native", **how)
        back = partial(capture_cache, self.caches, self.slots, self.positions, self.keys, self.values, self.source)
        yield "capture, un-rotated", self.bytes, partial(back, self.table, **how)
        yield "capture, as is", self.bytes, partial(back, **how)
        rows = torch.arange(len(self.source), device=self.source.device)
        layer = (self.keys[-1], self.values[-1], rows, self.keys[0], self.values[0], self.source)
        yield "capture, one layer's rows", self.bytes // self.model.layers, partial(capture_rows, *layer, config=config)


def copy_bandwidth(clock: Clock, size: int) -> float:
    """Bytes per second read plus written, copying a buffer of ``size`` bytes."""
    return 2 * size / statistics.median(clock.seconds(_copy_of(size, clock.device)))


def measure(workload: Workload, clock: Clock, copying: float, config: Config | None = None) -> list[Timing]:
    """Time every kernel on one workload; ``copying`` is the device's copy bandwidth."""
    used = config or config_for(workload.model.head_dim, 2)
    timings = []
    for kernel, moved, run in workload.runs(config):
        seconds = clock.seconds(run)
        median = statistics.median(seconds)
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [median] * 3
        timings.append(
            Timing(
                kernel,
                workload.model.name,
                workload.facts,
                moved / 1e6,
                median * 1e6,
                (quartiles[2] - quartiles[0]) * 1e6,
                clock.host_seconds(run) * 1e6,
                moved / median / 1e9,
                moved / median / copying,
                statistics.median(clock.seconds(_copy_of(moved // 2, clock.device))) * 1e6,
                f"tile {used.tile}, {used.warps} warps",
            )
        )
    return timings


def search(model: Model, facts: int, clock: Clock, copying: float) -> list[Timing]:
    """``inject, op`` under every configuration worth a try, fastest first."""
    workload = Workload(model, facts, clock.device)
    found = [measure(workload, clock, copying, config)[0] for config in candidates(model.head_dim, 2)]
    return sorted(found, key=lambda timing: timing.device_us)


def table(timings: list[Timing]) -> str:
    """A Markdown table of timings."""
    lines = [
        "| kernel | model | facts | MB | device us | host us | GB/s | of copy | same bytes us | cut |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {t.kernel} | {t.model} | {t.facts} | {t.megabytes:.1f} | {t.device_us:.1f} ± {t.spread_us / 2:.1f} | "
        f"{t.host_us:.0f} | {t.gigabytes_per_s:.0f} | {t.of_copy:.0%} | {t.same_bytes_us:.1f} | {t.config} |"
        for t in timings
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 2 where there is nothing to measure on, 1 where a bit differs from the reference."""
    parser = argparse.ArgumentParser(description="Bytes per second and exactness of the kernels on a CUDA device.")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--search", action="store_true", help="also try other configurations (a minute)")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes on the CPU: does the script run?")
    options = parser.parse_args(arguments)
    if options.interpret:
        with interpreted():
            return _report(options, torch.device("cpu"), (Model("tiny", 2, 2, 16),), (1,), repeats=1)
    if not torch.cuda.is_available():
        sys.stderr.write("bench: no CUDA device; the kernels run on one. --interpret tries the script on the CPU.\n")
        return 2
    return _report(options, torch.device("cuda"), MODELS, FACTS, repeats=30)


def _report(
    options: argparse.Namespace, device: torch.device, models: tuple[Model, ...], facts: tuple[int, ...], repeats: int
) -> int:
    try:
        check_device(device)
    except ImportError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    clock = Clock(device, repeats)
    copying = copy_bandwidth(clock, 2**30 if device.type == "cuda" else 2**16)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreted on the CPU: times mean nothing"
    sys.stdout.write(f"{name}; torch {torch.__version__}; copies {copying / 1e9:.0f} GB/s (read + written)\n\n")
    timings = [row for m in models for k in facts for row in measure(Workload(m, k, device), clock, copying)]
    sys.stdout.write(table(timings) + "\n\n")
    searched = search(models[-1], facts[len(facts) // 2], clock, copying) if options.search else []
    if searched:
        sys.stdout.write("Other configurations, fastest first:\n\n" + table(searched) + "\n\n")
    checks = check_rounding(device)
    sys.stdout.write("Compiled against the torch reference on the CPU:\n\n")
    sys.stdout.write("| case | max error | identical |\n|---|---|---|\n")
    sys.stdout.write("".join(f"| {c.case} | {c.max_error:.3g} | {c.identical:.4%} |\n" for c in checks))
    if options.json is not None:
        found = {"device": name, "torch": torch.__version__, "copy_bytes_per_s": copying}
        found |= {"timings": [asdict(t) for t in timings], "search": [asdict(t) for t in searched]}
        found |= {"rounding": [asdict(c) for c in checks]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(check.identical < 1 for check in checks) else 0


def _copy_of(size: int, device: torch.device) -> Callable[[], Tensor]:
    source = torch.ones(max(size, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return partial(target.copy_, source)


if __name__ == "__main__":
    sys.exit(main())
