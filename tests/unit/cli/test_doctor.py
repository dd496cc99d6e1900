"""doctor: every finding in one line, failure in the exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.cli import doctor as doctor_module
from inferscale_memory.cli.checks import Check

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]


def test_doctor_without_an_engine_checks_versions_settings_and_store(
    json_of: JsonOf, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module.checks, "device", lambda: Check("device", "ok", "CPU"))
    shown = json_of("doctor", "--no-engine")
    assert shown["ok"] is True
    names = [check["name"] for check in shown["checks"]]
    assert {"python", "inferscale-memory", "device", "settings", "memory"} <= set(names)
    assert "round trip" not in names


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module.checks, "device", lambda: Check("device", "ok", "CPU"))


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_fails_on_a_store_that_others_can_read(run: Run, home: Path) -> None:
    (home / "memory").mkdir(mode=0o755)
    (home / "memory").chmod(0o755)
    result = run("doctor", "--no-engine")
    assert result.exit_code == 1
    assert "others can read" in result.stdout
    assert result.stderr == "inferscale: not healthy: permissions\n"


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_fails_on_a_damaged_database(json_of: JsonOf, home: Path) -> None:
    (home / "memory").mkdir(mode=0o700)
    (home / "memory" / "facts.db").write_bytes(b"not a database" * 100)
    shown = json_of("doctor", "--no-engine", code=1)
    (database,) = [check for check in shown["checks"] if check["name"] == "database"]
    assert database["state"] == "fail"
    assert "file is not a database" in database["detail"]


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_warns_of_a_misspelt_setting(json_of: JsonOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_HOMES", "/x")
    (settings,) = [c for c in json_of("doctor", "--no-engine")["checks"] if c["name"] == "settings"]
    assert settings["state"] == "warn"
    assert settings["detail"] == "not a setting, ignored: INFERSCALE_HOMES (meant: INFERSCALE_HOME?)"


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_tells_why_an_engine_does_not_start(json_of: JsonOf, tmp_path: Path) -> None:
    shown = json_of("doctor", "--model", str(tmp_path), code=1)
    (trip,) = [check for check in shown["checks"] if check["name"] == "round trip"]
    assert trip["state"] == "fail"
    assert "is no model folder" in trip["detail"]
