"""The background encoders of a memory: one for each kind of chunk that its facts have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from inferscale_memory.encoding.encoder import BackgroundEncoder, EncoderStatus, FlushReport, Progress
from inferscale_memory.encoding.records import ParkedFact
from inferscale_memory.scope import Scope


class Encoders:
    """Several ``BackgroundEncoder`` as one: each with a policy and a ledger of its own, over the same facts.

    Figures are about facts, not chunks: each is that of the encoder where it is largest.
    """

    def __init__(self, encoders: Sequence[BackgroundEncoder]) -> None:
        self._encoders = tuple(encoders)

    def start(self) -> None:
        """See ``BackgroundEncoder.start``."""
        for encoder in self._encoders:
            encoder.start()

    def stop(self, timeout: float = 10.0) -> None:
        """See ``BackgroundEncoder.stop``; they end side by side."""
        threads = [threading.Thread(target=encoder.stop, args=(timeout,)) for encoder in self._encoders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def running(self) -> bool:
        """Whether all threads are alive."""
        return all(encoder.running for encoder in self._encoders)

    def pause(self) -> None:
        """See ``BackgroundEncoder.pause``."""
        for encoder in self._encoders:
            encoder.pause()

    def resume(self) -> None:
        """See ``BackgroundEncoder.resume``."""
        for encoder in self._encoders:
            encoder.resume()

    def notify(self) -> None:
        """See ``BackgroundEncoder.notify``."""
        for encoder in self._encoders:
            encoder.notify()

    def flush(
        self, timeout: float | None = None, scope: Scope | None = None, progress: Progress | None = None, *,
        given_up: threading.Event | None = None,
    ) -> FlushReport:  # fmt: skip
        """See ``BackgroundEncoder.flush``. ``timeout`` is for all of them together."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.notify()
        reports = []
        for at, encoder in enumerate(self._encoders):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            reports.append(encoder.flush(left, scope, self._part(progress, at), given_up=given_up))
        parked = _once(fact for report in reports for fact in report.parked)
        return FlushReport(max(report.encoded for report in reports), tuple(parked))

    def _part(self, progress: Progress | None, at: int) -> Progress | None:
        if progress is None or len(self._encoders) == 1:
            return progress
        told: Callable[[int, int], None] = progress
        count = len(self._encoders)
        # They are waited for one after the other: this one's facts are its share of the whole.
        return lambda done, total: told(at * total + done, count * total)

    def parked(self, scope: Scope | None = None) -> list[ParkedFact]:
        """See ``BackgroundEncoder.parked``; a fact of which several chunks failed is named once."""
        return _once(fact for encoder in self._encoders for fact in encoder.parked(scope))

    def retry_parked(self, scope: Scope | None = None) -> int:
        """See ``BackgroundEncoder.retry_parked``."""
        return max(encoder.retry_parked(scope) for encoder in self._encoders)

    def status(self) -> EncoderStatus:
        """Of all of them together."""
        found = [encoder.status() for encoder in self._encoders]
        return EncoderStatus(
            running=all(one.running for one in found),
            paused=any(one.paused for one in found),
            waiting=max(one.waiting for one in found),
            in_flight=max(one.in_flight for one in found),
            encoded=max(one.encoded for one in found),
            parked=len(self.parked()),
            reason=next((one.reason for one in found if one.reason is not None), None),
            stale=max(one.stale for one in found),
        )


def _once(parked: Iterable[ParkedFact]) -> list[ParkedFact]:
    """Each fact once, oldest failure first."""
    return sorted({fact.fact_id: fact for fact in parked}.values(), key=lambda fact: fact.at)
