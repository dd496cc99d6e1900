"""What every test has: an own empty home, the demo models, no network, few threads, and one engine per session."""

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
from typing import Any

import pytest
from asking import embed

from inferscale_memory import LocalEngine, Memory, models
from inferscale_memory.config import ENV_PREFIX, load_settings

ROOT = Path(__file__).resolve().parents[1]

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


@pytest.fixture(scope="session")
def _engine_environment() -> Iterator[None]:
    """The engine's processes find the packages of this checkout, installed or not, and add up in one order only."""
    with pytest.MonkeyPatch.context() as patch:
        # vLLM's CPU attention may share out the keys of a lone last row between threads, depending on what else is in
        # the step: plain decoding then moves by up to 0.4 in log-probability. Off, any difference seen here is ours.
        patch.setenv("VLLM_CPU_ATTN_SPLIT_KV", "0")
        known = os.environ.get("PYTHONPATH")
        paths = [str(ROOT), str(ROOT / "kernels"), *([known] if known else [])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture(scope="session")
def engine(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory, _engine_environment: None
) -> Iterator[LocalEngine]:
    """The demo model, scheduler and worker in processes of their own, native prefix caching on, answers forcible."""
    from inferscale_memory.serving.forced import PROCESSOR

    home = tmp_path_factory.mktemp("engine-home")
    options = {"max_model_len": 2048, "enable_prefix_caching": True, "logits_processors": [PROCESSOR]}
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    with LocalEngine(demo_model, home=home, **options, **tools) as engine:
        assert engine.unsupported is None, engine.unsupported
        yield engine


@pytest.fixture
def open_memory(tmp_path: Path) -> Iterator[Callable[..., Memory]]:
    """Opens memories on an engine, each with a database of its own; closed when the test ends."""
    opened: list[Memory] = []

    def open_memory(engine: LocalEngine, **options: Any) -> Memory:
        options.setdefault("database_url", f"sqlite:///{tmp_path}/facts-{len(opened)}.db")
        memory = Memory(engine, embedder=embed, index="numpy", **options)
        opened.append(memory)
        return memory

    yield open_memory
    for memory in opened:
        memory.close()


@pytest.fixture
def memory_for(engine: LocalEngine, open_memory: Callable[..., Memory]) -> Callable[..., Memory]:
    """``memory_for(policy=...)``: a memory on the session's engine; the KV folder is the engine's own."""

    def memory_for(policy: str | None = None, **options: Any) -> Memory:
        return open_memory(engine, policy=policy, **options)

    return memory_for


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """A user that no other test has, so that no chunk, preamble or native block is there before."""
    return f"user-of-{request.node.name}"
