"""Divisors of batch sizes, found quickly even if a batch size has a huge prime factor."""

from __future__ import annotations

LARGEST_TRIED = 100_000
"""Largest factor that is tried; the remaining cofactor counts as prime, which is exact for numbers below 10^10."""


def divisors_of(number: int) -> list[int]:
    """Return the divisors of a whole number of at least 1 in increasing order; raise ValueError for a smaller number.

    For a number of 10^10 or more, divisors with a prime factor above ``LARGEST_TRIED`` may be missing: they are
    not needed to split a batch, and finding them may take minutes.
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
