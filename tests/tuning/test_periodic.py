"""A thread that repeats something while its context lasts."""

import threading
import time

import pytest

from hpo.tuning.periodic import PeriodicThread


class Counting(PeriodicThread):
    def __init__(self, seconds, most=1000, **how):
        super().__init__("counting", seconds, **how)
        self.count, self.most, self.three = 0, most, threading.Event()

    def tick(self):
        self.count += 1
        if self.count >= 3:
            self.three.set()
        if self.count >= self.most:
            self.ended.set()


def test_it_repeats_until_the_context_is_left():
    with Counting(0.001) as counting:
        assert counting.three.wait(30)
    seen = counting.count
    time.sleep(0.02)
    assert counting.count == seen
    assert "counting" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("at_once", "expected"), [(True, 1), (False, 0)])
def test_the_first_call_comes_at_once_or_after_a_period(at_once, expected):
    with Counting(600.0, at_once=at_once) as counting:
        deadline = time.monotonic() + 30
        while counting.count < expected and time.monotonic() < deadline:
            time.sleep(0.001)
    assert counting.count == expected  # and leaving waited for no period


def test_it_can_end_itself():
    with Counting(0.001, most=2) as counting:
        counting._thread.join(30)
        assert not counting._thread.is_alive()
    assert counting.count == 2


def test_ending_twice_or_before_the_start_is_harmless():
    counting = Counting(0.001)
    counting.end()
    counting.end()
    assert counting.count == 0
