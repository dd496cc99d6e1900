"""Importing the library is cheap and needs none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inferscale_memory

ROOT = Path(inferscale_memory.__file__).parent.parent
HEAVY = ("torch", "vllm", "transformers", "sentence_transformers", "faiss", "sqlalchemy", "numpy", "safetensors")

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_no_heavy_package() -> None:
    loaded = run("import sys, inferscale_memory; print(*sorted({name.split('.')[0] for name in sys.modules}))").split()
    assert "inferscale_memory" in loaded
    assert set(HEAVY).isdisjoint(loaded)


def test_import_works_where_no_heavy_package_is_installed() -> None:
    code = BLOCKER.format(heavy=HEAVY) + "import inferscale_memory as m; print(m.Scope.of(user_id='alice').user)"
    assert run(code) == "alice"


def test_the_command_line_and_settings_load_no_heavy_package() -> None:
    code = BLOCKER.format(heavy=HEAVY) + (
        "from inferscale_memory.cli import main; from inferscale_memory.config import Settings; "
        "import inferscale_memory.models; print(Settings().k)"
    )
    assert run(code) == "10"


def test_every_public_name_is_listed_and_belongs_to_a_module() -> None:
    assert set(inferscale_memory.__all__) <= set(dir(inferscale_memory))
    eager = set(inferscale_memory.__all__) - {"__version__", *inferscale_memory._LAZY}
    assert all(hasattr(inferscale_memory, name) for name in eager)


def test_a_lazy_name_is_the_module_s_own() -> None:
    from inferscale_memory.config import Settings

    assert inferscale_memory.Settings is Settings


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Memoir'"):
        _ = inferscale_memory.Memoir


def test_every_error_derives_from_the_base_error() -> None:
    from inferscale_memory import errors

    raised = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(raised) > 10
    assert all(issubclass(error, errors.InferScaleError) for error in raised)
    assert {error.__name__ for error in raised} <= set(inferscale_memory.__all__)
