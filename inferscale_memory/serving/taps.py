"""Capturing keys and values while the model computes them: two taps behind one interface.

*Exact*: eager engines. The rotary module's ``forward`` is hooked, so keys are seen before rotation.
*Un-rotated*: compiled engines, whose traced forward runs no Python. The cache write, a splitting op that still runs in
Python, is hooked; its keys are rotated already and are turned back in fp32 with the module's own table.

Both find a request's rows of a step by *cache slot*: the scheduler says which blocks the request owns, the slot
mapping says which row goes to which slot. That holds under continuous batching, chunked prefill and preemption, and
for every model runner, whatever the order of rows.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from inferscale_kernels.rope import unrotate
from inferscale_memory.serving import compat
from inferscale_memory.serving.metadata import CapturePiece
from inferscale_memory.serving.protocol import TapReport
from inferscale_memory.serving.rotary import Rotator, pairing, position_only, table_of
from inferscale_memory.serving.staging import Layer, Staging, StepRows


class Tap(ABC):
    """Captures into :class:`Staging` while armed; costs one attribute test per layer while not."""

    name: str
    hooks_writes = True

    def __init__(self, layers: list[Layer], block_size: int) -> None:
        self.layers = layers
        self.block_size = block_size
        self.step: StepRows | None = None
        for index, layer in enumerate(layers if self.hooks_writes else ()):
            layer.module.impl.do_kv_cache_update = functools.partial(self._on_write, index, layer.write)

    def arm(self, pieces: list[tuple[CapturePiece, Staging]], device: torch.device) -> None:
        """Capture these pieces in the forward that comes; replaces what was armed before."""
        slots = []
        for piece, _ in pieces:
            positions = torch.arange(piece.begin, piece.stop)
            blocks = torch.tensor(piece.block_ids)[positions // self.block_size - piece.first_block]
            slots.append(blocks * self.block_size + positions % self.block_size)
        self.step = StepRows(pieces, torch.cat(slots).to(device))

    def disarm(self) -> None:
        """Stop capturing."""
        self.step = None

    def after_forward(self) -> None:
        """Take what is taken after the forward (most taps have it by then), and stop capturing."""
        self.disarm()

    def _on_write(
        self,
        index: int,
        write: Callable[..., None],
        module: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        if self.step is not None:
            self._capture(index, key, value, slots)
        write(module, key, value, cache, slots)

    def _capture(self, index: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        step, layer = self.step, self.layers[index]
        assert step is not None
        step.locate(slots)
        rows, found = step.rows, step.found
        assert rows is not None
        assert found is not None
        shape = (-1, layer.kv_heads, layer.head_dim)
        written = key.view(shape).index_select(0, rows)
        values = value.view(shape).index_select(0, rows)
        keys = self._keys(index, rows, written)
        for _, staging in step.pieces:
            staging.calls[index] = step.calls.get(index, 0)
        if keys is None:
            return
        for _, staging, here, there in step.parts():
            staging.keys[index, there] = keys.view(shape)[here]
            staging.values[index, there] = values[here]
            staging.seen[index, there] = found[here]
            if staging.written is not None:
                staging.written[index, there] = written[here]

    @abstractmethod
    def _keys(self, index: int, rows: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        """Keys of the wanted ``rows`` in this layer as they are staged, or ``None`` if they were not seen."""

    @abstractmethod
    def pre_rope(self, staging: Staging) -> torch.Tensor:
        """Keys before rotation, ``[layer, token, kv_head, head_dim]``, of a complete staging."""

    @abstractmethod
    def rotator(self, index: int) -> Rotator | None:
        """What rotates this layer's keys, or ``None`` while that is unknown."""

    def verify(self, staging: Staging, keys: torch.Tensor) -> TapReport:
        """Rotate ``keys`` again and compare with what the engine wrote, bit for bit."""
        report = functools.partial(TapReport, self.name, len(self.layers), sum(staging.calls.values()))
        problem = self._calls_problem(staging.calls)
        if problem:
            return report(problem=problem)
        if not staging.complete:
            seen = int(staging.seen.all(dim=1).sum())
            return report(problem=f"all rows were captured in only {seen} of {len(self.layers)} layers")
        assert staging.written is not None
        positions = torch.arange(staging.start, staging.end, device=keys.device)
        same, total, worst = 0, 0, 0.0
        for index in range(len(self.layers)):
            rotate = self.rotator(index)
            if rotate is None:
                return report(problem=f"no rotary module is known for layer {self.layers[index].name}")
            rotated = rotate(positions, keys[index].reshape(len(positions), -1).clone()).view_as(keys[index])
            want = staging.written[index]
            same += int((rotated == want).sum())
            total += want.numel()
            worst = max(worst, float((rotated.float() - want.float()).abs().max()))
        return report(identical=same / total, max_abs=worst)

    def _calls_problem(self, calls: dict[int, int]) -> str | None:
        return None

    def close(self) -> None:
        """Take the hooks out again."""
        self.disarm()
        for layer in self.layers:
            layer.module.impl.__dict__.pop("do_kv_cache_update", None)


