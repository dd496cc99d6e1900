"""Each method's async twin does the same, and can be cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from inferscale_memory import FactNotFoundError, HandleError, InvalidInputError, Memory, ScopeError, StoreError
from inferscale_memory.sync_memory import SyncMemory
from tests.unit.memory.standin import StandIn

TWINS = [
    name
    for name, _ in inspect.getmembers(SyncMemory, inspect.isfunction)
    if not name.startswith("_") and name != "status"
]


@pytest.mark.parametrize("name", TWINS)
def test_every_method_has_a_twin_with_its_arguments(name):
    twin = getattr(Memory, f"a{name}")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(getattr(Memory, name))


async def test_the_twins_do_what_the_methods_do(opened):
    async with opened() as memory:
        result = await memory.aadd(["My dog is called Rex.", "", "I live in Graz."], metadata={"n": 1}, user_id="alice")
        dog, graz = result.facts
        assert [error.index for error in result.errors] == [1]
        assert await memory.aget(dog.id, user_id="alice") == dog == memory.get(dog.id, user_id="alice")
        assert await memory.alist(limit=1, user_id="alice") == memory.list(limit=1, user_id="alice")
        assert await memory.asearch("dog", 1, user_id="alice") == memory.search("dog", 1, user_id="alice")
        handle = await memory.arecall("dog", 2, 1, user_id="alice")
        assert await memory.aname(handle.facts, 1, user_id="alice") == handle
        assert handle == memory.recall("dog", 2, 1, user_id="alice")
        assert await memory.aexplain(handle) == memory.explain(handle)
        changed = await memory.aupdate(graz.id, text="I live in Wien.", user_id="alice")
        assert await memory.ahistory(graz.id, user_id="alice") == memory.history(graz.id, user_id="alice")
        assert (changed.text, changed.revision) == ("I live in Wien.", 2)
        assert await memory.aflush(1, user_id="alice") == memory.flush(1, user_id="alice")
        assert await memory.adelete(dog.id, user_id="alice") == dog
        assert await memory.adelete_all(user_id="alice") == 1
    with pytest.raises(StoreError, match="closed"):
        await memory.aadd("too late", user_id="alice")
    await memory.aclose()


async def test_the_twins_refuse_what_the_methods_refuse(memory):
    with pytest.raises(ScopeError):
        await memory.aadd("fact", user_id=" ")
    with pytest.raises(TypeError, match="unexpected keyword"):
        await memory.arecall("q", userid="alice")
    with pytest.raises(InvalidInputError):
        await memory.asearch("q", 0, user_id="alice")
    with pytest.raises(FactNotFoundError):
        await memory.adelete("nope", user_id="alice")
    with pytest.raises(HandleError):
        await memory.aexplain("⟦kv:abc⟧")


async def test_the_loop_goes_on_while_a_twin_works(opened):
    """Embedding waits for the loop: it could never end if the loop waited for it."""
    went_on = threading.Event()

    def embed(texts):
        assert went_on.wait(20)
        return [[1.0, 2.0]] * len(texts)

    memory = opened(embedder=embed)
    await memory.aadd("fact", user_id="alice")
    search = asyncio.create_task(memory.asearch("fact", user_id="alice"))
    await asyncio.sleep(0)
    went_on.set()
    assert len(await search) == 1


async def test_many_twins_at_once_lose_nothing(memory):
    await asyncio.gather(*(memory.aadd([f"fact {n}", "shared"], user_id="alice") for n in range(24)))
    assert sorted(fact.text for fact in memory.list(user_id="alice").facts) == sorted(
        ["shared", *(f"fact {n}" for n in range(24))]
    )


async def test_a_cancelled_save_is_whole_or_not_there_and_can_be_repeated(memory):
    for n in range(5):
        task = asyncio.create_task(memory.aadd([f"one {n}", f"two {n}"], idempotency_key=f"k{n}", user_id="alice"))
        await asyncio.sleep(0.002 * n)
        task.cancel()
        await asyncio.wait([task])  # cancelled, or done before it could be
        assert len((await memory.aadd([f"one {n}", f"two {n}"], idempotency_key=f"k{n}", user_id="alice")).facts) == 2
    assert len(memory.list(user_id="alice").facts) == 10


def test_a_cancelled_flush_does_not_keep_the_program_from_ending(opened, home):
    memory = opened(StandIn(home))
    memory.encoder.pause()
    memory.add("fact", user_id="alice")

    async def wait_for_ever():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(memory.aflush(), 0.05)

    asyncio.run(wait_for_ever())  # ends only when its threads have
    memory.encoder.resume()
    assert memory.flush(20).parked == ()
