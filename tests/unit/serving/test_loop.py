"""One engine loop for sync and async callers."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator

import pytest

from inferscale_memory.errors import EngineError
from inferscale_memory.serving.loop import LoopThread


@pytest.fixture
def loop():
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


async def _where() -> str:
    return threading.current_thread().name


def test_sync_callers_run_on_the_engines_loop(loop: LoopThread) -> None:
    assert loop.run(_where()) == "test-loop"


async def test_async_callers_await_it_from_their_own_loop(loop: LoopThread) -> None:
    assert await loop.arun(_where()) == "test-loop"


def test_errors_reach_the_caller(loop: LoopThread) -> None:
    async def fail() -> None:
        raise ValueError("said by the engine")

    with pytest.raises(ValueError, match="said by the engine"):
        loop.run(fail())


async def test_cancelling_the_caller_cancels_the_work(loop: LoopThread) -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(loop.arun(work()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, 5)


class Source:
    def __init__(self, *, fail: bool = False) -> None:
        self.closed = threading.Event()
        self.fail = fail

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                if self.fail and number == 2:
                    raise RuntimeError("the stream broke")
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed.set()


def test_a_stream_gives_every_item_in_order(loop: LoopThread) -> None:
    assert list(loop.stream(Source().items())) == list(range(1000))


def test_closing_a_sync_stream_early_closes_its_source(loop: LoopThread) -> None:
    source = Source()
    stream = loop.stream(source.items())
    assert next(stream) == 0
    stream.close()
    assert source.closed.wait(5)


async def test_leaving_an_async_stream_early_closes_its_source(loop: LoopThread) -> None:
    source = Source()
    stream = loop.astream(source.items())
    assert await anext(stream) == 0
    await stream.aclose()
    assert await asyncio.to_thread(source.closed.wait, 5)


def test_an_error_in_a_stream_comes_after_the_items_before_it(loop: LoopThread) -> None:
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="the stream broke"):
        seen.extend(loop.stream(Source(fail=True).items()))
    assert seen == [0, 1]


def test_closing_the_loop_ends_every_call_that_still_waits(loop: LoopThread) -> None:
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            loop.run(asyncio.sleep(600))
        except BaseException as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    loop.close()
    waiting.join(5)
    assert [type(error) for error in outcome] == [EngineError]


def test_a_stream_cut_off_by_the_end_does_not_look_complete(loop: LoopThread) -> None:
    async def endless() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.sleep(600)

    stream = loop.stream(endless())
    assert next(stream) == 1
    loop.close()
    with pytest.raises(EngineError, match="closed"):
        next(stream)
