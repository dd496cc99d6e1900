"""Runs scripts on the shared engine, each with a user of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from asking import DIMENSIONS, FACTS, FLUSH, embed, remember
from entry_points import Entry
from scripted import Call, InPlainText, Scripted

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.handles import find_handles
from llama_index.memory.inferscale import InferScaleMemory

K = 4
RECENT = 2
"""Messages that are given word for word: the exchange before the question."""
QUESTIONS = (
    "What is my dog called?",
    "Which instrument do I play?",
    "Where was I born?",
    "What am I allergic to?",
    "How old is he?",
    "When do I play?",
    "When did I move?",
    "What do I carry?",
    "Where do I play?",
    "Where do I live now?",
)


def embed_apart(texts: Sequence[str]) -> np.ndarray:
    """Like ``embed``, with a part of each text's own: no two facts are equally near, so their order is settled."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts]
    own = [np.random.default_rng(seed).normal(0.0, 0.02, DIMENSIONS) for seed in seeds]
    return embed(texts) + np.asarray(own, dtype=np.float32)


@dataclass
class Played:
    """What came of a script."""

    answers: list[str] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    """Per turn."""
    searches: list[int] = field(default_factory=list)
    """Per turn."""
    kept: list[Any] = field(default_factory=list)

    @property
    def prompts(self) -> list[list[list[int]]]:
        """Token ids of every prompt, per turn."""
        return [[call.token_ids for call in turn] for turn in self.calls]


class Stage:
    """Runs scripts, each with a user of its own who is known by four facts."""

    def __init__(self, engine: LocalEngine, memory: Memory, user: str) -> None:
        self.engine = engine
        self.memory = memory
        self.searched: list[str] = []
        self._user = user
        recall = memory.recall

        def counted(query: str, *arguments: Any, **options: Any) -> Any:
            self.searched.append(query)
            return recall(query, *arguments, **options)

        memory.recall = counted  # type: ignore[method-assign]

    def user(self, side: str) -> str:
        """A user, and the facts about her."""
        user = f"{self._user}-{side}"
        remember(self.memory, FACTS, user)
        return user

    def conversation(self, user: str, **fields: Any) -> InferScaleMemory:
        """A conversation of a user."""
        options = {"k": K, "recent_turns": RECENT, "refresh": 0, "timeout": 60.0, **fields}
        return InferScaleMemory.from_defaults(memory=self.memory, user_id=user, **options)

    def llm(self, entry: Entry, *, plain: bool = False) -> Scripted:
        """The model for a script."""
        options: dict[str, Any] = {"engine": self.engine, "temperature": 0, "steer": entry.steer}
        return InPlainText(memory=self.memory, **options) if plain else Scripted(**options)

    async def play(self, entry: Entry, mode: str, turns: int, *, side: str, refresh: int = 0) -> Played:
        """Ask one question after the other; what was said is encoded between them."""
        user = self.user(side)
        conversation = self.conversation(user, refresh=refresh)
        llm = self.llm(entry, plain=side == "plain")
        say = entry.build(llm, conversation, mode)
        played = Played()
        for question in QUESTIONS[:turns]:
            llm.calls.clear()
            self.searched.clear()
            played.answers.append(await say(question))
            played.calls.append([*llm.calls])
            played.searches.append(len(self.searched))
            assert not self.memory.flush(FLUSH, user_id=user).parked
        played.kept = conversation.get_all()
        return played

    def assert_injected(self, call: Call) -> None:
        """Everything up to the end of the facts came from KV, less what vLLM's own prefix cache still had."""
        assert len(call.recalled) == K
        assert call.reach > call.facts > 0
        assert call.kv["injected"] == max(0, call.reach - call.kv["local_hit"]), call.kv
        assert call.kv["injected"] + call.kv["local_hit"] >= call.reach
        assert call.kv["fallback_reason"] is None


def assert_no_handle_in(texts: list[str]) -> None:
    assert [handle for text in texts for handle in find_handles(text)] == []
