"""Many questions at once: embedded together, searched together, each on its own account."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from inferscale_memory import InvalidInputError, ScopeError
from inferscale_memory.retrieval import CallableEmbedder
from tests.unit.memory.toys import embed

USERS = [{"user_id": name} for name in ("alice", "bob", "carol")]


class Counting:
    """Counts calls; a text that holds "poison" fails; with a gate shut, every call waits."""

    id, dim = "counting@1", 256

    def __init__(self):
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._plain = CallableEmbedder(embed, self.id, self.dim)

    def embed(self, texts) -> np.ndarray:
        self.calls.append(list(texts))
        self.entered.set()
        assert self.gate.wait(30)
        if any("poison" in text for text in texts):
            raise RuntimeError("cannot digest it")
        return self._plain.embed(texts)


@pytest.fixture
def embedder():
    return Counting()


@pytest.fixture
def memory(opened, embedder):
    memory = opened(embedder=embedder)
    for scope in USERS:
        memory.add([f"my {thing} of {scope['user_id']}" for thing in ("dog", "cat", "tea")], **scope)
    memory.recall("warm", **USERS[0])
    embedder.calls.clear()
    return memory


def texts(handle):
    return [scored.fact.text for scored in handle.facts]


def test_many_questions_are_embedded_in_one_call_and_find_what_each_would_alone(memory, embedder):
    questions = ["my dog", "my cat", "my tea"]
    handles = memory.recall_many(questions, USERS, 2, 1)
    assert embedder.calls == [questions]
    assert handles.errors == ()
    for question, scope, handle in zip(questions, USERS, handles, strict=True):
        assert handle == memory.recall(question, 2, 1, **scope)
        assert {fact.fact.scope.user for fact in memory.explain(handle).facts} == {scope["user_id"]}


def test_one_scope_may_stand_for_all(memory):
    handles = memory.recall_many(["my dog", "my tea"], {"user_id": "bob"}, 1)
    assert [texts(handle) for handle in handles] == [["my dog of bob"], ["my tea of bob"]]


def test_a_question_that_fails_is_named_and_spoils_no_other(memory, embedder):
    handles = memory.recall_many(["my dog", "poison", " ", "my tea", "\ud800"], {"user_id": "bob"}, 1)
    assert [texts(handle) for handle in handles] == [["my dog of bob"], [], [], ["my tea of bob"], []]
    reasons = {error.index: error.reason for error in handles.errors}
    assert list(reasons) == [1, 2, 4]
    assert "cannot digest it" in reasons[1]
    assert "blank" in reasons[2]
    assert "lone surrogate" in reasons[4]
    assert handles.errors[0].preview == "poison"
    assert memory.explain(handles[1]).facts == ()


def test_no_question_has_no_handle(memory):
    assert memory.recall_many([], []) == []


def test_a_scope_that_is_none_fails_the_call(memory, embedder):
    with pytest.raises(ScopeError, match="blank"):
        memory.recall_many(["a", "b"], [{"user_id": "alice"}, {"user_id": " "}])
    with pytest.raises(TypeError, match="unexpected keyword userid"):
        memory.recall_many(["a"], {"userid": "alice"})
    assert embedder.calls == []


def test_each_question_needs_a_scope(memory):
    with pytest.raises(InvalidInputError, match="2 queries and 1 scopes; want one scope for each"):
        memory.recall_many(["a", "b"], [{"user_id": "alice"}])


def test_one_question_is_no_list_of_its_letters(memory):
    with pytest.raises(InvalidInputError, match="queries is a str; wanted a list of questions"):
        memory.recall_many("dog", USERS)


async def test_questions_asked_while_others_are_embedded_go_together_next(memory, embedder):
    embedder.gate.clear()
    embedder.entered.clear()
    first = asyncio.create_task(memory.arecall("my dog", 1, **USERS[0]))
    assert await asyncio.to_thread(embedder.entered.wait, 30)
    others = [asyncio.create_task(memory.arecall(f"my cat {n}", 1, **USERS[n % 3])) for n in range(30)]
    await asyncio.sleep(0)
    assert embedder.calls == [["my dog"]]
    embedder.gate.set()
    handles = await asyncio.gather(first, *others)
    assert [len(call) for call in embedder.calls] == [1, 30]
    assert texts(handles[0]) == ["my dog of alice"]
    assert [texts(handle) for handle in handles[1:4]] == [["my cat of alice"], ["my cat of bob"], ["my cat of carol"]]


async def test_a_failing_question_in_a_shared_batch_fails_alone(memory, embedder):
    embedder.gate.clear()
    embedder.entered.clear()
    tasks = [asyncio.create_task(memory.asearch("my dog", 1, **USERS[0]))]
    assert await asyncio.to_thread(embedder.entered.wait, 30)
    tasks += [asyncio.create_task(memory.asearch(text, 1, **USERS[1])) for text in ("poison", "my tea")]
    await asyncio.sleep(0)
    embedder.gate.set()
    dog, poison, tea = await asyncio.gather(*tasks, return_exceptions=True)
    assert (dog[0].fact.text, tea[0].fact.text) == ("my dog of alice", "my tea of bob")
    assert "cannot digest it" in str(poison)


async def test_a_question_whose_caller_went_away_is_not_embedded(memory, embedder):
    embedder.gate.clear()
    embedder.entered.clear()
    first = asyncio.create_task(memory.arecall("my dog", 1, **USERS[0]))
    assert await asyncio.to_thread(embedder.entered.wait, 30)
    gone, stays = (asyncio.create_task(memory.arecall(text, 1, **USERS[0])) for text in ("gone", "my tea"))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    embedder.gate.set()
    await asyncio.gather(first, stays)
    assert embedder.calls == [["my dog"], ["my tea"]]


async def test_the_async_form_gives_the_same_handles(memory):
    questions = ["my dog", "my cat", "my tea"]
    assert await memory.arecall_many(questions, USERS, 2) == memory.recall_many(questions, USERS, 2)
