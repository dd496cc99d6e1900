"""The CUDA path of the connector, driven with interpreted kernels on caches in FlashAttention's layout.

The worker, the loader and the taps are the ones of production; of the engine there are only attention layers: their
cache write in plain torch, and vLLM's own rotary module.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the connector's workers need torch")
pytest.importorskip("vllm", reason="the rotary module is vLLM's")

from inferscale_kernels import interpreted  # noqa: E402
from inferscale_memory.kv.keys import context_digest  # noqa: E402
from inferscale_memory.serving import compat  # noqa: E402
from inferscale_memory.serving.kernel_taps import CacheTap, RowsTap, compiled_tap  # noqa: E402
from inferscale_memory.serving.metadata import CapturePiece, LoadRun, StepMetadata  # noqa: E402
from inferscale_memory.serving.options import ConnectorOptions  # noqa: E402
from inferscale_memory.serving.rotary import Rotator  # noqa: E402
from inferscale_memory.serving.staging import Layer  # noqa: E402
from inferscale_memory.serving.taps import UnrotatedTap  # noqa: E402
from inferscale_memory.serving.worker import WorkerSide  # noqa: E402
from inferscale_memory.serving.writers import KernelWriter, PortableWriter, choose_writer, paged_views  # noqa: E402

MODEL = hashlib.sha256(b"a model").hexdigest()
LAYERS, HEADS, DIM, BLOCK, BLOCKS = 2, 2, 64, 16, 8
DTYPE = torch.bfloat16


class FlashLayout:
    """The cache write of FlashAttention's layout: ``[block, head, slot, 2 * head_dim]``, keys first."""

    values_first = False

    def do_kv_cache_update(self, module: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        first, second = (value, key) if self.values_first else (key, value)
        cells = cache.transpose(1, 2)
        block, offset = slots // BLOCK, slots % BLOCK
        cells[block, offset, :, :DIM] = first
        cells[block, offset, :, DIM:] = second


class OddLayout(FlashLayout):
    """A backend of the same cache shape that packs in another way."""

    values_first = True


@pytest.fixture(scope="module")
def rotary():
    """One rotary module of vLLM, the only one that this process knows of for as long as these tests run."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        parameters = {"rope_type": "default", "rope_theta": 1e5}
        yield get_rope(DIM, 512, is_neox_style=True, rope_parameters=parameters, dtype=DTYPE)


@pytest.fixture(autouse=True)
def only_this_rotary(rotary, monkeypatch):
    monkeypatch.setattr(compat, "rotary_modules", lambda: [rotary])


@pytest.fixture(autouse=True)
def run_by_the_interpreter():
    with interpreted():
        yield


def modules_of(layout: type[FlashLayout]) -> dict[str, Any]:
    return {
        f"layers.{index}.attn": SimpleNamespace(
            impl=layout(),
            kv_cache=torch.zeros((BLOCKS, HEADS, BLOCK, 2 * DIM), dtype=DTYPE),
            num_kv_heads=HEADS,
            head_size=DIM,
            dtype=DTYPE,
        )
        for index in range(LAYERS)
    }


def layers_of(layout: type[FlashLayout]) -> list[Layer]:
    modules = modules_of(layout)
    return [Layer(name, module, module.impl.do_kv_cache_update, HEADS, DIM) for name, module in modules.items()]


def states(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return tuple(torch.randn((2, LAYERS, tokens, HEADS, DIM), generator=random).to(DTYPE).unbind(0))


@dataclass
class Forward:
    """A forward of one prompt in a fake engine: rotates keys and writes the caches of the worker's layers."""

    worker: WorkerSide
    rotator: Rotator
    blocks: list[int]

    def __call__(self, keys: torch.Tensor, values: torch.Tensor, begin: int = 0) -> None:
        positions = torch.arange(begin, begin + keys.shape[1])
        slots = torch.tensor(self.blocks)[positions // BLOCK] * BLOCK + positions % BLOCK
        for index, layer in enumerate(self.worker.layers):
            rotated = self.rotator(positions, keys[index].reshape(len(positions), -1).clone())
            module = layer.module
            rotated = rotated.view(-1, HEADS, DIM)
            module.impl.do_kv_cache_update(module, rotated, values[index], module.kv_cache, slots)


def worker_with(root, layout: type[FlashLayout], *, kernels: bool) -> WorkerSide:
    options = ConnectorOptions(root, MODEL, arena_bytes=1 << 20, kernels=kernels)
    worker = WorkerSide(options, block_size=BLOCK, rank=0, world=1)
    worker.install(modules_of(layout), compiled=True)
    assert worker.report.tap is None
    return worker


def piece_of(key: str, start: int, end: int, begin: int, stop: int, blocks: list[int], **named: Any) -> CapturePiece:
    first, last = begin // BLOCK, (stop - 1) // BLOCK
    ending = {}
    if stop == end:
        tokens = np.arange(start, end, dtype=np.int32)
        ending = {"tokens": tokens.tobytes(), "context": context_digest((1,))}
    owned = blocks[first : last + 1]
    marks = {"volatile": False, "verify": False, **named}
    return CapturePiece("r", key, start, end, begin, stop, first, owned, **marks, **ending)


def step(worker: WorkerSide, forward: Forward, pieces: list[CapturePiece], keys, values, begin: int = 0) -> None:
    worker.begin(StepMetadata(captures=pieces))
    forward(keys, values, begin)
    worker.finish_step()


KEYS = [f"{number:064x}" for number in range(4)]


@pytest.mark.parametrize("layout", [FlashLayout, OddLayout])
def test_views_of_a_cache_are_believed_only_if_the_engines_own_write_is_read_back(layout):
    (layer, _) = layers_of(layout)
    assert (paged_views(layer) is not None) == (layout is FlashLayout)


@pytest.mark.parametrize(("forward", "rounding"), [("forward_cpu", "op"), ("forward_native", "native")])
def test_the_kernel_rounds_as_this_engine_does(tmp_path, rotary, forward, rounding):
    worker = worker_with(tmp_path, FlashLayout, kernels=True)
    rotator = Rotator(rotary, native=True)
    rotator._forward = getattr(rotary, forward)  # what the module dispatches to in an engine
    writer = choose_writer(worker.loader.arena, worker.layers, [rotator] * LAYERS, kernels=True)
    assert isinstance(writer, KernelWriter)
    assert writer.rounding == rounding


def test_caches_of_an_unknown_packing_are_written_the_portable_way(tmp_path, rotary):
    worker = worker_with(tmp_path, OddLayout, kernels=True)
    rotators = [Rotator(rotary, native=True)] * LAYERS
    assert isinstance(choose_writer(worker.loader.arena, worker.layers, rotators, kernels=True), PortableWriter)


def test_a_rotation_that_no_kernel_has_is_done_by_the_engines_module(tmp_path, rotary):
    worker = worker_with(tmp_path, FlashLayout, kernels=True)
    crooked = Rotator(rotary, native=True)
    crooked._as_query, crooked._forward = True, lambda positions, keys, _: (keys * 1.5, None)
    assert isinstance(
        choose_writer(worker.loader.arena, worker.layers, [crooked] * LAYERS, kernels=True), PortableWriter
    )


def test_without_kernels_none_is_launched(tmp_path):
    worker = worker_with(tmp_path, FlashLayout, kernels=False)
    assert type(worker.tap) is UnrotatedTap
    assert isinstance(worker._ready_writer(), PortableWriter)


@pytest.mark.parametrize(("layout", "tap"), [(FlashLayout, CacheTap), (OddLayout, RowsTap)])
def test_every_layout_has_its_tap(layout, tap):
    assert type(compiled_tap(layers_of(layout), BLOCK, kernels=True)) is tap


@pytest.mark.parametrize("layout", [FlashLayout, OddLayout])
def test_what_a_kernel_captures_is_what_torch_captures(tmp_path, rotary, layout):
    """Over two steps, the second chunk behind the first, in blocks that are in no order."""
    blocks, (keys, values) = [5, 2, 7], states(40)
    stored = []
    for kernels in (True, False):
        worker = worker_with(tmp_path / str(kernels), layout, kernels=kernels)
        forward = Forward(worker, Rotator(rotary, native=True), blocks)
        for index, layer in enumerate(worker.layers):  # what another request left in these blocks
            layer.module.kv_cache.fill_(index + 1.0)
        first = piece_of(KEYS[0], 3, 20, 3, 20, blocks)
        half = piece_of(KEYS[1], 20, 40, 20, 25, blocks)
        rest = piece_of(KEYS[1], 20, 40, 25, 40, blocks)
        step(worker, forward, [first, half], keys[:, :25], values[:, :25])
        step(worker, forward, [rest], keys[:, 25:], values[:, 25:], 25)
        stored.append([worker.store.get(key, MODEL) for key in KEYS[:2]])
    for with_kernel, with_torch in zip(*stored, strict=True):
        assert torch.equal(with_kernel.keys, with_torch.keys)
        assert torch.equal(with_kernel.values, with_torch.values)
        assert torch.equal(with_kernel.values, values[:, with_kernel.token_ids[0] : with_kernel.token_ids[-1] + 1])


def test_a_verified_capture_says_how_far_it_is_from_what_the_engine_wrote(tmp_path, rotary):
    worker = worker_with(tmp_path, FlashLayout, kernels=True)
    forward, (keys, values) = Forward(worker, Rotator(rotary, native=True), [1, 2]), states(24)
    step(worker, forward, [piece_of(KEYS[0], 0, 24, 0, 24, [1, 2], volatile=True, verify=True)], keys, values)
    tap = worker.report.tap
    assert tap is not None
    assert (tap.tap, tap.problem, tap.layers) == ("un-rotated", None, LAYERS)
    assert 0.5 < tap.identical < 1.0
    assert 0.0 < tap.max_abs < 0.1


def test_two_requests_are_injected_by_one_launch_and_to_the_bit_as_layer_by_layer(tmp_path, rotary, monkeypatch):
    keys, values = states(60)
    spans = [(0, 7), (7, 30), (30, 31), (31, 60)]
    caches, launches = [], []
    for kernels in (True, False):
        worker = worker_with(tmp_path / str(kernels), FlashLayout, kernels=kernels)
        forward = Forward(worker, Rotator(rotary, native=True), [0, 1, 2, 3])
        pieces = [piece_of(key, *span, *span, [0, 1, 2, 3]) for key, span in zip(KEYS, spans, strict=True)]
        step(worker, forward, pieces, keys, values)
        for layer in worker.layers:
            layer.module.kv_cache.zero_()
        writer = worker._ready_writer()
        assert type(writer) is (KernelWriter if kernels else PortableWriter)
        if isinstance(writer, KernelWriter):
            inject = writer._inject
            writer._inject = lambda *given, **named: launches.append(1) or inject(*given, **named)  # noqa: B023
        for layer in worker.layers:  # the writer tried the padding block
            layer.module.kv_cache.zero_()
        worker.load(
            [
                run_of("a", [0, 1, 3], spans, blocks=[6, 4, 1, 5], begin=0, stop=50),
                run_of("b", [2, 1], spans, blocks=[7, 3], begin=16, stop=24),
            ]
        )
        assert not worker.report.load_errors
        caches.append([layer.module.kv_cache.clone() for layer in worker.layers])
    assert launches == [1]
    for with_kernel, layer_by_layer in zip(*caches, strict=True):
        assert torch.equal(with_kernel, layer_by_layer)
        assert with_kernel[6].any()
        assert not with_kernel[[0, 2]].any(), "blocks of nobody"
        assert not with_kernel[7].any(), "what is found in the native cache is not written again"


def run_of(name: str, chunks: list[int], spans, *, blocks: list[int], begin: int, stop: int) -> LoadRun:
    tokens = np.concatenate([np.arange(*spans[chunk], dtype=np.int32) for chunk in chunks])
    ends = tuple(int(end) for end in np.cumsum([spans[chunk][1] - spans[chunk][0] for chunk in chunks]))
    keys = tuple(KEYS[chunk] for chunk in chunks)
    return LoadRun(name, begin, stop, 0, blocks, keys, ends, tokens.tobytes())
