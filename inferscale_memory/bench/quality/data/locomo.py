"""LoCoMo (Maharana et al., ACL 2024): conversations over months, with questions of five kinds about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferscale_memory.bench.quality.data.types import Conversation, DataSet, FactKind, Question, answer_problem
from inferscale_memory.encoding._formats import BadItem, SourceItem, text_problem
from inferscale_memory.encoding._locomo import evidence_ids, locomo

ADVERSARIAL = "5"
CATEGORIES = {"1": "multi-hop", "2": "temporal", "3": "open-domain", "4": "single-hop", ADVERSARIAL: "adversarial"}


def read_locomo(document: Any, name: str, facts: FactKind = "observations") -> DataSet:
    """Read one conversation, or a list of them, in either published shape.

    Args:
        document: as parsed.
        name: of the file, for conversations without a ``sample_id``.
        facts: remember the observations, with the turns as context, or every turn.
    """
    data = DataSet(category_names=dict(CATEGORIES), unanswerable={ADVERSARIAL})
    conversations = document if isinstance(document, list) else [document]
    for index, whole in enumerate(conversations):
        if not isinstance(whole, dict):
            data.errors.append(f"{name}: conversation {index} is a {type(whole).__name__}, not an object")
            continue
        own = str(whole.get("sample_id") or (name if len(conversations) == 1 else f"{name}/{index}"))
        one = DataSet()
        items = []
        for item in locomo([whole]):
            if isinstance(item, BadItem):
                one.errors.append(f"{own}: {item.reason}")
            elif used := _used(item, facts):
                items.append(used)
        one.conversations.append(Conversation(own, tuple(items)))
        asked = whole.get("qa")
        for number, entry in enumerate(asked if isinstance(asked, list) else (), 1):
            found = _question(entry, own, number)
            if isinstance(found, str):
                one.errors.append(f"{own}: question {number}: {found}")
            else:
                one.questions.append(found)
        data.add(one)
    return data


def _used(item: SourceItem, facts: FactKind) -> SourceItem | None:
    """The item as it is to be remembered."""
    if facts == "observations":
        return item
    return replace(item, kind="message") if item.kind == "turn" else None


def _question(entry: Any, conversation: str, number: int) -> Question | str:
    """A question, or why it cannot be used."""
    if not isinstance(entry, dict):
        return f"it is a {type(entry).__name__}, not an object"
    if problem := text_problem(entry.get("question")):
        return problem
    category = str(entry.get("category", ""))
    answer = entry.get("answer")
    if answer is None and category == ADVERSARIAL:
        answer = entry.get("adversarial_answer")
    if problem := answer_problem(answer):
        return problem
    return Question(
        id=f"{conversation}/{number}",
        conversation=conversation,
        text=entry["question"],
        answer=str(answer),
        category=category,
        evidence=frozenset(evidence_ids(entry.get("evidence"))),
    )
