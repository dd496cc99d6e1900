"""When Triton is imported, how kernels are interpreted without a trace, and how a launch is cut."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="loads Triton kernels")

from inferscale_kernels import candidates, config_for, interpreted, launching  # noqa: E402 (needs torch)


def test_importing_the_package_imports_no_triton_and_nothing_of_the_library():
    script = (
        "import sys, inferscale_kernels\n"
        "print(sorted({'triton', 'vllm', 'inferscale_memory'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_environment()
    )
    assert done.stdout.strip() == "[]"


def test_interpreting_leaves_the_environment_and_the_compiled_kernels_alone():
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    before = dict(os.environ)
    with interpreted():
        assert launching.is_interpreted()
        assert isinstance(launching._kernels().transfer, InterpretedFunction)
    assert not launching.is_interpreted()
    assert isinstance(launching._kernels().transfer, JITFunction)
    assert dict(os.environ) == before


def test_interpreted_kernels_refuse_tensors_whose_addresses_are_not_the_hosts():
    with interpreted(), pytest.raises(ValueError, match=r"tensors are on cuda; interpreted kernels .* Use CPU tensors"):
        launching.check_device(torch.device("cuda"))


def test_interpreting_may_be_nested():
    with interpreted():
        with interpreted():
            pass
        assert launching.is_interpreted()
    assert not launching.is_interpreted()


def test_a_failure_inside_ends_the_interpreting():
    with pytest.raises(RuntimeError, match="inside"), interpreted():
        raise RuntimeError("inside")
    assert not launching.is_interpreted()


def test_a_missing_triton_is_reported_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"need Triton, which is not installed: pip install triton"):
        launching.check_device(torch.device("cpu"))


@pytest.mark.parametrize(
    ("head_dim", "itemsize", "tile"), [(64, 2, 32), (128, 2, 16), (256, 2, 8), (128, 4, 8), (80, 2, 16), (32, 2, 64)]
)
def test_a_program_reads_four_kilobytes_of_keys(head_dim, itemsize, tile):
    assert config_for(head_dim, itemsize).tile == tile


@given(st.integers(1, 512), st.sampled_from((2, 4)))
def test_every_cut_is_a_power_of_two_and_the_search_holds_the_one_in_use(head_dim, itemsize):
    used, tried = config_for(head_dim, itemsize), candidates(head_dim, itemsize)
    assert used in tried
    assert len(set(tried)) == len(tried) <= 9
    assert all(number & (number - 1) == 0 for config in tried for number in (config.tile, config.warps))


@pytest.mark.parametrize(("capability", "wanted"), [((8, 0), "fp8"), ((8, 6), "fp8"), ((8, 9), None), ((10, 0), None)])
def test_fp8_is_rounded_bit_by_bit_where_there_is_no_instruction(capability, wanted):
    assert launching.bitwise_of(capability) == wanted


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
