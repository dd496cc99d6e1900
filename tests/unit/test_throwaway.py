"""A throw-away home: gone at the end, and the user's models in reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferscale_memory.config import load_settings
from inferscale_memory.throwaway import throwaway_home


def test_a_throwaway_home_is_deleted_with_all_that_is_in_it() -> None:
    with throwaway_home() as home:
        (home / "memory").mkdir()
        (home / "memory" / "facts.db").touch()
    assert not home.exists()


def test_a_throwaway_home_is_the_owner_s_alone() -> None:
    with throwaway_home() as home:
        assert home.stat().st_mode & 0o077 == 0


def test_models_of_the_user_are_used_and_the_memory_is_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERSCALE_MODELS_DIR")
    with throwaway_home() as folder:
        settings = load_settings(folder)
        assert settings.models_folder == home / "models"
        assert settings.memory_folder == folder / "memory"


def test_models_of_a_given_home_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERSCALE_MODELS_DIR")
    with throwaway_home(tmp_path / "other") as folder:
        assert load_settings(folder).models_folder == tmp_path / "other" / "models"


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_the_environment_is_as_before_afterwards(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERSCALE_MODELS_DIR")
    if before:
        monkeypatch.setenv("INFERSCALE_MODELS_DIR", before)
    with pytest.raises(RuntimeError, match="broken off"), throwaway_home():
        raise RuntimeError("broken off")
    assert os.environ.get("INFERSCALE_MODELS_DIR") == before


def test_a_database_of_the_user_s_is_out_of_reach_meanwhile_and_named_again_after(monkeypatch, tmp_path):
    url = f"sqlite:///{tmp_path}/mine.db"
    monkeypatch.setenv("INFERSCALE_DATABASE_URL", url)
    with throwaway_home() as folder:
        assert load_settings(folder).database == f"sqlite:///{folder}/memory/facts.db"
    assert load_settings().database == url
