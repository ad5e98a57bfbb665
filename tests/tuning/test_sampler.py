"""Optuna's samplers over the ladder: within bounds, reproducible, warm-started, and better than chance."""

import dataclasses
import math

import numpy as np
import pytest
from test_strategy import a_trial

from hpo.errors import SpecError
from hpo.study.samplers import SAMPLERS, SamplerDescription
from hpo.testing import SamplerContract
from hpo.tuning.generation.samplers import LadderSampler, halton
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from storage.records import TrialState

pytestmark = pytest.mark.medium

SPACE = SearchSpace.parse(
    {
        "learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"},
        "warmup_epochs": {"uniform": [0, 5], "role": "scaled"},
        "momentum": {"uniform": [0.5, 0.95], "role": "shared"},
    }
)
OF_OPTUNA = [name for name, its in SAMPLERS.items() if not its.chooses_rung]


class TestSamplersOfOptuna(SamplerContract):
    @pytest.fixture(autouse=True, params=OF_OPTUNA)
    def _named(self, request, monkeypatch):
        monkeypatch.setattr(type(self), "name", request.param, raising=False)


def test_one_of_another_package_that_gives_something_else_is_refused_by_name(monkeypatch):
    broken = SamplerDescription(rule="os.path:join", about="-", source="-")
    missing = SamplerDescription(rule="no_such_module:sampler", about="-", source="-")
    monkeypatch.setattr(
        SAMPLERS, "built_in", {**SAMPLERS.built_in, "broken": broken, "missing": missing}
    )
    with pytest.raises(SpecError, match="'missing' cannot be used: no_such_module:sampler cannot"):
        a_sampler("missing")
    with pytest.raises(SpecError, match=r"'broken' cannot be used: os\.path:join refuses: "):
        a_sampler("broken")


def a_sampler(name="tpe", space=SPACE):
    return LadderSampler(space, (16, 32), sampler=name, name="study", epochs=40)


def finished(number, batch, settings, epochs):
    trial = a_trial(number, batch, TrialState.REACHED, epochs=epochs)
    return dataclasses.replace(trial, settings=settings.to_dict())


def cost(settings, batch):
    """A bowl in log learning rate and momentum whose best learning rate is sqrt(batch) / 50."""
    miss = math.log(settings.learning_rate / (math.sqrt(batch) / 50))
    return 4 * math.exp(miss**2 / 2 + 4 * (settings.momentum - 0.9) ** 2)


def run(sampler, batch, count):
    found = []
    for number in range(count):
        _, settings, ticket = sampler.suggest(batch)
        epochs = cost(settings, batch)
        sampler.tell(finished(number, batch, settings, epochs), ticket)
        found.append((settings, epochs))
    return found


@pytest.mark.parametrize("name", OF_OPTUNA)
def test_every_sampler_stays_in_the_space_and_repeats_itself(name):
    first, again = run(a_sampler(name), 16, 8), run(a_sampler(name), 16, 8)
    assert [settings for settings, _ in first] == [settings for settings, _ in again]
    for settings, _ in first:
        for setting in SPACE.names:
            assert SPACE.domains[setting].contains(getattr(settings, setting))
    assert len({settings.learning_rate for settings, _ in first}) > 4


def test_the_first_rung_starts_spread_evenly():
    settings = [settings for settings, _ in run(a_sampler(), 16, 4)]
    positions = sorted(
        SPACE.domains["learning_rate"].to_unit(each.learning_rate) for each in settings
    )
    assert max(np.diff([0, *positions, 1])) < 0.5


def test_a_rung_starts_from_the_best_of_the_rung_below_by_the_sqrt_and_the_linear_rule():
    sampler = a_sampler()
    for epochs, rate in ((9.0, 0.4), (4.0, 0.1), (6.0, 0.2)):
        settings = TrainingSettings(learning_rate=rate, warmup_epochs=2.0, momentum=0.8)
        sampler.tell(finished(0, 16, settings, epochs))
    _, first, _ = sampler.suggest(32)
    _, second, _ = sampler.suggest(32)
    assert first.learning_rate == pytest.approx(0.1 * math.sqrt(2))
    assert second.learning_rate == pytest.approx(0.2)
    assert first.warmup_epochs == second.warmup_epochs == 2.0


def test_a_resumed_sampler_knows_what_the_first_one_learnt():
    first = a_sampler("gp")
    found = run(first, 16, 10)
    resumed = a_sampler("gp")
    for number, (settings, epochs) in enumerate(found):
        resumed.tell(finished(number, 16, settings, epochs))
    near = [abs(math.log(resumed.suggest(16)[1].learning_rate / (4 / 50))) for _ in range(3)]
    assert min(near) < math.log(3)


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_learning_samplers_beat_chance(name):
    learnt = np.median([epochs for _, epochs in run(a_sampler(name), 16, 24)[12:]])
    chance = np.median([epochs for _, epochs in run(a_sampler("random"), 16, 24)[12:]])
    assert learnt < chance


def test_a_failed_trial_teaches_nothing_and_a_diverged_one_is_worse_than_a_censored_one():
    sampler = a_sampler()
    for state in (TrialState.FAILED, TrialState.CENSORED, TrialState.DIVERGED):
        _, settings, ticket = sampler.suggest(16)
        trial = dataclasses.replace(a_trial(0, 16, state), settings=settings.to_dict())
        sampler.tell(trial, ticket)
    values = [trial.value for trial in sampler._rungs[16].trials]
    assert values[0] is None
    assert values[1] == pytest.approx(math.log(80)) and values[2] > values[1]


def test_a_space_without_scaled_settings_is_sampled_too():
    space = SearchSpace.parse({"momentum": {"uniform": [0.5, 0.95]}, "learning_rate": 0.1})
    found = run(a_sampler(space=space), 16, 6)
    assert len({settings.momentum for settings, _ in found}) == 6


def test_halton_points_are_those_of_scipy():
    from scipy.stats import qmc

    assert np.array_equal(halton(300, 12), qmc.Halton(12, scramble=False).random(301)[1:])
