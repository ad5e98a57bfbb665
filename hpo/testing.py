"""Contract tests for authors of plug-ins: the requirements of each kind, such as an optimizer or an importer.

A test class in the plug-in's package inherits from a contract and sets ``name``; pytest then runs its tests::

    from hpo.testing import OptimizerContract

    class TestTiger(OptimizerContract):
        name = "tiger"

The project's own plug-ins pass the same tests.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.intervals import Interval
from hpo.past_runs.importers import IMPORTERS
from hpo.past_runs.past_run import PastRun
from hpo.planning.launchers import (
    launch_script_of_plan,
    launcher_description,
    scheduler_of_launcher,
)
from hpo.planning.launchers.run import run_of_plan
from hpo.planning.launchers.script import Scheduler
from hpo.planning.launchers.submit import SCRIPT
from hpo.planning.launchers.sweeps import SweepSlot
from hpo.planning.plan import Plan
from hpo.study.samplers import SAMPLERS
from hpo.study.spec import StudySpec
from hpo.tuning.generation.samplers import make_sampler
from search_spaces.own_settings import OwnSetting, is_finite_number
from search_spaces.plugins import load_attribute
from search_spaces.settings import TrainingSettings, names
from search_spaces.techniques import OF_LOOP, TECHNIQUES, Technique
from storage.records import PlanKind, Trial, TrialPurpose, TrialState
from trainers import Target, TrainingJob
from trainers.begin import begin_training
from trainers.errors import DataError
from trainers.optimizers import make_optimizer
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.schedules.arithmetic import NUMBERS
from trainers.schedules.batch_size import batch_factor, batch_schedule
from trainers.schedules.device_arithmetic import ON_DEVICE
from trainers.schedules.learning_rate import learning_rate_by
from trainers.workloads import load_workload, metrics_of
from trainers.workloads.described import WORKLOADS
from trainers.workloads.training_run import AnyTraining

__all__ = [
    "BatchControlContract",
    "DecayContract",
    "ImporterContract",
    "OptimizerContract",
    "SamplerContract",
    "SchedulerContract",
    "WarmupContract",
    "WorkloadContract",
]

SHAPES = (4, 3, 3, 3), (6, 5), (4,), (6,)
BUDGET = 10.0
"""Number of epochs of the training runs in which schedules are tested."""


class _TechniqueContract:
    """A contract for the description of any technique; ``settings`` are the settings with which the technique is
    tested.
    """

    setting: ClassVar[str]
    name: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}

    @property
    def described(self) -> Technique:
        """The description under test."""
        found: Technique = TECHNIQUES[self.setting][self.name]
        return found

    def tried(self, **changes: Any) -> TrainingSettings:
        """Return settings that select the technique, with these changes."""
        return TrainingSettings.from_record({self.setting: self.name, **self.settings, **changes})

    def test_it_is_described(self) -> None:
        """The technique reads only settings that exist, and states its purpose and source."""
        its = self.described
        assert its.about and its.source, "about and source must be given"
        unknown = {*its.uses, *its.uses_if} - set(names())
        assert not unknown, f"it uses settings that do not exist: {', '.join(sorted(unknown))}"
        claimed = its.settings.keys() & set(names())
        assert not claimed, f"known settings cannot be its own: {', '.join(sorted(claimed))}"

    def test_its_settings_come_back_from_what_is_stored(self) -> None:
        """The technique's settings survive a round trip through plain values."""
        values = {name: own.default for name, own in self.described.settings.items()}
        settings = self.tried(**values)
        assert TrainingSettings.from_dict(settings.to_dict()) == settings
        assert all(settings.value(name) == value for name, value in values.items())
        assert not settings.of_workload


