"""What the instrumentation is told beside LlamaIndex's own events."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.events import BaseEvent


class InferScaleRecallEvent(BaseEvent):
    """An answer is whole: which facts were in its prompt, and where the prompt's tokens came from.

    Args:
        model: the engine's model.
        kv: tokens ``{injected, local_hit, prefilled, fallback_reason}``.
        recalled: the facts in prompt order, ``[{"id", "score"}]``, with the cosine of their recall.
    """

    model: str
    kv: dict[str, Any]
    recalled: list[dict[str, Any]]

    @classmethod
    def class_name(cls) -> str:
        """Name of this kind of event."""
        return "InferScaleRecallEvent"
