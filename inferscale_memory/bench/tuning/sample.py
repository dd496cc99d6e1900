"""What is tuned on: a part of a user's own memory, which is only read, and questions about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from urllib.parse import quote

from sqlalchemy import URL, Engine
from sqlalchemy.engine import make_url

from inferscale_memory.bench.quality.data import Conversation, DataSet, Question
from inferscale_memory.config import Settings
from inferscale_memory.db import open_database
from inferscale_memory.encoding.sources import SourceItem
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts import Fact, FactStore, Turn
from inferscale_memory.scope import Scope

PAGE = 1_000
NAME = "memory"
QUESTION_MARKS = ("?", "？", "؟")
ASKED, SAID, CUE = "asked", "said", "cue"
"""Categories of questions: given by the caller, found among the user's messages, the beginning of a fact."""


def sample_memory(
    settings: Settings, scope: Scope, *, facts: int, questions: int, asked: Sequence[str] = (), seed: int = 0
) -> DataSet:
    """Read the newest facts of a scope, with the turns that they came from, and find questions.

    Questions are those given, else what the user asked in the turns (a question mark), filled up with the beginnings of
    facts: the first half of a fact asks for the rest. None has a gold answer, and none needs one.

    Args:
        settings: of the memory; its database is opened for reading only.
        scope: whose.
        facts: how many, at most.
        questions: how many, at most.
        asked: questions of the caller's.
        seed: the same seed gives the same questions.

    Returns:
        One conversation, which holds the ids and texts of the memory; it is not for keeping.

    Raises:
        InvalidInputError: nothing is remembered in this scope.
        StoreError: the database cannot be read.
    """
    if settings.database_url is None and not (settings.memory_folder / "facts.db").exists():
        raise InvalidInputError(f"there is no memory in {settings.memory_folder}. Save facts first, or give --data.")
    database = open_for_reading(settings)
    try:
        store = FactStore(database)
        newest = _newest(store, scope, facts)
        if not newest:
            raise InvalidInputError(f"nothing is remembered for {scope}; there is nothing to tune on.")
        turns = [turn for turn in store.turns(scope) if turn.text.strip()]
    finally:
        database.dispose()
    found = [Question(f"{ASKED} {at}", NAME, text, None, ASKED) for at, text in enumerate(asked)]
    if not found:
        found = _said(turns, questions, seed)
        found += _cues(newest, questions - len(found), seed)
    return DataSet([Conversation(NAME, tuple(_items(newest, turns)))], found[:questions], [])


def open_for_reading(settings: Settings) -> Engine:
    """The memory's database; SQLite itself refuses every write, and nothing is migrated or tidied."""
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database and not url.database.startswith("file:"):
        file = f"file:{quote(url.database)}"
        return open_database(URL.create("sqlite", database=file, query={"mode": "ro", "uri": "true"}))
    return open_database(settings.database)


def _newest(store: FactStore, scope: Scope, count: int) -> list[Fact]:
    """The newest facts, oldest first."""
    found: list[Fact] = []
    cursor: str | None = None
    while True:
        page = store.list(scope, limit=PAGE, cursor=cursor)
        found = [*found, *page.facts][-count:]
        cursor = page.next_cursor
        if cursor is None:
            return found


def _items(facts: Sequence[Fact], turns: Sequence[Turn]) -> list[SourceItem]:
    """Facts in saved order, before each the turns that were said up to it."""
    place = {turn.id: at for at, turn in enumerate(turns)}
    items: list[SourceItem] = []
    said = 0
    for fact in facts:
        sources = tuple(turn_id for turn_id in fact.turn_ids if turn_id in place)
        until = max((place[turn_id] + 1 for turn_id in sources), default=0)
        for turn in turns[said:until]:
            items.append(SourceItem("turn", turn.text, len(items), role=turn.role, speaker=turn.speaker,
                                    turn_ids=(turn.id,), time=turn.created_at, id=turn.id))  # fmt: skip
        said = max(said, until)
        items.append(SourceItem("fact", fact.text, len(items), speaker=fact.speaker, turn_ids=sources,
                                time=fact.created_at, id=fact.id))  # fmt: skip
    return items


def _said(turns: Sequence[Turn], count: int, seed: int) -> list[Question]:
    """What the user asked, each text once."""
    texts = dict.fromkeys(
        turn.text.strip() for turn in turns if turn.role == "user" and turn.text.rstrip().endswith(QUESTION_MARKS)
    )
    return [
        Question(f"{SAID} {at}", NAME, text, None, SAID) for at, text in enumerate(_drawn(list(texts), count, seed))
    ]


def _cues(facts: Sequence[Fact], count: int, seed: int) -> list[Question]:
    drawn = _drawn([fact.text for fact in facts], count, seed)
    return [Question(f"{CUE} {at}", NAME, f"{beginning(text)} …", None, CUE) for at, text in enumerate(drawn)]


def beginning(text: str) -> str:
    """The first half of a text, at a word's end where it has words."""
    words = text.split()
    if len(words) >= 4:
        return " ".join(words[: len(words) // 2])
    return text.strip()[: max(1, len(text.strip()) // 2)]


def _drawn(texts: list[str], count: int, seed: int) -> list[str]:
    return random.Random(seed).sample(texts, max(0, min(count, len(texts))))