class OptimizerContract(_TechniqueContract):
    """A contract for optimizers; set ``name``, and also ``settings`` if the defaults do not change every tensor."""

    setting = "optimizer"

    def _parameters(self, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(1)
        return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]

    def _run(self, optimizer: Any, moved: list[nn.Parameter], steps: range) -> None:
        for step in steps:
            self._draw(moved, step)
            optimizer.step(_rate(step), step / 4)

    def _draw(self, moved: list[nn.Parameter], step: int) -> None:
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in moved:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.grad = drawn.to(parameter.dtype)

    def _moved(self, settings: TrainingSettings, steps: int = 12) -> list[Tensor]:
        moved = self._parameters()
        self._run(make_optimizer(moved, settings), moved, range(steps))
        return [parameter.detach() for parameter in moved]

    def test_every_tensor_moves_and_stays_finite(self) -> None:
        """The optimizer updates matrices, convolutions and vectors, in the dtypes that training uses."""
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            moved = self._parameters(dtype)
            self._run(make_optimizer(moved, self.tried()), moved, range(12))
            for one, other in zip(moved, self._parameters(dtype), strict=True):
                assert one.isfinite().all() and not torch.equal(one, other), (dtype, one.shape)

    def test_an_update_is_the_same_whenever_it_is_done(self) -> None:
        """The same gradients always give the same weights, and the update does not modify the gradients."""
        first, second = self._moved(self.tried()), self._moved(self.tried())
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        moved, fresh = self._parameters(), self._parameters()
        self._run(make_optimizer(moved, self.tried()), moved, range(3))
        self._draw(fresh, 2)
        for one, other in zip(moved, fresh, strict=True):
            assert one.grad is not None and other.grad is not None
            assert torch.equal(one.grad, other.grad), "an update must not change the gradient"

    def test_a_rate_of_zero_moves_nothing(self) -> None:
        """The first update of a warmup, which has a learning rate of zero, changes no weights."""
        moved = self._parameters()
        optimizer = make_optimizer(moved, self.tried())
        self._draw(moved, 0)
        optimizer.step(0.0)
        for one, other in zip(moved, self._parameters(), strict=True):
            assert torch.equal(one, other)

    def test_it_goes_on_from_a_checkpoint_bit_for_bit(self) -> None:
        """A resumed run continues bit for bit, so ``state_dict`` holds the complete state."""
        broken = self._parameters()
        first = make_optimizer(broken, self.tried())
        self._run(first, broken, range(5))
        resumed = [nn.Parameter(parameter.detach().clone()) for parameter in broken]
        second = make_optimizer(resumed, self.tried())
        second.load_state_dict(first.state_dict())
        self._run(second, resumed, range(5, 12))
        for one, other in zip(resumed, self._moved(self.tried()), strict=True):
            assert torch.equal(one, other)

    def test_an_update_that_is_left_out_changes_nothing(self) -> None:
        """An update that is skipped after a gradient overflow changes nothing; rate and progress are scalars on the
        device.
        """
        here, there = self._parameters(torch.float64), self._parameters(torch.float64)
        plain, on_device = (make_optimizer(each, self.tried()) for each in (here, there))
        assert isinstance(on_device, GroupOptimizer)
        for batch in on_device.batches:
            batch.on_cpu = False
        for step in range(8):
            self._draw(here, step)
            for mine, its in zip(here, there, strict=True):
                assert mine.grad is not None
                its.grad = mine.grad * (math.inf if step in (0, 3) else 1)
            left_out, rate = torch.tensor(step in (0, 3)), _rate(step)
            plain.step(rate, step / 4, left_out)
            numbers = torch.tensor([rate, step / 4], dtype=torch.float64)
            on_device.step(numbers[0], numbers[1], left_out)
        for mine, its in zip(here, there, strict=True):
            torch.testing.assert_close(its, mine, rtol=1e-6, atol=1e-9)

    def test_each_setting_of_its_own_has_an_effect(self) -> None:
        """Each of the optimizer's own settings, at a value other than the default, leads to different weights."""
        plain = self._moved(self.tried())
        for name, own in self.described.settings.items():
            if name in self.settings or name in OF_LOOP:
                continue
            other = self._moved(self.tried(**{name: other_value(own)}))
            same = all(torch.equal(one, its) for one, its in zip(plain, other, strict=True))
            assert not same, f"{name} has no effect"


class _ScheduleContract(_TechniqueContract):
    def _rates(self, settings: TrainingSettings) -> list[float]:
        return [learning_rate_by(NUMBERS, settings, step / 8, BUDGET) for step in range(80)]

    def _check_rates(self, **more: Any) -> None:
        settings = self.tried(learning_rate=0.5, **more)
        rates = self._rates(settings)
        assert rates == self._rates(settings), "a schedule is a pure function of progress"
        assert all(math.isfinite(rate) and rate >= 0 for rate in rates)
        for step, rate in enumerate(rates):
            there = torch.tensor(step / 8, dtype=torch.float64)
            found = float(learning_rate_by(ON_DEVICE, settings, there, BUDGET))
            assert math.isclose(found, rate, rel_tol=1e-9, abs_tol=1e-12), step / 8

    def _check_own(self, **more: Any) -> None:
        plain = self._rates(self.tried(**more))
        for name, own in self.described.settings.items():
            if name not in self.settings:
                other = self._rates(self.tried(**more, **{name: other_value(own)}))
                assert other != plain, f"{name} has no effect"


