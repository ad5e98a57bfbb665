"""Prefetched items come in order, no more than requested, and errors are raised at their positions."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from trainers.loop.prefetch import prefetch_results


def numbers(started, fails=None):
    def call(number):
        started.append(number)
        if number % 3 == 0:
            time.sleep(0.002)  # later ones overtake it where several threads prepare
        if number == fails:
            raise ValueError(f"number {number}")
        return number

    return (lambda number=number: call(number) for number in itertools.count())


@pytest.mark.parametrize(("depth", "concurrent"), [(0, 1), (1, 1), (3, 1), (4, 2), (3, 8)])
def test_items_come_in_order_and_an_error_with_its_item(depth, concurrent):
    started: list[int] = []
    items = prefetch_results(numbers(started, fails=17), depth, concurrent)
    found = [next(items) for _ in range(17)]
    assert found == list(range(17))
    with pytest.raises(ValueError, match="number 17"):
        next(items)
    assert sorted(started) == list(range(len(started))) and len(started) <= 18 + depth


@pytest.mark.parametrize("depth", [0, 2, 9])
def test_a_sequence_that_ends_is_given_whole(depth):
    calls = [lambda number=number: number for number in range(5)]
    assert list(prefetch_results(iter(calls), depth, 2)) == list(range(5))
    assert list(prefetch_results(iter(()), depth)) == []


def test_several_are_prepared_at_the_same_time():
    meeting = threading.Barrier(2, timeout=20)
    assert len(list(prefetch_results(iter([meeting.wait] * 4), 4, 2))) == 4


def test_nothing_is_prepared_after_the_end():
    started: list[int] = []
    items = prefetch_results(numbers(started), 3)
    next(items)
    items.close()
    count = len(started)
    time.sleep(0.01)
    assert len(started) == count <= 4
