"""What is remembered, as text: facts, turns, history, and how they are extracted and stored."""

from inferscale_memory.facts.extraction import Coerced, Content, FactExtractor, VerbatimExtractor, coerce_items
from inferscale_memory.facts.models import (
    AddResult,
    Change,
    Fact,
    ItemError,
    NewFact,
    NewTurn,
    Page,
    Revision,
    StoredVector,
    Turn,
)
from inferscale_memory.facts.rows import check_metadata
from inferscale_memory.facts.store import FactStore

__all__ = [
    "AddResult",
    "Change",
    "Coerced",
    "Content",
    "Fact",
    "FactExtractor",
    "FactStore",
    "ItemError",
    "NewFact",
    "NewTurn",
    "Page",
    "Revision",
    "StoredVector",
    "Turn",
    "VerbatimExtractor",
    "check_metadata",
    "coerce_items",
]
