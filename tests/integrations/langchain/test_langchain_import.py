"""Importing the integration needs langchain-core; what needs more names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import langchain_inferscale

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "vllm", "transformers", "sentence_transformers", "faiss")
OPTIONAL = ("langchain", "langchain_classic", "langgraph")
BLOCKED = """
import sys
sys.path[:0] = {paths!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
PATHS = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "integrations")]


def run(code: str, *blocked: str) -> str:
    code = BLOCKED.format(paths=PATHS, blocked=blocked) + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_loads_nothing_before_a_name_is_used() -> None:
    code = "import langchain_inferscale; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = run(code).split()
    assert {"langchain_core", "langchain", "langgraph", "langchain_classic", *HEAVY}.isdisjoint(loaded)


@pytest.mark.parametrize(
    "name",
    [
        "ChatInferScale",
        "InferScaleChatMessageHistory",
        "InferScaleLLM",
        "InferScaleRetriever",
        "ForgetMemoryTool",
        "SaveMemoryTool",
        "SearchMemoryTool",
        "format_handles",
        "kv_handles",
        "memory_tools",
    ],
)
def test_models_history_retriever_and_tools_need_langchain_core_only(name: str) -> None:
    code = f"import langchain_inferscale as m; print(m.{name}.__name__)"
    assert run(code, *OPTIONAL, *HEAVY) == name


@pytest.mark.parametrize(
    ("name", "extra"),
    [("InferScaleBufferMemory", "classic"), ("InferScaleMemoryMiddleware", "agents"), ("InferScaleStore", "agents")],
)
def test_what_needs_more_names_its_extra(name: str, extra: str) -> None:
    code = (
        "import langchain_inferscale\n"
        f"try: langchain_inferscale.{name}\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    said = run(code, *OPTIONAL)
    assert said.startswith("MissingExtraError")
    assert f"pip install 'inferscale-memory[{extra}]'" in said


def test_every_public_name_is_listed_and_loads() -> None:
    assert set(langchain_inferscale.__all__) == set(langchain_inferscale._LAZY)
    assert set(langchain_inferscale.__all__) <= set(dir(langchain_inferscale))
    assert all(hasattr(langchain_inferscale, name) for name in langchain_inferscale.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Memoir'"):
        _ = langchain_inferscale.Memoir
