"""What may stand in place of a demo model: a folder that is one, or a hub id."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_memory import models
from inferscale_memory.errors import ModelError


@pytest.mark.parametrize("name", ["gpt2", "org/name", "Qwen/Qwen2.5-0.5B-Instruct", "HuggingFaceTB/SmolLM2-135M"])
def test_a_hub_id_is_passed_on(name: str) -> None:
    assert models.resolve_model(name) == name


def test_a_model_folder_resolves_to_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for given in ("mine", "./mine", Path("mine"), str(tmp_path / "mine")):
        assert models.resolve_model(given) == str(tmp_path / "mine")


def test_a_folder_that_is_no_model_is_told_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "home").rmdir()
    with pytest.raises(ModelError, match=r"no config\.json \(it holds notes\.txt\)"):
        models.resolve_model(tmp_path)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(ModelError, match=r"model\.gguf is a file; a model is a folder"):
        models.resolve_model(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize(("content", "reason"), [("{", "cannot be read as JSON"), ("[]", "holds a JSON list")])
def test_a_broken_config_is_told(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=reason):
        models.resolve_model(tmp_path)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "../nowhere", "~/no-such-folder-here"])
def test_a_path_that_does_not_exist_is_not_taken_for_an_id(name: str) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        models.resolve_model(name)


@pytest.mark.parametrize("name", ["", "  ", "a/b/c", "org/", "two words", "-x"])
def test_a_text_that_can_be_neither_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        models.resolve_model(name)
