"""The README's example is a file, and it runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "cookbook" / "quickstart.py"


def test_the_readme_shows_the_example_file_word_for_word() -> None:
    code = EXAMPLE.read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert code.strip() in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.engine
def test_the_example_answers_from_injected_facts_in_a_multi_process_engine(
    home: Path, demo_model: Path, embedder_model: Path
) -> None:
    environment = {**os.environ, "INFERSCALE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # A slow machine's vLLM may have a word about its shutdown after the answer.
    (answer,) = [line for line in done.stdout.splitlines() if "fallback_reason" in line]
    assert "Rex" in answer
    assert "'injected': 34" in answer
    assert "'fallback_reason': None" in answer