class ExactTap(Tap):
    """Pre-RoPE keys, seen by hooking the rotary modules' ``forward``."""

    name = "exact"

    def __init__(self, layers: list[Layer], block_size: int) -> None:
        super().__init__(layers, block_size)
        self._pending: torch.Tensor | None = None
        self._calls = 0
        self._module: Any = None
        self._of_layer: dict[int, Any] = {}
        self._rotators: dict[int, Rotator] = {}
        self._modules = compat.rotary_modules()
        for module in self._modules:
            # Modules are shared by every engine of a process; the newest engine's hook replaces an older one.
            original = module.__dict__.pop("_inferscale_forward", None) or module.forward
            module._inferscale_forward = original
            module.forward = functools.partial(self._on_rotary, module, original)

    def _on_rotary(
        self,
        module: Any,
        original: Callable[..., Any],
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if key is not None and (self.step is not None or len(self._of_layer) < len(self.layers)):
            self._module = module
            if self.step is not None:
                self._calls += 1
                self._pending = self._wanted(key)
        return original(positions, query, key, *rest, **named)

    def _wanted(self, key: torch.Tensor) -> torch.Tensor | None:
        # The op rotates in place: the rows must be copied now, so they are looked up before the first cache write.
        step = self.step
        assert step is not None
        if step.rows is None:
            slots = compat.slot_mappings(compat.current_forward_context()).get(self.layers[0].name)
            if slots is None:
                return None
            step.locate(slots)
        assert step.rows is not None
        return key.reshape(key.shape[0], -1).index_select(0, step.rows)

    def _on_write(self, index: int, write: Callable[..., None], *arguments: Any) -> None:
        if self._module is not None:
            self._of_layer[index] = self._module
            self._module = None
        super()._on_write(index, write, *arguments)
        self._pending, self._calls = None, 0

    def _keys(self, index: int, rows: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        pending, layer = self._pending, self.layers[index]
        assert self.step is not None
        self.step.calls[index] = self._calls
        if pending is None or self._calls != 1 or pending.shape[1] != layer.kv_heads * layer.head_dim:
            return None
        return pending

    def pre_rope(self, staging: Staging) -> torch.Tensor:
        """Keys as they were seen."""
        return staging.keys

    def rotator(self, index: int) -> Rotator | None:
        """The module that was called before this layer's cache write; before any was, the only one there is."""
        if index not in self._rotators:
            module = self._of_layer.get(index)
            if module is None and len(self._modules) == 1:
                module = self._modules[0]
            if module is None or not position_only(module):
                return None
            self._rotators[index] = Rotator(module, native=False)
        return self._rotators[index]

    def _calls_problem(self, calls: dict[int, int]) -> str | None:
        odd = [layer.name for index, layer in enumerate(self.layers) if calls.get(index) != 1]
        if odd:
            return (
                f"{len(odd)} of {len(self.layers)} attention layers (first: {odd[0]}) do not rotate their keys exactly "
                "once with vLLM's rotary modules: no rotary positions, shared keys, or other code that rotates"
            )
        return None

    def close(self) -> None:
        """Take the hooks out again, those of the rotary modules too."""
        super().close()
        for module in self._modules:
            if getattr(module.__dict__.get("forward"), "func", None) == self._on_rotary:
                del module.forward
                module.__dict__.pop("_inferscale_forward", None)


class UnrotatedTap(Tap):
    """Rotated keys, turned back in fp32 with the module's own table."""

    name = "un-rotated"

    def __init__(self, layers: list[Layer], block_size: int, *, native: bool) -> None:
        super().__init__(layers, block_size)
        modules = [module for module in compat.rotary_modules() if position_only(module)]
        fitting = {layer.head_dim for layer in layers} == {getattr(module, "head_size", None) for module in modules}
        single = modules[0] if len(modules) == 1 and fitting else None
        self._module = single if single is not None and table_of(single, torch.float32) is not None else None
        self._rotator = Rotator(self._module, native=native) if self._module is not None else None

    def _keys(self, index: int, rows: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        return written

    def pre_rope(self, staging: Staging) -> torch.Tensor:
        """Un-rotate the staged keys of all layers at once."""
        module = self._module
        if module is None:
            return staging.keys
        positions = torch.arange(staging.start, staging.end, device=staging.keys.device)
        table = table_of(module, staging.keys.dtype)
        assert table is not None
        return unrotate(staging.keys, positions, table, **pairing(module))

    def rotator(self, index: int) -> Rotator | None:
        """The model's only rotary module; with several, which layer uses which cannot be seen."""
        return self._rotator
