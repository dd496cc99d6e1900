"""What is measured on: conversations to remember, and questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from inferscale_memory.encoding._formats import SourceItem
from inferscale_memory.scope import digest

FactKind = Literal["observations", "turns"]
FACT_KINDS: tuple[FactKind, ...] = ("observations", "turns")
UNNAMED_CATEGORY = ""


@dataclass(frozen=True)
class Conversation:
    """One user's memory.

    Attributes:
        id: unique in its data set.
        items: facts, messages that become facts, and turns that are context only; in the order they were said.
    """

    id: str
    items: tuple[SourceItem, ...]

    @cached_property
    def digest(self) -> str:
        """Names the content, 64 hex digits."""
        parts = [[item.kind, item.role or "", item.speaker or "", item.text, *item.turn_ids] for item in self.items]
        return digest("conversation", *(digest("item", *part) for part in parts))

    @property
    def user(self) -> str:
        """User id under which it is remembered: another for other content."""
        return f"{self.id[:60]}-{self.digest[:16]}"


@dataclass(frozen=True)
class Question:
    """One question about a conversation.

    Attributes:
        id: unique in its data set.
        conversation: id of the conversation it is about.
        text: the question.
        answer: the gold answer; None measures over the model's own answer behind the whole prompt as text.
        category: its kind, such as LoCoMo's ``"1"`` for multi-hop.
        evidence: names of the facts that answer it: turn ids, or ids of facts.
    """

    id: str
    conversation: str
    text: str
    answer: str | None
    category: str = UNNAMED_CATEGORY
    evidence: frozenset[str] = frozenset()


@dataclass
class DataSet:
    """Conversations, the questions about them, and what could not be used, each with its reason.

    ``category_names`` says what categories mean, where the data does not; ``unanswerable`` are those whose answers
    stand in no conversation.
    """

    conversations: list[Conversation] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    category_names: dict[str, str] = field(default_factory=dict)
    unanswerable: set[str] = field(default_factory=set)

    def add(self, other: DataSet) -> None:
        """Take over what another holds; conversations of the same content are one.

        A conversation or question whose id is taken already gets a number behind it.
        """
        taken = {conversation.id: conversation.digest for conversation in self.conversations}
        renamed: dict[str, str] = {}
        for conversation in other.conversations:
            name = _free(conversation.id, {id for id, seen in taken.items() if seen != conversation.digest})
            renamed[conversation.id] = name
            if name not in taken:
                taken[name] = conversation.digest
                self.conversations.append(Conversation(name, conversation.items))
        ids = {question.id for question in self.questions}
        for question in other.questions:
            name = _free(question.id, ids)
            ids.add(name)
            self.questions.append(replace(question, id=name, conversation=renamed[question.conversation]))
        self.errors.extend(other.errors)
        self.category_names.update(other.category_names)
        self.unanswerable |= other.unanswerable


def answer_problem(answer: object) -> str | None:
    """Why a gold answer cannot be used, or None: it is a text that is not blank, or a number."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        return f"its answer is {answer!r}; wanted a text or a number"
    return None


def _free(name: str, taken: set[str]) -> str:
    """The name, or the name with the first number that makes it a new one."""
    if name not in taken:
        return name
    return next(other for number in range(2, len(taken) + 3) if (other := f"{name}#{number}") not in taken)


def category_order(categories: Sequence[str]) -> list[str]:
    """Categories once each: numbers by size, then names."""
    return sorted(set(categories), key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