class DecayContract(_ScheduleContract):
    """A contract for decays: finite rates, the same for numbers and device scalars, with and without a warmup."""

    setting = "decay"

    def test_its_rates_are_the_same_everywhere(self) -> None:
        """The decay gives the same rates for numbers and for scalars on a device."""
        self._check_rates()
        self._check_rates(warmup_epochs=2.0)

    def test_each_setting_of_its_own_has_an_effect(self) -> None:
        """Each of the decay's own settings, at a value other than the default, leads to different rates."""
        self._check_own(warmup_epochs=2.0)


class WarmupContract(_ScheduleContract):
    """A contract for warmups: finite rates that reach the peak, the same for numbers and device scalars."""

    setting = "warmup_shape"

    def test_its_rates_are_the_same_everywhere(self) -> None:
        """The warmup gives the same rates for numbers and for scalars on a device."""
        self._check_rates(warmup_epochs=4.0, warmup_start_factor=0.1)

    def test_each_setting_of_its_own_has_an_effect(self) -> None:
        """Each of the warmup's own settings, at a value other than the default, leads to different rates."""
        self._check_own(warmup_epochs=4.0, warmup_start_factor=0.1)


class BatchControlContract(_ScheduleContract):
    """A contract for batch control: whole batches of at least one sample at every update."""

    setting = "batch_control"

    def test_its_rates_are_the_same_everywhere(self) -> None:
        """With the batch control, the learning rates are the same for numbers and for scalars on a device."""
        self._check_rates()

    def test_its_batches_are_those_of_its_factor(self) -> None:
        """The batch size follows the factor of the batch control from the first update to the last."""
        settings, batch, samples = self.tried(), 64, 4096
        found = batch_schedule(settings, batch, samples, BUDGET, 4)
        for step in range(found.total_steps):
            size = found.phase(step).global_batch_size
            factor = batch_factor(settings, found.epochs(step))
            assert size == round(factor * batch) >= 1, found.epochs(step)


def _rate(step: int) -> float:
    """Return the learning rate of a warmup followed by a decay."""
    return 0.004 * (1 + step) if step < 4 else 0.08 / (1 + step)


class SamplerContract:
    """A contract for samplers: settings within the search space that are reproducible and spread over the space."""

    name: ClassVar[str]
    trainings: ClassVar[int] = 8

    def _suggested(self) -> list[TrainingSettings]:
        spec = StudySpec.from_dict(
            {
                "name": "contract",
                "workload": "noisy_quadratic",
                "target": {"metric": "loss", "at_most": 0.1},
                "ladder": [16, 32],
                "search": {
                    "learning_rate": {"log_uniform": [0.001, 1.0], "role": "scaled"},
                    "momentum": {"uniform": [0.5, 0.95]},
                    "decay": {"choice": ["constant", "cosine"]},
                },
                "budget": {"trials": 16, "epochs_per_trial": 40},
                "sampler": self.name,
            }
        )
        sampler, found = make_sampler(spec, spec.ladder), []
        for number in range(self.trainings):
            asked = None if SAMPLERS[self.name].chooses_rung else spec.ladder[number % 2]
            batch, settings, ticket = sampler.suggest(asked, ())
            assert batch in spec.ladder and (asked is None or batch == asked), batch
            epochs = 4 + math.log(settings.learning_rate / (0.01 * batch)) ** 2
            sampler.tell(_ended(number, batch, settings, epochs), ticket)
            found.append(settings)
        for settings in found:
            for name, domain in spec.search.domains.items():
                assert domain.contains(settings.value(name)), (name, settings.value(name))
        return found

    def test_it_is_described(self) -> None:
        """The sampler states its purpose and source."""
        assert SAMPLERS[self.name].about and SAMPLERS[self.name].source, (
            "about and source must be given"
        )

    def test_its_settings_lie_in_the_space_and_are_the_same_again(self) -> None:
        """All suggested settings lie in the search space, and a repeated sweep trains the same ones."""
        assert self._suggested() == self._suggested()

    def test_it_tries_different_settings(self) -> None:
        """Most of the suggested settings differ in their learning rate."""
        rates = {settings.learning_rate for settings in self._suggested()}
        assert len(rates) > self.trainings // 2, rates


