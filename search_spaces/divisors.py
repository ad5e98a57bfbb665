"""Divisors of batch sizes, also where a batch size has a huge prime in it."""

from __future__ import annotations

LARGEST_TRIED = 100_000
"""Factors up to here are looked for; what is left counts as prime. Exact for numbers below its square, 10^10."""


def divisors_of(number: int) -> list[int]:
    """The divisors of a whole number of at least 1, rising; ValueError for a smaller one.

    Of a number of 10^10 and more, those that have a prime factor above ``LARGEST_TRIED`` twice or in part may be
    missing: nobody splits a batch by them, and finding them may take minutes.
    """
    if number < 1:
        raise ValueError(f"only numbers of at least 1 have divisors, but got {number}")
    found, left, factor = [1], number, 2
    while factor * factor <= left and factor <= LARGEST_TRIED:
        powers = [1]
        while left % factor == 0:
            left //= factor
            powers.append(powers[-1] * factor)
        if len(powers) > 1:
            found = [one * power for one in found for power in powers]
        factor += 1 if factor == 2 else 2
    if left > 1:
        found += [one * left for one in found]
    return sorted(found)
