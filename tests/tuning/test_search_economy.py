"""The benchmark of search economy: what is counted, what is looked up, and direct searches on a known case."""

import dataclasses
import gzip
import json
import math

import numpy as np
import pytest

from benchmarks.real_panel import cases
from benchmarks.real_panel.trainings import LOST_EPOCHS
from benchmarks.search_economy import report
from benchmarks.search_economy.direct import DIRECT
from benchmarks.search_economy.grids import Whole, batches
from benchmarks.search_economy.panel import PanelLandscape
from benchmarks.search_economy.protocol import Curve, Range, Step, search
from benchmarks.search_economy.published import alexnet, deberta

BEST_RATE, BEST_EPOCHS = 0.4, 8.0


class Valley:
    """Epochs to the target: 8 at a rate of 0.4, more by half the squared log of what lies between."""

    name, ladder, target_batch, train_samples, target = "valley", (16, 32), 128, 1000, 0.9
    ranges = {"learning_rate": Range(0.05, 3.2, log=True)}
    optimum = BEST_EPOCHS

    def most_epochs(self, global_batch_size):
        return 32.0

    def candidates(self, global_batch_size):
        return None

    def nearest(self, global_batch_size, settings, besides=()):
        return dict(settings)

    def train(self, global_batch_size, settings, seed):
        epochs = BEST_EPOCHS * math.exp(self.regret(settings))
        at = tuple(epochs * share / 40 for share in range(1, 41))
        return Curve(at, tuple(0.9 * each / epochs for each in at), (1.0,) * 40, "reached")

    def regret(self, settings):
        return 0.5 * math.log(settings["learning_rate"] / BEST_RATE) ** 2

    def lost(self, settings):
        return 0.0


class Script:
    """A search that does what it was told."""

    def __init__(self, *steps):
        self.steps, self.seen = list(steps), []

    def next(self, seen):
        self.seen.append(seen)
        return self.steps.pop(0) if self.steps else None

    def recommendation(self, seen):
        reached = [each for each in seen if each.state == "reached"]
        return {"learning_rate": reached[-1].settings["learning_rate"] if reached else 4.0}


def step(rate, until, number=None, batch=128):
    return Step(batch, {"learning_rate": rate}, 0, until, number, "told")


def test_every_sample_counts_paused_repeated_and_at_any_rung():
    method = Script(
        step(BEST_RATE, 2.0),  # 2 of 8 epochs, then all of it, again, and half of it at a rung
        step(BEST_RATE, 32.0, number=0),
        step(BEST_RATE, 32.0),
        step(BEST_RATE, 4.0, batch=16),
    )
    done = search(Valley(), method, (0.25, 1.0, 2.0, 4.0))
    assert done.spent == pytest.approx(2.5)
    assert done.ended and done.trainings == 3
    first, second, third, last = (seen[0] for seen in method.seen[1:])
    assert (first.state, first.epochs[-1], first.epochs_to_target) == ("paused", 2.0, None)
    assert (second.state, second.epochs_to_target) == ("reached", BEST_EPOCHS)
    assert second == third == last
    untrained = Valley().regret({"learning_rate": 4.0})
    assert [mark.regret for mark in done.marks] == pytest.approx([untrained, 0.0, 0.0, 0.0])


def test_a_step_beyond_a_spend_is_not_yet_known_there():
    done = search(Valley(), Script(step(BEST_RATE, 32.0)), (0.9, 1.0))
    assert [mark.regret == 0.0 for mark in done.marks] == [False, True]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step(0.4, 1.0, batch=64)], "one of"),
        ([step(0.4, 32.0), step(0.4, 32.0, number=0)], "paused"),
        ([step(0.4, 2.0), step(0.4, 2.0, number=0)], "train further"),
    ],
)
def test_what_cannot_be_trained_is_refused(steps, message):
    with pytest.raises(ValueError, match=message):
        search(Valley(), Script(*steps), (4.0,))


