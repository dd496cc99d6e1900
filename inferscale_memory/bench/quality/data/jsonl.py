"""A format of our own, one JSON object a line: facts to remember, and questions about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from inferscale_memory.bench.quality.data.types import Conversation, DataSet, Question, answer_problem
from inferscale_memory.encoding._formats import SourceItem, text_problem

ONE_USER = "user"


def read_jsonl(lines: Iterable[str]) -> DataSet:
    """Read facts and questions, in any order; facts are remembered in the order of their lines.

    A fact is ``{"fact": TEXT, "id": NAME, "user": WHOSE}``, a question ``{"question": TEXT, "answer": TEXT, "user":
    WHOSE, "category": NAME, "evidence": [NAMES OF FACTS]}``; all but fact, question and answer may be left out.
    """
    facts: dict[str, list[SourceItem]] = {}
    questions: list[Question] = []
    data = DataSet()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _line(line, number)
        if isinstance(found, str):
            data.errors.append(f"line {number}: {found}")
        elif isinstance(found, Question):
            questions.append(found)
        else:
            user, item = found
            facts.setdefault(user, []).append(item)
    data.conversations = [Conversation(user, tuple(items)) for user, items in facts.items()]
    for question in questions:
        if question.conversation in facts:
            data.questions.append(question)
        else:
            data.errors.append(f"line {question.id}: there is no fact of its user {question.conversation!r}")
    return data


def _line(line: str, number: int) -> Question | tuple[str, SourceItem] | str:
    """A question, a user's fact, or why it is neither."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if not isinstance(entry, dict) or ("fact" in entry) == ("question" in entry):
        return "wanted an object with either 'fact' or 'question'"
    user = entry.get("user", ONE_USER)
    if not isinstance(user, str) or not user.strip():
        return f"its user is {user!r}; wanted a text"
    if problem := text_problem(entry.get("fact", entry.get("question"))):
        return problem
    if "fact" in entry:
        own = entry.get("id")
        return user, SourceItem(kind="fact", text=entry["fact"], line=number, id="" if own is None else str(own))
    return _question(entry, user, number)


def _question(entry: dict[str, Any], user: str, number: int) -> Question | str:
    answer, evidence = entry.get("answer"), entry.get("evidence") or []
    if problem := answer_problem(answer):
        return problem
    if not isinstance(evidence, list):
        return f"its evidence is a {type(evidence).__name__}, not a list of ids"
    category = str(entry.get("category", ""))
    names = frozenset(str(name) for name in evidence)
    return Question(str(number), user, entry["question"], str(answer), category, names)
