"""fp8 in the kernels against PyTorch's conversions: every code read, and every rounding decision written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="interprets Triton kernels")

from inferscale_kernels import PagedCaches, capture_cache, inject, interpreted  # noqa: E402 (needs torch)
from inferscale_kernels.fp8 import DTYPES, dequantize, quantize  # noqa: E402

FORMATS = sorted(DTYPES)
HOW = {"neox": True, "rotary_dim": 32}


def stored_as(values, fp8, scale=None):
    """Codes that the kernel writes for fp32 ``values``, a multiple of 32 of them, as the value cache of one layer."""
    arena = values.view(1, -1, 1, 32)
    rows = torch.arange(arena.shape[1])
    codes = torch.zeros(1, len(rows), 1, 32, dtype=torch.uint8)
    caches = PagedCaches.of([torch.zeros_like(codes)], [codes], fp8=fp8, v_scale=scale)
    with interpreted():
        inject(arena, arena, rows, rows, rows, caches, None, **HOW)
    return codes.flatten()


def read_from(codes, fp8, dtype, scale=None):
    cells = codes.view(1, -1, 1, 32)
    rows = torch.arange(cells.shape[1])
    arena = torch.zeros(2, 1, len(rows), 1, 32, dtype=dtype)
    caches = PagedCaches.of([cells], [cells], fp8=fp8, v_scale=scale)
    with interpreted():
        capture_cache(caches, rows, None, arena[0], arena[1], rows, **HOW)
    return arena[1].flatten()


def decisions(fp8):
    """Every finite code, the middle between each and the next, and the fp32 numbers beside both; past the end too."""
    codes = torch.arange(256, dtype=torch.uint8).view(DTYPES[fp8]).float()
    exact = codes[codes.isfinite()].sort().values
    middle = (exact[1:] + exact[:-1]) / 2
    marks = torch.cat((exact, middle))
    beside = [torch.nextafter(marks, torch.tensor(way * torch.inf)) for way in (1, -1)]
    far = torch.tensor([448.1, 464.0, 480.0, 1e6, 57344.1, 61440.0, 65536.0, 3e38, torch.inf, 1e-30, 1e-42, 0.0])
    all_of_them = torch.cat((marks, *beside, far, -far))
    return torch.nn.functional.pad(all_of_them, (0, -len(all_of_them) % 32))


@pytest.mark.parametrize("fp8", FORMATS)
def test_every_rounding_decision_is_pytorchs_and_what_is_too_large_saturates(fp8):
    values = decisions(fp8)
    codes = stored_as(values, fp8)
    assert torch.equal(codes, quantize(values, fp8, 1.0))
    assert codes.view(DTYPES[fp8]).float().isfinite().all()


@pytest.mark.parametrize("fp8", FORMATS)
def test_what_is_not_a_number_stays_so(fp8):
    values = torch.tensor([torch.nan, 1.0]).repeat(16)
    read = stored_as(values, fp8).view(DTYPES[fp8]).float()
    assert torch.equal(read.isnan(), values.isnan())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("fp8", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_code_is_read_as_pytorch_reads_it(fp8, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    scale = torch.tensor([0.37])
    got, wanted = read_from(codes, fp8, dtype, scale), dequantize(codes, fp8, scale, dtype)
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got[~got.isnan()], wanted[~wanted.isnan()])


@pytest.mark.parametrize("fp8", FORMATS)
def test_values_are_divided_by_the_layers_scale_before_they_are_rounded(fp8):
    values = torch.randn(320, generator=torch.Generator().manual_seed(2))
    scale = torch.tensor([0.0123])
    codes = stored_as(values, fp8, scale)
    assert torch.equal(codes, quantize(values, fp8, scale))
    assert not torch.equal(codes, quantize(values, fp8, 1.0))
    error = (read_from(codes, fp8, torch.float32, scale) - values).abs()
    step = torch.finfo(DTYPES[fp8]).eps / 2
    assert (error <= step * values.abs() + 0.0123 * torch.finfo(DTYPES[fp8]).smallest_normal * step * 2).all()
