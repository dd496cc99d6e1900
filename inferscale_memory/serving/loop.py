"""An event loop in a thread of its own, so that one engine serves sync code, async code and notebooks."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from inferscale_memory.errors import EngineError

T = TypeVar("T")
_END = object()


class LoopThread:
    """Runs coroutines of the engine's loop on behalf of callers in any thread or loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run ``work`` and wait; a caller that is interrupted cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except CancelledError as error:
            raise EngineError("this engine is closed.") from error
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` from another loop; cancelling the caller cancels it."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def stream(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate ``items`` from sync code; closing the iterator early closes the generator and aborts its request."""
        box: queue.SimpleQueue[Any] = queue.SimpleQueue()
        task = asyncio.run_coroutine_threadsafe(_pump(items, box.put), self.loop)
        try:
            while (item := box.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            task.cancel()

    async def astream(self, items: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        """Iterate ``items`` from another loop, with the same closing rule as :meth:`stream`."""
        here = asyncio.get_running_loop()
        box: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.run_coroutine_threadsafe(
            _pump(items, lambda item: here.call_soon_threadsafe(box.put_nowait, item)), self.loop
        )
        try:
            while (item := await box.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            task.cancel()

    def close(self) -> None:
        """Cancel what still runs, so that no caller waits for ever, stop the loop and wait for its thread."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_drain(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self.loop.close()


async def _drain() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(items: AsyncGenerator[Any, None], put: Any) -> None:
    try:
        async for item in items:
            put(item)
        put(_END)
    except asyncio.CancelledError:
        # Nobody listens to a stream that was left early; one cut off by the engine's end must not look complete.
        put(EngineError("this engine is closed."))
        raise
    except BaseException as error:  # handed to the consumer, who raises it
        put(error)
    finally:
        await items.aclose()


class Closable(Protocol):
    """What has to be closed before the interpreter ends."""

    def close(self) -> None:
        """Close it; may be called twice."""
        ...


def close_at_exit(thing: Closable) -> Callable[[], None]:
    """Close ``thing`` at the interpreter's exit if it still lives then; returns what to unregister."""
    reference = weakref.ref(thing)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return close