@pytest.mark.parametrize("name", DIRECT)
def test_direct_searches_find_the_valley_and_repeat_themselves(name):
    found = [search(Valley(), DIRECT[name](Valley(), 3), (1.0, 12.0)) for _ in range(2)]
    assert found[0].marks == found[1].marks
    assert found[0].marks[-1].regret < 0.1
    assert not found[0].ended


def test_halving_stops_what_random_search_trains_to_its_end():
    spent = {
        name: search(Valley(), DIRECT[name](Valley(), 0), (16.0,)).trainings
        for name in ("random", "random + halving")
    }
    assert spent["random + halving"] > spent["random"]


def test_promotion_lets_the_best_of_four_go_on_and_the_others_wait():
    method, steps = DIRECT["TPE + ASHA"](Valley(), 1), []

    class Watched(Script):
        def next(self, seen):
            steps.append((method.next(seen), seen))
            return steps[-1][0]

    search(Valley(), Watched(), (8.0,))
    promoted, seen = next((step, seen) for step, seen in steps if step.number is not None)
    assert len(seen) == 4
    assert promoted.until_epochs == 8.0  # a quarter of the most
    quickest = min(seen, key=lambda each: Valley().regret(each.settings))
    assert promoted.number == quickest.number


@pytest.fixture
def case(tmp_path):
    return next(each for each in cases.panel(None, tmp_path) if each.name == "digits-sgd")


def a_grid(case):
    """Epochs as in the valley at every batch, with a scatter of 5 %; rates above 1 are lost."""
    rng = np.random.default_rng(0)
    for batch in batches(case):
        for rate in np.geomspace(0.02, 2.0, 12):
            for warmup in (0.1, 1.0, 4.0):
                for seed in (1, 2):
                    epochs = (
                        BEST_EPOCHS
                        * math.exp(0.5 * math.log(rate / BEST_RATE) ** 2)
                        * math.exp(rng.normal(0, 0.05))
                    )
                    at = tuple(float(each) for each in np.linspace(epochs / 4, epochs, 4))
                    yield Whole(
                        case.name,
                        batch,
                        {"learning_rate": float(rate), "warmup_epochs": warmup},
                        seed,
                        "diverged" if rate > 1 else "reached",
                        200.0,
                        at,
                        (0.2, 0.5, 0.8, 0.95),
                        (2.0, 1.0, 0.5, 0.2),
                        (2.0, 1.0, 0.5, 0.2),
                    )


def test_a_landscape_of_a_grid_has_its_optimum_its_losses_and_its_epochs(case):
    landscape = PanelLandscape(case, list(a_grid(case)), 1437)
    assert landscape.optimum == pytest.approx(BEST_EPOCHS, rel=0.05)
    best = {"learning_rate": BEST_RATE, "warmup_epochs": 1.0}
    high = {"learning_rate": 1.9, "warmup_epochs": 1.0}
    low = {"learning_rate": 0.13, "warmup_epochs": 1.0}
    assert landscape.regret(best) == pytest.approx(0.0, abs=0.05)
    assert landscape.regret(landscape.best) == 0.0
    away = abs(math.log(landscape.best["learning_rate"] / BEST_RATE))
    assert away < 0.3
    assert landscape.lost(best) < 0.05
    assert landscape.lost(high) > 0.9
    assert landscape.regret(high) == pytest.approx(math.log(LOST_EPOCHS / BEST_EPOCHS), abs=0.3)
    epochs = [landscape.train(512, low, seed).epochs[-1] for seed in range(40)]
    asked = BEST_EPOCHS * math.exp(0.5 * math.log(0.13 / BEST_RATE) ** 2)
    assert float(np.exp(np.mean(np.log(epochs)))) == pytest.approx(asked, rel=0.05)
    assert 0.02 < np.std(np.log(epochs)) < 0.1
    assert landscape.train(512, low, 7) == landscape.train(512, low, 7)
    states = [landscape.train(512, high, seed).state for seed in range(200)]
    assert states.count("diverged") / 200 == pytest.approx(landscape.lost(high), abs=0.06)


