from __future__ import annotations

import pytest

from inferscale_memory.encoding.pacing import Pace


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_things_are_spread_evenly_and_a_quiet_time_saves_nothing_up():
    clock = Clock()
    pace = Pace(4.0, clock)
    assert pace.delay() == 0
    pace.take()
    assert pace.delay() == pytest.approx(0.25)
    clock.now += 3600
    pace.take()
    assert pace.delay() == pytest.approx(0.25)


def test_what_came_to_nothing_may_be_done_again_at_once():
    pace = Pace(1.0, Clock())
    pace.take()
    pace.give_back()
    assert pace.delay() == 0


def test_where_one_takes_long_no_more_than_a_fifth_of_the_time_goes_into_them():
    clock = Clock()
    pace = Pace(10.0, clock)
    began = pace.take()
    clock.now += 2.0
    pace.over(began)
    assert pace.delay() == pytest.approx(8.0)
    clock.now += 8.0
    began = pace.take()
    clock.now += 0.01
    pace.over(began)
    assert pace.delay() == pytest.approx(0.09), "a short one waits for the rate"


def test_a_rate_of_zero_is_never():
    pace = Pace(0.0, Clock())
    assert pace.never
    assert pace.delay() == float("inf")
    assert not Pace(0.5, Clock()).never
