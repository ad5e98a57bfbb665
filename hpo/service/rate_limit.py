"""A token bucket per caller, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

MOST_CALLERS = 10_000


class RateLimit:
    """Allows ``rate`` calls per second on average and bursts of ``burst`` calls; see :meth:`wait`."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._left: dict[Hashable, tuple[float, float]] = {}

    def wait(self, caller: Hashable) -> float:
        """Return 0 and count a call if the caller may proceed, else the seconds to wait."""
        left = self.left(caller)
        if left < 1:
            return (1 - left) / self.rate
        if len(self._left) >= MOST_CALLERS:
            self._left = {
                each: found for each, found in self._left.items() if self.left(each) < self.burst
            }
            if len(self._left) >= MOST_CALLERS:
                self._left.clear()
        self._left[caller] = left - 1, self._clock()
        return 0.0

    def left(self, caller: Hashable) -> float:
        """Return how many calls the caller may make now."""
        left, since = self._left.get(caller, (float(self.burst), 0.0))
        return min(float(self.burst), left + (self._clock() - since) * self.rate)
