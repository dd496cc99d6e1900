"""One multi-process engine for the whole session; every test has a memory of its own on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import embed

from inferscale_memory import LocalEngine, Memory

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
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
    """The demo model, scheduler and worker in processes of their own, native prefix caching on."""
    home = tmp_path_factory.mktemp("engine-home")
    options = {"max_model_len": 2048, "enable_prefix_caching": True}
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
