"""The three packages stand in LlamaIndex's namespace, need llama-index-core only, and say so where it is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = ROOT / "integrations" / "llama_index"
HEAVY = ("torch", "vllm", "transformers", "sentence_transformers", "faiss")
PACKAGES = {
    "llama_index.llms.inferscale": ["InferScale", "InferScaleRecallEvent"],
    "llama_index.memory.inferscale": ["InferScaleMemory", "InferScaleMemoryBlock"],
    "llama_index.retrievers.inferscale": ["InferScaleQueryEngine", "InferScaleRetriever"],
}
BLOCKED = """
import sys
sys.path[:0] = {paths!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
PATHS = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "integrations")]


def run(code: str, *blocked: str) -> str:
    code = BLOCKED.format(paths=PATHS, blocked=blocked) + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_packages_need_no_engine_and_no_langchain() -> None:
    code = "".join(f"from {package} import {', '.join(names)}\n" for package, names in PACKAGES.items())
    assert run(code + "print('there')", *HEAVY, "langchain_core", "langchain_inferscale") == "there"


@pytest.mark.parametrize("package", PACKAGES)
def test_without_llama_index_the_extra_is_named(package: str) -> None:
    code = f"try: import {package}\nexcept ImportError as error: print(type(error).__name__, error)\n"
    said = run(code, "llama_index.core")
    assert said.startswith(f"MissingExtraError {package}")
    assert "pip install 'inferscale-memory[llama-index]'" in said


def test_the_namespace_is_nobody_s() -> None:
    """A file there would hide llama-index-core, or every other package of the kind."""
    assert [path.name for path in NAMESPACE.glob("*.py")] == []
    assert [path.name for path in NAMESPACE.glob("*/*.py")] == []
    assert {path.parent.relative_to(NAMESPACE).as_posix() for path in NAMESPACE.glob("*/*/py.typed")} == {
        package.removeprefix("llama_index.").replace(".", "/") for package in PACKAGES
    }


def test_the_wheel_has_the_packages_and_llama_hub_their_classes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert "integrations/llama_index" in project["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert project["llamahub"]["import_path"] in PACKAGES
    classes = {name for names in PACKAGES.values() for name in names if not name.endswith("Event")}
    assert set(project["llamahub"]["class_authors"]) == classes
