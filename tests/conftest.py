"""What every test has: an own empty home, the demo models, no network and few threads."""

from __future__ import annotations

import os
import shutil

# Before anything imports the libraries that read them once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from inferscale_memory import models
from inferscale_memory.config import ENV_PREFIX, load_settings

# Fetched models are shared by all runs; where they lie is settled before any test moves the home.
_MODELS_FOLDER = load_settings().models_folder


@pytest.fixture(autouse=True, scope="session")
def _clean_settings() -> Iterator[None]:
    """No setting of the developer's shell reaches a test; the models folder stays."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
            patch.delenv(name)
        patch.setenv("INFERSCALE_MODELS_DIR", str(_MODELS_FOLDER))
        yield


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _clean_settings: None) -> Path:
    """An empty ``INFERSCALE_HOME`` of this test; the user's own memory is never touched."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("INFERSCALE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def demo_model(_clean_settings: None) -> Path:
    """Folder of SmolLM2-135M-Instruct; fetched on first use, never skipped."""
    return models.ensure("demo", progress=False)


@pytest.fixture(scope="session")
def embedder_model(_clean_settings: None) -> Path:
    """Folder of all-MiniLM-L6-v2; fetched on first use, never skipped."""
    return models.ensure("all-MiniLM-L6-v2", progress=False)


@pytest.fixture(scope="session")
def without_root() -> Callable[[Path], AbstractContextManager[Path]]:
    """``with without_root(folder)``: the test owns ``folder`` and obeys permissions; the folder is removed after."""

    @contextmanager
    def dropped(folder: Path) -> Iterator[Path]:
        root = os.geteuid() == 0
        if root:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            for path in (folder, *folder.rglob("*")):
                if path.is_dir():
                    path.chmod(0o700)
            shutil.rmtree(folder)

    return dropped
