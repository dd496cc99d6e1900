"""Settings come from INFERSCALE_ variables, arguments go before them, and wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from inferscale_memory.config import Settings, load_settings, unknown_variables
from inferscale_memory.errors import ConfigError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No home and no models folder set; the user's folders lie in a temporary place."""
    monkeypatch.delenv("INFERSCALE_HOME")
    monkeypatch.delenv("INFERSCALE_MODELS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def test_without_a_home_models_are_cache_and_memory_is_data(bare: Path) -> None:
    settings = load_settings()
    assert settings.models_folder == bare / "cache" / "inferscale" / "models"
    assert settings.memory_folder == bare / "data" / "inferscale" / "memory"


def test_a_home_holds_models_and_memory(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_HOME", str(bare / "here"))
    settings = load_settings()
    assert settings.models_folder == bare / "here" / "models"
    assert settings.memory_folder == bare / "here" / "memory"
    assert settings.database == f"sqlite:///{bare}/here/memory/facts.db"
    assert settings.kv_folder == bare / "here" / "memory" / "kv"
    assert settings.secret_file == bare / "here" / "memory" / "secret"


def test_an_argument_goes_before_the_environment(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_HOME", str(bare / "env"))
    assert load_settings(bare / "argument").home == bare / "argument"


def test_a_models_folder_is_shared_by_every_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_MODELS_DIR", str(bare / "shared"))
    assert load_settings(bare / "one").models_folder == load_settings(bare / "two").models_folder == bare / "shared"


def test_a_blank_variable_counts_as_not_set(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_HOME", "")
    monkeypatch.setenv("INFERSCALE_K", "")
    assert load_settings().home is None
    assert load_settings().k == 10


def test_a_home_with_a_tilde_or_relative_becomes_absolute(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(bare))
    monkeypatch.chdir(bare)
    assert load_settings("~/memories").home == bare / "memories"
    assert load_settings("memories").home == bare / "memories"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INFERSCALE_K", "0"),
        ("INFERSCALE_K", "many"),
        ("INFERSCALE_REFRESH", "-1"),
        ("INFERSCALE_HANDLE_TTL", "0"),
        ("INFERSCALE_ARENA", "much"),
        ("INFERSCALE_NEAR_DUPLICATE", "1.1"),
    ],
)
def test_a_wrong_value_is_refused_by_name(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable}='{value}' cannot be used"):
        load_settings()


def test_settings_do_not_change_once_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().k = 3  # type: ignore[misc]


def test_every_setting_says_what_it_is_for() -> None:
    undescribed = [name for name, field in Settings.model_fields.items() if not field.description]
    assert undescribed == []


def test_a_misspelt_variable_is_found_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_variables() == {}
    monkeypatch.setenv("INFERSCALE_AREN", "1")
    assert unknown_variables() == {"INFERSCALE_AREN": "INFERSCALE_ARENA"}
