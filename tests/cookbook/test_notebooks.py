"""The notebooks of the cookbook run as they stand, and hold the outputs of such a run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.handles import find_handles

pytest.importorskip("nbclient", reason="running notebooks needs the extra 'notebooks'")

import nbformat
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "cookbook").glob("*.ipynb"))
CELL_SECONDS = 240
SHOWS_A_HANDLE = "shows-a-handle"
"""Tag of a cell whose text explains a handle."""
HOME = re.compile(r"""(?:^|[\s"'(\[=])(/(?:home|root|tmp|usr|opt|var|work|mnt|Users)/[^\s"')\]]*)""")
"""An absolute path of the machine a notebook was run on."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def texts_of(cell: Any) -> str:
    """Everything that a cell shows as text."""
    shown = []
    for output in cell.outputs:
        shown += [output.get("text", ""), *output.get("traceback", ())]
        shown += [data for kind, data in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(shown)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in; its kernel is this interpreter, finds this checkout, and reads no profile of the user's."""
    folder = tmp_path / "run"
    folder.mkdir()
    jupyter = tmp_path / "jupyter"
    (jupyter / "kernels").mkdir(parents=True)
    write_kernel_spec(str(jupyter / "kernels" / "python3"))
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(jupyter))
    paths = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "integrations"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return folder


def test_the_cookbook_has_its_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == [
        "01_quickstart.ipynb",
        "02_drop_in_for_conversation_buffer_memory.ipynb",
        "03_langchain_agent_with_memory.ipynb",
        "04_llamaindex_chat_engine.ipynb",
        "05_function_agent_with_memory.ipynb",
        "06_quality_dial.ipynb",
    ]


@pytest.mark.engine
@every_notebook
def test_it_runs_from_top_to_bottom_in_any_folder(
    path: Path, kernel: Path, home: Path, demo_model: Path, embedder_model: Path
) -> None:
    notebook = read(path)
    # A failing cell raises, with its source and its traceback.
    NotebookClient(
        notebook, kernel_name="python3", timeout=CELL_SECONDS, resources={"metadata": {"path": str(kernel)}}
    ).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for now, kept in zip(ran, code_cells(path), strict=True):
        assert now.outputs or not kept.outputs, f"cell {now.id!r} does not show any more what it is kept with"
    assert list(home.iterdir()) == [], "the notebook wrote into the memory of whoever runs it"
    assert list(kernel.iterdir()) == [], "the notebook left files in the folder it runs in"


@every_notebook
def test_every_cell_was_run_once_in_order(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@every_notebook
def test_every_cell_that_prints_or_plots_holds_what_it_showed(path: Path) -> None:
    for cell in code_cells(path):
        if "print(" in cell.source:
            assert texts_of(cell).strip(), f"cell {cell.id!r} was kept without its output"
        if "plt.show()" in cell.source:
            assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.id


@every_notebook
def test_no_output_is_an_error(path: Path) -> None:
    assert [cell.id for cell in code_cells(path) if any(out.output_type == "error" for out in cell.outputs)] == []


@every_notebook
def test_a_handle_is_shown_only_where_the_text_explains_one(path: Path) -> None:
    for cell in code_cells(path):
        explained = SHOWS_A_HANDLE in cell.metadata.get("tags", ())
        assert bool(find_handles(texts_of(cell))) == explained, cell.id
        assert not find_handles(cell.source)


@every_notebook
def test_nothing_of_the_machine_it_was_run_on_is_kept(path: Path) -> None:
    for cell in read(path).cells:
        text = cell.source + "\n" + (texts_of(cell) if cell.cell_type == "code" else "")
        assert HOME.findall(text) == [], cell.id
        assert set(cell.metadata) <= {"tags"}, cell.id
    assert read(path).metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


@every_notebook
def test_injection_is_asserted_in_the_notebook_itself(path: Path) -> None:
    asserted = [line for cell in code_cells(path) for line in cell.source.splitlines() if "assert" in line]
    assert any(re.search(r"injected\W+> 0", line) for line in asserted)


@pytest.mark.parametrize(
    "text", ["/root/x.py:3: Warning", "at '/tmp/ipykernel_1/2.py'", "home=/home/a/b", "(/usr/lib/x)"]
)
def test_a_path_of_a_machine_would_be_noticed(text: str) -> None:
    assert HOME.findall(text)
