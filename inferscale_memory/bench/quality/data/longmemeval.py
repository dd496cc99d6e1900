"""LongMemEval (Wu et al., ICLR 2025): each question has a history of chat sessions of its own."""

from __future__ import annotations

from typing import Any

from inferscale_memory.bench.quality.data.types import Conversation, DataSet, Question, answer_problem
from inferscale_memory.encoding._formats import SourceItem, text_problem


def read_longmemeval(document: Any) -> DataSet:
    """Read a list of questions with their histories; every message becomes a fact.

    Evidence are the messages marked ``has_answer``, or, where none is, those of the answer's sessions.

    Args:
        document: as parsed.
    """
    data = DataSet()
    for number, entry in enumerate(document, 1):
        found = _entry(entry, number)
        if isinstance(found, str):
            data.errors.append(f"question {number}: {found}")
        else:
            data.add(found)
    return data


def _entry(entry: Any, number: int) -> DataSet | str:
    """One question with its history, or why it cannot be used."""
    if not isinstance(entry, dict):
        return f"it is a {type(entry).__name__}, not an object"
    if problem := text_problem(entry.get("question")):
        return problem
    answer, sessions = entry.get("answer"), entry.get("haystack_sessions")
    if problem := answer_problem(answer):
        return problem
    if not isinstance(sessions, list):
        return f"its 'haystack_sessions' is a {type(sessions).__name__}, not a list"
    name = str(entry.get("question_id", number))
    one = DataSet()
    items: list[SourceItem] = []
    marked: set[str] = set()
    for at, session in enumerate(sessions):
        for turn, message in enumerate(session if isinstance(session, list) else [session]):
            own = f"{at}:{turn}"
            item = _message(message, own, len(items) + 1)
            if isinstance(item, str):
                one.errors.append(f"{name}: message {own}: {item}")
                continue
            items.append(item)
            if message.get("has_answer"):
                marked.add(own)
    evidence = marked or _of_sessions(entry, items)
    one.conversations.append(Conversation(name, tuple(items)))
    category = str(entry.get("question_type", ""))
    one.questions.append(Question(name, name, entry["question"], str(answer), category, frozenset(evidence)))
    return one


def _message(message: Any, own: str, line: int) -> SourceItem | str:
    """A message with its own id, or why it cannot be used."""
    if not isinstance(message, dict):
        return f"it is a {type(message).__name__}, not an object"
    if problem := text_problem(message.get("content")):
        return problem
    role = str(message.get("role") or "user")
    return SourceItem(kind="message", text=message["content"], line=line, role=role, turn_ids=(own,))


def _of_sessions(entry: dict[str, Any], items: list[SourceItem]) -> set[str]:
    """Ids of all messages of the sessions that hold the answer."""
    ids, wanted = entry.get("haystack_session_ids"), entry.get("answer_session_ids")
    if not isinstance(ids, list) or not isinstance(wanted, list):
        return set()
    places = {str(at) for at, session in enumerate(ids) if session in wanted}
    return {item.turn_ids[0] for item in items if item.turn_ids[0].split(":")[0] in places}
