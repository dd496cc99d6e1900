"""Folders of small random models, one per architecture and session."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_models import NAMED, VARIANTS, dtype_of, write_model

from inferscale_memory import LocalEngine


@pytest.fixture(scope="session")
def model_folder(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``model_folder(name)``: a random model of a named architecture, or the demo model as ``"smollm2"``."""
    made = {"smollm2": demo_model}

    def model_folder(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("model") / "model"
            made[name] = write_model({**NAMED, **VARIANTS}[name](), folder, dtype=dtype_of(name))
        return made[name]

    return model_folder


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``with start(folder, **options) as engine``: an engine with a home of its own, in this process by default."""

    @contextmanager
    def start(folder: Path, **options: Any) -> Iterator[LocalEngine]:
        options = {"in_process": True, "max_model_len": 2048, "max_num_batched_tokens": 2048, **options}
        with LocalEngine(folder, home=tmp_path_factory.mktemp("home"), **options) as engine:
            yield engine
        # The next engine of this process shall find the memory of this one free.
        del engine
        gc.collect()

    return start
