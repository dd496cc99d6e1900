"""models: pins and places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]


def test_models_list_shows_pins_and_places(
    run: Run, json_of: JsonOf, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERSCALE_MODELS_DIR")
    rows = json_of("models", "list")["models"]
    assert [row["name"] for row in rows] == ["smollm2-135m-instruct", "all-minilm-l6-v2"]
    assert rows[0]["path"] == str(home / "models" / "smollm2-135m-instruct")
    assert rows[0]["ready"] is False
    assert rows[0]["aliases"][0] == "demo"
    assert len(rows[0]["sha256"]) == 64
    assert "Apache-2.0" in run("models", "list").stdout


def test_models_path_of_an_unknown_model_fails(run: Run) -> None:
    result = run("models", "path", "gpt-9")
    assert result.exit_code == 1
    assert "no demo model is called 'gpt-9'" in result.stderr


def test_models_fetch_prints_where_they_lie(run: Run, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferscale_memory.models.ensure", lambda name, *, home=None: Path("/somewhere") / name)
    assert json_of("models", "fetch", "demo")["models"] == [
        {"name": "smollm2-135m-instruct", "path": "/somewhere/smollm2-135m-instruct"}
    ]
    assert json_of("models", "path", "minilm") == {"name": "all-minilm-l6-v2", "path": "/somewhere/all-minilm-l6-v2"}
    assert len(run("models", "fetch").stdout.splitlines()) == 2
