"""The command that reads exponents of the best rate from published sweeps, on made-up sweeps."""

import math

import numpy as np
import pytest

from benchmarks.optimizer_priors import EXPONENT, best_rates, fitted, lowest

RATES = [0.001 * 2.0**power for power in range(8)]


def sweeps(exponents, batches):
    """Rows of optimizers whose best rate is 0.004 (batch / 128)^a (tokens / 1e10)^-0.2, a parabola in log rate."""
    for optimizer, exponent in exponents.items():
        for (size, params), times in [((s, p), t) for s, p in SIZES for t in (1, 2, 4, 8)]:
            batch = batches[times]
            tokens = times * 20 * params
            best = 0.004 * (batch / 128) ** exponent * (tokens / 1e10) ** -0.2
            for rate in RATES:
                loss = 3 + 0.05 * math.log(rate / best) ** 2
                yield {
                    "optimizer": optimizer,
                    "size": size,
                    "chinchilla": str(times),
                    "train_batch_size": str(batch),
                    "learning_rate": str(rate),
                    "warmup": "1000",
                    "loss": str(loss),
                }


SIZES = [("130m", 130e6), ("300m", 300e6), ("520m", 520e6)]


def test_exponents_are_found_where_batches_differ():
    found = list(
        best_rates(list(sweeps({"one": 0.2, "two": 0.9}, {1: 64, 2: 1024, 4: 128, 8: 512})))
    )
    assert len(found) == 24
    for each in found:
        assert each.sd < 0.2
    exponents = fitted(found)
    for optimizer, exponent in (("one", 0.2), ("two", 0.9)):
        mean, sd = exponents[optimizer]
        assert mean == pytest.approx(exponent, abs=0.05) and sd < 0.1


def test_one_batch_tells_nothing():
    exponents = fitted(
        list(best_rates(list(sweeps({"one": 0.9}, dict.fromkeys((1, 2, 4, 8), 128)))))
    )
    assert exponents["one"] == pytest.approx(EXPONENT, abs=1e-9)


def test_the_best_rate_is_the_lowest_point_of_a_parabola_and_less_sure_at_an_edge():
    def losses(best, rates):
        return {rate: 3 + 0.1 * math.log(rate / best) ** 2 for rate in rates}

    inner, edge = [0.5, 1.0, 2.0], [1.0, 2.0, 4.0]
    assert lowest(losses(1.2, inner))[0] == pytest.approx(math.log(1.2))
    at, sd = lowest(losses(0.7, edge))
    assert at == 0.0 and sd == pytest.approx(np.log(2) / 3**0.5)
    lost = {0.5: 3.2, 1.0: 3.0, 2.0: 7.5}
    assert lowest(lost) == pytest.approx((0.0, math.log(2) / 12**0.5))