class SchedulerContract:
    """A contract for job schedulers: a script that bash accepts, with the functions that the loop calls."""

    name: ClassVar[str]

    def _plan(self) -> Plan:
        job = TrainingJob(
            workload="noisy_quadratic",
            data={},
            seed=1,
            target=Target("loss", 0.1, higher_is_better=False),
            global_batch_size=256,
            epochs=40,
            settings=TrainingSettings(),
        )
        return Plan(
            study="contract",
            kind=PlanKind.FORECAST,
            machine="superpod",
            nodes=2,
            workers=8,
            ranks_per_node=4,
            job=job,
            launcher=self.name,
            epochs=Interval(4.0, 2.0, 8.0),
            seconds=Interval(400.0, 200.0, 900.0),
            trust="medium",
            reason="a contract test",
        )

    def test_it_is_described(self) -> None:
        """The scheduler states its purpose and the manual that it follows."""
        its = launcher_description(self.name)
        assert its.about and its.source, "about and source must be given"

    def test_bash_takes_its_script(self) -> None:
        """The script of a plan is valid bash, or a valid Python program."""
        name, text = launch_script_of_plan(self._plan(), None, backend="torch")
        assert name == launcher_description(self.name).script
        if name != SCRIPT:
            compile(text, name, "exec")
            return
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert text.startswith("#!")

    def test_its_directives_stand_before_the_first_command_and_its_functions_are_there(
        self,
    ) -> None:
        """Directives are comment lines; functions find the hosts that respond, start ranks and request another slot."""
        made = scheduler_of_launcher(self.name, run_of_plan(self._plan(), None, "torch"))
        if isinstance(made, str):
            return
        assert all(line.startswith("#") for line in made.directives), made.directives
        wanted = ["healthy_hosts", "resubmit", *([] if made.workers else ["start"])]
        asked = f"{made.functions}\ndeclare -F {' '.join(wanted)}"
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"of {', '.join(wanted)}, the script has only: {done.stdout}"

    def test_its_sweeps_have_a_job_array(self) -> None:
        """A scheduler on which sweeps may run has a job array, whose directives also precede the first command."""
        if not launcher_description(self.name).sweeps:
            return
        slot = SweepSlot(name="contract", nodes=1, slot_seconds=3600)
        made = scheduler_of_launcher(self.name, slot)
        assert isinstance(made, Scheduler), "a sweep needs a bash script"
        array = made.array(3) if made.array else None
        assert array is None or all(line.startswith("#") for line in array.directives)
        assert array is None or array.index, "the index variable of a task must be given"


class WorkloadContract:
    """A contract for workloads; set ``name``, and set ``data`` to a small data section that works anywhere.

    A training run uses ``global_batch_size`` and ``settings``, and lasts ``epochs`` epochs.
    """

    name: ClassVar[str]
    data: ClassVar[dict[str, Any]] = {}
    settings: ClassVar[dict[str, Any]] = {}
    global_batch_size: ClassVar[int] = 32
    epochs: ClassVar[float] = 2.0

    def _begun(self, seed: int) -> AnyTraining:
        metrics = metrics_of(self.name, data=self.data)
        metric, better = next(iter(metrics.items()))
        return begin_training(
            TrainingJob(
                workload=self.name,
                data=self.data,
                seed=seed,
                target=Target.best(metric, higher_is_better=better),
                global_batch_size=self.global_batch_size,
                epochs=self.epochs,
                settings=TrainingSettings.from_record(self.settings),
            )
        )

    def _trained(self, training: AnyTraining) -> list[Any]:
        found = []
        while not training.finished:
            if (point := training.advance()) is not None:
                found.append(dataclasses.replace(point, seconds=0.0))
        training.close()
        return found

    def test_it_is_described(self) -> None:
        """The workload states what is trained and its source, and its metrics include the loss."""
        its = WORKLOADS[self.name]
        assert its.about and its.source, "about and source must be given"
        assert metrics_of(self.name, data=self.data)["loss"] is False
        epochs, batch = self.epochs, self.global_batch_size
        assert all(demand.amount >= 0 for demand in its.demands(self.data, epochs, batch))

    def test_an_option_that_there_is_not_is_refused(self) -> None:
        """A mistyped data option is an error that names the option."""
        with pytest.raises(DataError, match="no_such_option"):
            load_workload(self.name, {**self.data, "no_such_option": 1})

    def test_a_training_is_the_same_whenever_it_is_done(self) -> None:
        """Settings, batch size and seed determine a training run; its epochs increase and its losses are finite."""
        points = self._trained(self._begun(1))
        assert points == self._trained(self._begun(1))
        assert all(math.isfinite(point.loss) for point in points)
        epochs = [point.epochs for point in points]
        assert epochs and epochs == sorted(set(epochs)), epochs

    def test_it_goes_on_from_a_checkpoint(self) -> None:
        """A resumed run continues as before, so ``state_dict`` holds the complete state."""
        whole, first, second = self._trained(self._begun(1)), self._begun(1), self._begun(1)
        first.advance()
        second.load_state_dict(first.state_dict())
        first.close()
        assert self._trained(second) == whole[1:]


