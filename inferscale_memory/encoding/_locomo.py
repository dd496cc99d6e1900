"""LoCoMo conversations (Maharana et al., ACL 2024): turns, and observations with the turns that are their evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from inferscale_memory.encoding._formats import BadItem, SourceItem, text_problem

_SESSION = re.compile(r"session_(\d+)")
_SESSION_TIME = "%I:%M %p on %d %B, %Y"


def is_locomo(document: Any) -> bool:
    """One conversation in either published shape, or a list of them."""
    first = document[0] if isinstance(document, list) and document else document
    if not isinstance(first, dict):
        return False
    inner = first.get("conversation", first)
    return isinstance(inner, dict) and any(_SESSION.fullmatch(key) and isinstance(inner[key], list) for key in inner)


def locomo(document: Any, *, by_session: bool = False) -> Iterator[SourceItem | BadItem]:
    """Per session: its turns, then its observations as facts with the turns that are their evidence.

    A conversation is one memory: what was said in one session is context of the next, and a question sees all of them.
    Its sessions stand in the facts' metadata. Where a file holds several conversations, each has its ``sample_id`` as
    session id, and in front of its turn ids (``D1:3``), which are unique within a conversation only.

    Args:
        document: as parsed.
        by_session: give every session an id of its own instead; then none is context of another.
    """
    conversations = document if isinstance(document, list) else [document]
    number = 0
    for index, whole in enumerate(conversations):
        name = str(whole.get("sample_id", index)) if len(conversations) > 1 and isinstance(whole, dict) else ""
        if not isinstance(whole, dict):
            number += 1
            yield BadItem(number, f"the conversation is a {type(whole).__name__}, not an object")
            continue
        talk = whole.get("conversation", whole)
        observations = whole.get("observation", whole)
        for session in sorted(int(m[1]) for key in talk if (m := _SESSION.fullmatch(key))):
            noted = observations.get(f"session_{session}_observation")
            for found in _locomo_session(session, talk, noted, name, by_session):
                number += 1
                if isinstance(found, str):
                    yield BadItem(number, f"session {session}: {found}")
                else:
                    yield SourceItem(line=number, **found)


def locomo_time(text: str) -> datetime:
    """Parse LoCoMo's session times, such as ``1:56 pm on 8 May, 2023``; taken as UTC.

    Raises:
        ValueError: it is not of this form.
    """
    return datetime.strptime(text.strip(), _SESSION_TIME).replace(tzinfo=UTC)


def _locomo_session(
    session: int, talk: dict[str, Any], noted: Any, name: str, by_session: bool
) -> Iterator[dict[str, Any] | str]:
    """Fields of each item of one session, or why an item is bad. ``name`` is the conversation's, if it needs one."""
    if not isinstance(talk[f"session_{session}"], list):
        yield "its turns are not a list"
        return
    prefix = f"{name}/" if name else ""
    scope = {"session_id": name} if name else {}
    if by_session:
        scope = {"session_id": f"{prefix}session_{session}"}
    time = None
    try:
        time = locomo_time(talk[f"session_{session}_date_time"])
    except (KeyError, ValueError, AttributeError):
        yield "no readable 'date_time'; its items have no time"
    for turn in talk[f"session_{session}"]:
        problem = text_problem(turn.get("text") if isinstance(turn, dict) else turn)
        if problem or not isinstance(turn, dict):
            yield f"turn {turn.get('dia_id') if isinstance(turn, dict) else '?'}: {problem or 'not an object'}"
            continue
        ids: tuple[str, ...] = (f"{prefix}{turn['dia_id']}",) if "dia_id" in turn else ()
        yield {"kind": "turn", "text": turn["text"], "scope": scope, "role": "user", "speaker": turn.get("speaker"),
               "turn_ids": ids, "time": time}  # fmt: skip
    for speaker, observations in noted.items() if isinstance(noted, dict) else ():
        for observation in observations if isinstance(observations, list) else [observations]:
            text, evidence = (*observation, None, None)[:2] if isinstance(observation, list) else (observation, None)
            if problem := text_problem(text):
                yield f"observation of {speaker}: {problem}"
                continue
            ids = tuple(f"{prefix}{i}" for i in evidence_ids(evidence))
            yield {"kind": "fact", "text": text, "scope": scope, "speaker": speaker, "turn_ids": ids, "time": time,
                   "metadata": {"session": session}}  # fmt: skip


def evidence_ids(value: Any) -> list[str]:
    """Turn ids from ``"D1:3"``, ``"D1:3, D1:5"`` or ``["D1:3", "D1:5"]``."""
    listed = value if isinstance(value, list) else [value]
    return [turn for entry in listed if isinstance(entry, str) for turn in re.findall(r"D\d+:\d+", entry)]
