from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="interprets Triton kernels")

from inferscale_kernels import bench, exactness  # noqa: E402 (needs torch)


def test_without_a_device_it_says_so_in_one_line_and_exits_with_2(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "bench: no CUDA device; the kernels run on one. --interpret tries the script on the CPU."
    ]


@pytest.fixture
def small_check(monkeypatch):
    """bf16 alone; the other dtypes are compared kernel by kernel elsewhere."""
    monkeypatch.setattr(exactness, "DTYPES", (torch.bfloat16,))


def test_the_whole_script_runs_interpreted_and_finds_the_references_bits(small_check, tmp_path, capsys):
    assert bench.main(["--interpret", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    kernels = [row["kernel"] for row in found["timings"]]
    assert kernels == [
        "inject, op",
        "inject, native",
        "capture, un-rotated",
        "capture, as is",
        "capture, one layer's rows",
    ]
    # 25 tokens, 2 layers, 2 heads of 16 features, keys and values, bf16, read and written.
    assert found["timings"][0]["megabytes"] == pytest.approx(25 * 2 * 2 * 16 * 2 * 2 * 2 / 1e6)
    assert len(found["rounding"]) == 24
    assert all(row["identical"] == 1 and row["max_error"] == 0 for row in found["rounding"])
    printed = capsys.readouterr().out
    assert printed.count("| inject, op | tiny | 1 |") == 1
    assert "times mean nothing" in printed


def test_a_bit_that_differs_from_the_reference_fails_the_command(monkeypatch, capsys):
    checks = [exactness.Check("inject, bfloat16, neox, op", 0.5, 0.9999)]
    monkeypatch.setattr(bench, "check_rounding", lambda device: checks)
    monkeypatch.setattr(bench, "measure", lambda *_: [])
    assert bench.main(["--interpret"]) == 1
    assert "| inject, bfloat16, neox, op | 0.5 | 99.9900% |" in capsys.readouterr().out


def test_the_search_tries_every_candidate_and_puts_the_fastest_first(monkeypatch):
    times = iter((3.0, 1.0, 2.0))
    configs = [bench.Config(tile) for tile in (8, 16, 32)]
    monkeypatch.setattr(bench, "candidates", lambda *_: configs)

    def measure(workload, clock, copying, config):
        row = bench.Timing("inject, op", "tiny", 1, 1, next(times), 0, 0, 0, 0, 0, str(config.tile))
        return [row]

    monkeypatch.setattr(bench, "measure", measure)
    clock = bench.Clock(torch.device("cpu"), 1)
    found = bench.search(bench.Model("tiny", 2, 2, 16), 1, clock, 1.0)
    assert [row.config for row in found] == ["16", "32", "8"]