def test_published_trainings_are_looked_up_by_what_was_trained(tmp_path):
    rows = [
        {
            "batch_size": batch,
            "nan_train_loss": False,
            "epochs": 30,
            "lr": rate,
            "lr_peak_epoch": 5,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "label_smoothing": 0.1,
            "learning_curve": [
                {"top_1": 0.5 * min(1.0, at / (20 + 10 * number)), "train_loss": 5.0}
                for at in range(1, 31)
            ],
        }
        for batch in (256, 1024)
        for number, rate in enumerate((0.1, 1.0, 10.0))
    ]
    file = tmp_path / "alexnet.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    landscape = alexnet(file, target=0.5 * 20 / 30)
    near = landscape.nearest(1024, {**landscape.candidates(1024)[0], "learning_rate": 0.8})
    assert near["learning_rate"] == 1.0
    assert landscape.train(1024, near, 0).epochs[-1] == 20
    others = landscape.nearest(1024, near, besides=[near])
    assert others["learning_rate"] != 1.0
    taken = [14, 20, 27]
    assert landscape.optimum == pytest.approx(math.exp(np.mean(np.log(taken))))
    assert landscape.regret(near) == pytest.approx(math.log(20 / landscape.optimum))
    with pytest.raises(ValueError, match="lower target"):
        alexnet(file, target=0.9)


def test_published_fine_tunings_count_a_third_of_the_batches_as_one(tmp_path):
    """Batches of 50 and 64 are one pool, that of 32 another; epochs are updates times the batch over the samples."""
    samples = 392_702
    rows = [
        {
            "num_train_epochs": 2,
            "train_batch_size": batch,
            "learning_rate": rate,
            "warmup_steps": 500,
            "cls_drop_out": 0.1,
            "learning_curves": {"matched": [[1000, 0.8], [2000, reached], [3000, 0.9]]},
        }
        for batch, rate, reached in (
            (50, 1e-5, 0.9),
            (64, 2e-5, 0.9),
            (64, 4e-5, 0.85),
            (32, 1e-5, 0.9),
        )
    ]
    file = tmp_path / "deberta.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    landscape = deberta(file, 64)
    assert len(landscape.candidates(64)) == 3 and landscape.ladder == ()
    near = landscape.nearest(64, {**landscape.candidates(64)[0], "learning_rate": 1e-5})
    assert near["warmup_epochs"] == pytest.approx(500 * 50 / samples)
    assert landscape.train(64, near, 0).epochs == pytest.approx(
        [1000 * 50 / samples, 2000 * 50 / samples]
    )
    slow = landscape.nearest(64, {**near, "learning_rate": 4e-5})
    taken = [2000 * 50 / samples, 2000 * 64 / samples, 3000 * 64 / samples]
    assert landscape.regret(slow) == pytest.approx(
        math.log(taken[-1] / math.exp(np.mean(np.log(taken))))
    )
    with pytest.raises(ValueError, match="lower target"):
        deberta(file, 64, target=0.95)


def test_tables_compare_only_what_every_search_has_done():
    row = {
        "case": "valley",
        "method": "one",
        "seed": 0,
        "optimum": 8.0,
        "regret": {"1.0": 0.5, "2.0": 0.1},
        "lost": {"1.0": 0.25, "2.0": 0.0},
        "spent": 1.5,
        "ended": True,
        "end_regret": 0.1,
    }
    rows = [
        row,
        {**row, "method": "two", "regret": {"1.0": 1.5, "2.0": 0.3}, "ended": False},
        {**row, "seed": 1, "regret": {"1.0": 9.0, "2.0": 9.0}},
    ]
    text = "\n".join(report.lines(rows, (1.0, 2.0)))
    assert "| one | 0.50 | 0.10 | 100%, 1.5 (median), 0.10 |" in text
    assert "| two | 1.50 | 0.30 | - |" in text
    assert "| one | 25.0% | 0.0% |" in text
    assert "9.0" not in text
    assert "one" in report.picture(rows, (1.0, 2.0))


def test_a_whole_training_survives_its_line_of_json(case):
    whole = next(a_grid(case))
    again = Whole(**json.loads(json.dumps(dataclasses.asdict(whole))))
    assert again.key == whole.key and list(again.epochs) == list(whole.epochs)
