"""From what a file holds to what the fact store takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferscale_memory.encoding.sources import SourceItem
from inferscale_memory.facts import NewFact, NewTurn, VerbatimExtractor
from inferscale_memory.handles import strip_handles


def entries(batch: Sequence[SourceItem]) -> tuple[list[NewTurn], list[NewFact]]:
    """Turns and facts as a file names them: with their sources, speakers and times; ``index`` is the place in it."""
    turns: list[NewTurn] = []
    facts: list[NewFact] = []
    for index, item in enumerate(batch):
        text = strip_handles(item.text)
        common: dict[str, Any] = {"speaker": item.speaker, "created_at": item.time, "index": index}
        if item.kind == "fact":
            facts.append(NewFact(text, metadata=item.metadata or None, turn_ids=item.turn_ids, **common))
            continue
        own_id = item.turn_ids[0] if item.turn_ids else item.id
        turns.append(NewTurn(item.role or "user", text, id=own_id, **common))
        if item.kind == "message":
            found = VerbatimExtractor().extract(turns[-1:])
            facts += [replace(fact, metadata=item.metadata or None) for fact in found]
    return turns, facts
