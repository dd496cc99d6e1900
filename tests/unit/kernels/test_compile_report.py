"""The kernels compiled for GPUs that need not be there."""

from __future__ import annotations

import importlib
import json
import re

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="compiles Triton kernels")

from inferscale_kernels import compile_report as report  # noqa: E402 (needs torch)
from inferscale_kernels import interpreted  # noqa: E402
from inferscale_kernels.compile_report import Case, Compiled  # noqa: E402


def ptx(case, target=90):
    source, options = report.ahead(triton, report.build(case, target))
    place = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", target, 32)
    return triton.compile(source, target=place, options=options).asm["ptx"]


def test_a_covering_set_compiles_for_all_targets_and_spills_nothing(tmp_path, capsys):
    assert report.main(["--covering", "--json", str(tmp_path / "rows.json")]) == 0
    rows = [Compiled(**row) for row in json.loads((tmp_path / "rows.json").read_text())]
    assert {row.target for row in rows} == {"sm_80", "sm_90", "sm_100"}
    assert len(rows) == 3 * len(report.covering_cases())
    assert all(row.stack == 0 and 0 < row.registers <= 128 for row in rows)
    assert "0 with a stack" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_specialisation_compiles_for_all_targets_and_spills_nothing():
    rows = report.report(report.cases())
    assert [row for row in rows if row.stack] == []
    assert len(rows) == 3 * len(set(report.cases()))


@pytest.mark.parametrize("case", [Case("inject"), Case("inject", neox=False), Case("capture", turn="undo")], ids=str)
def test_states_are_moved_in_whole_vectors_of_16_bytes(case):
    text = ptx(case)
    assert re.findall(r"st\.global\.(?!v4\.b32)\S+", text) == []
    # What is not a vector are indices and the addresses of caches.
    assert set(re.findall(r"ld\.global\.(\S+)", text)) == {"v4.b32", "b64"}


def test_no_product_is_fused_with_a_sum():
    for case in (Case("inject", torch.float32), Case("inject", turn="native"), Case("capture", turn="undo")):
        text = ptx(case)
        assert "mul.f32" in text or "mul.rn.f32" in text
        assert re.findall(r"\bfma\.rn\.(?:f32|bf16|f16)\S*", text) == []


def test_interpreting_before_changes_nothing_that_is_compiled(monkeypatch, tmp_path):
    from test_inject_kernel import PLAIN, both

    # Folders of their own, so that nothing compiled before, by this checkout or another, is found in them.
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "before"))
    before = ptx(Case("inject"))
    with interpreted():
        both(PLAIN)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "after"))
    assert ptx(Case("inject")) == before


def test_a_spilled_register_fails_the_command(monkeypatch, capsys):
    spilled = [Compiled("inject", "sm_80", 255, 64, 0)]
    monkeypatch.setattr(report, "report", lambda cases: spilled)
    assert report.main([]) == 1
    assert "1 with a stack" in capsys.readouterr().out


def test_the_table_has_a_line_per_case_and_a_column_per_target():
    rows = [Compiled("inject", "sm_100", 40, 0, 0), Compiled("inject", "sm_80", 32, 8, 16)]
    assert report.table(rows).splitlines() == [
        "| kernel | sm_80 | sm_100 |",
        "|---|---|---|",
        "| inject | 32 / 8 / 16 | 40 / 0 / 0 |",
    ]
