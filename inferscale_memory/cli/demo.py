"""``inferscale demo``."""

from __future__ import annotations

from collections.abc import Mapping

from inferscale_memory.cli.options import Home, Json, Model
from inferscale_memory.cli.output import emit, stdout_reserved
from inferscale_memory.cli.session import stay_offline
from inferscale_memory.config import load_settings

EXAMPLE = "Example: inferscale demo --json"


def demo(model: Model = None, home: Home = None, json: Json = False) -> None:
    """Remember a conversation, restart the engine, answer from KV handles beside plain prefill."""
    settings = load_settings(home)
    name = model or settings.model
    stay_offline(name, settings.embedder)
    from inferscale_memory import demo as script

    if not json:
        script.run(model=name, home=home, json=False)
        return
    with stdout_reserved():
        result = script.run(model=name, home=home, json=True)
    if isinstance(result, Mapping):
        emit(result)