class ImporterContract:
    """A contract for importers of past runs; set ``name``, and make ``sample`` write at least two runs."""

    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def sample(self, folder: Path) -> str:
        """Write a source to the folder; return the argument with which ``hpo import`` reads it."""
        raise NotImplementedError

    def _read(self, source: str) -> list[PastRun]:
        its = IMPORTERS[self.name]
        read = load_attribute(its.rule)
        found: list[PastRun] = read(Path(source) if its.file else source, **self.options)
        return found

    def test_it_is_described(self) -> None:
        """The importer states what it reads, the origin of that format, and the purpose of its options."""
        its = IMPORTERS[self.name]
        assert its.about and its.source, "about and source must be given"
        assert all(option.what for option in its.options.values())

    def test_its_runs_can_be_told_apart(self, tmp_path: Path) -> None:
        """Each run has a unique and reproducible label, so that it is imported only once."""
        runs = self._read(self.sample(tmp_path))
        labels = [run.label for run in runs]
        assert len(runs) >= 2 and len(set(labels)) == len(labels), labels
        again = self._read(str(self.sample(tmp_path)))
        assert [run.label for run in again] == labels

    def test_its_values_are_plain_and_its_curves_rise(self, tmp_path: Path) -> None:
        """Values are strings and numbers, curves have increasing steps, and a status is in lower case."""
        for run in self._read(self.sample(tmp_path)):
            assert run.status == run.status.lower(), run.status
            assert run.names, f"{run.label} says nothing"
            for name, value in run.values.items():
                assert isinstance(value, str | int | float | list | tuple | None), (name, value)
            for name, curve in run.curves.items():
                steps = [reading.step for reading in curve]
                assert steps == sorted(set(steps)), name

    def test_a_source_that_there_is_not_is_an_error(self, tmp_path: Path) -> None:
        """An error for a missing source names what was searched for."""
        with pytest.raises(EvidenceError, match="nothing_here"):
            self._read(str(tmp_path / "nothing_here"))


def _ended(number: int, batch: int, settings: TrainingSettings, epochs: float) -> Trial:
    known: dict[str, Any] = dict.fromkeys(each.name for each in dataclasses.fields(Trial))
    known |= {"id": number + 1, "study_id": 1, "number": number, "seed": number, "reason": ""}
    known |= {"state": TrialState.REACHED, "purpose": TrialPurpose.SWEEP, "epochs": epochs}
    known |= {"global_batch_size": batch, "settings": settings.to_dict()}
    return Trial(**known | {"epochs_to_target": epochs})


def other_value(setting: OwnSetting) -> Any:
    """Return a value other than the default of a technique's own setting."""
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.range is None:
        return not setting.default
    bounds, whole = setting.range, setting.whole
    ends: tuple[Any, ...] = (setting.default, bounds.low, bounds.high)
    known = [each for each in ends if is_finite_number(each)]
    usual = (3, 4, 2, 1) if whole else (1.5, 0.5, 0.25, 3.0)
    beside: list[Any] = (  # for a range that holds none of the usual ones
        [int(each) + step for each in known for step in (1, 0, -1)]
        if whole
        else [(one + other) / 2 for one in known for other in (*known, 2 * one)]
    )
    return next(each for each in (*usual, *beside) if each in bounds and each != setting.default)
