"""The sweep that the benchmark of the search cost simulates is spread over the ladder as the service spreads it."""

from collections import Counter

from benchmarks.search_cost.simulation import LADDER, make_task
from benchmarks.search_cost.sweep import SEEDS, swept


def test_a_simulated_sweep_spends_its_trials_evenly_and_repeats_the_best():
    found = list(swept(make_task(500, momentum=0.0), seed=0, trials=40))
    assert Counter(batch for batch, _, _ in found) == dict.fromkeys(LADDER, 40 // len(LADDER))
    for rung in LADDER:
        times = Counter(
            tuple(sorted((name, repr(value)) for name, value in settings.items()))
            for batch, settings, _ in found
            if batch == rung
        )
        assert max(times.values()) == SEEDS
