"""The workload ``noisy_quadratic``: training runs simulated in closed form, on a simulated clock, without torch.

Data options: the fields of :class:`~trainers.workloads.noisy_quadratic.problem.QuadraticProblem`, ``sampled`` (draw the
weights, so that results differ between seeds, instead of following their expectation), ``preconditioning`` (the p that
the optimizer ``lars`` uses: mode i has the rate lr h_i^-p), ``seconds_per_update`` and ``seconds_per_sample`` (for one
worker).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from search_spaces.settings import TrainingSettings
from trainers.errors import DataError, JobError
from trainers.job import TrainingJob
from trainers.schedules.learning_rate import learning_rate
from trainers.workloads.noisy_quadratic.dynamics import QuadraticUpdate, make_quadratic_update
from trainers.workloads.noisy_quadratic.problem import (
    QuadraticProblem,
    check_quadratic_number,
    quadratic_option_names,
)
from trainers.workloads.noisy_quadratic.trajectories import (
    ExpectedWeights,
    QuadraticTrajectory,
    SampledWeights,
)
from trainers.workloads.training_run import TrainingRun, TrainingSegment
from trainers.workloads.workload import CustomLoopWorkload, check_options

if TYPE_CHECKING:
    from trainers.distributed import Communicator

_MODELLED: dict[str, tuple[Any, ...]] = {
    "optimizer": ("sgd", "lars"),
    "momentum_form": (None, "outside"),
    "gradient_clip_norm": (None,),
    "weight_norm_limit": (None,),
    "adascale_batch_size": (None,),
    "gradient_lag": (0,),
    "gradient_reduction": ("mean",),
    "update_mode": ("synchronous",),
}

_OPTIONS = ("sampled", "preconditioning", "seconds_per_update", "seconds_per_sample")


class NoisyQuadratic(CustomLoopWorkload):
    """A quadratic with noisy gradients (Zhang et al., arXiv:1907.04164); the reported loss is exact."""

    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}
    simulated: ClassVar[bool] = True

    def __init__(self, data: Mapping[str, Any]) -> None:
        check_options(data, (*quadratic_option_names(), *_OPTIONS))
        self.problem = QuadraticProblem.from_data(
            {name: data[name] for name in data if name not in _OPTIONS}
        )
        self.train_samples = self.problem.train_samples
        self.sampled = data.get("sampled", False)
        if not isinstance(self.sampled, bool):
            raise DataError(f"sampled must be true or false, but got {self.sampled!r}")
        self.preconditioning: float = data.get("preconditioning", 0.5)
        self.seconds_per_update: float = data.get("seconds_per_update", 0.001)
        self.seconds_per_sample: float = data.get("seconds_per_sample", 0.0001)
        check_quadratic_number("preconditioning", self.preconditioning, at_most=1)
        check_quadratic_number("seconds_per_update", self.seconds_per_update)
        check_quadratic_number("seconds_per_sample", self.seconds_per_sample)

    def begin(self, job: TrainingJob, communicator: Communicator | None) -> SimulatedTraining:
        """Create a simulated run; every worker simulates the whole run, on the clock that all workers share."""
        return SimulatedTraining(
            job, workload=self, workers=communicator.size if communicator else 1
        )


class SimulatedTraining(TrainingRun):
    """A simulated training run; ``seconds`` comes from a clock that only its updates advance.

    An update takes seconds_per_update + seconds_per_sample * global_batch_size / workers. Settings without meaning for
    a quadratic (label smoothing, trust coefficient, normalization batch size, precision) have no effect; a setting that
    would change the update, but is not modelled, raises :class:`~trainers.errors.JobError`.
    """

    def __init__(
        self, job: TrainingJob, *, workload: NoisyQuadratic | None = None, workers: int = 1
    ) -> None:
        workload = workload or NoisyQuadratic(job.data)
        _check_modelled(job.settings)
        super().__init__(job, workload.metrics, workload.train_samples)
        self.problem, self._preconditioning = workload.problem, workload.preconditioning
        self._seconds_per_update = workload.seconds_per_update
        self._seconds_per_global_sample = workload.seconds_per_sample / workers
        squares = self.problem.initial_squares
        self._trajectory: QuadraticTrajectory = (
            SampledWeights(squares, job.seed) if workload.sampled else ExpectedWeights(squares)
        )

    def _train(self, first_step: int, last_step: int) -> TrainingSegment:
        first_loss, total, step, rate = (
            self._loss(),
            np.zeros(self.problem.modes),
            first_step,
            math.nan,
        )
        batch = self.batch_schedule.phase(first_step).global_batch_size
        rates = (
            learning_rate(self.scheduled, self.batch_schedule.epochs(at), self.job.epochs)
            for at in range(first_step, last_step)
        )
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is detected from the loss
            for rate, same in itertools.groupby(rates):
                steps = sum(1 for _ in same)
                total = total + self._trajectory.move(self._update(rate, batch), steps, step)
                step += steps
            return TrainingSegment(
                train_loss=float(self.problem.loss(total)) / (last_step - first_step),
                first_loss=first_loss,
                learning_rate=rate,
                scores={"loss": self._loss()},
                seconds=(last_step - first_step)
                * (self._seconds_per_update + self._seconds_per_global_sample * batch),
                gradient_noise_scale=self._noise_scale(),
            )

    def _weights(self) -> dict[str, Any]:
        return {"trajectory": self._trajectory.state.tolist()}

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        self._trajectory.state = np.array(state["trajectory"], dtype=float)

    def _update(self, rate: float, global_batch_size: int) -> QuadraticUpdate:
        settings = self.job.settings
        return make_quadratic_update(
            self.problem.curvature,
            self.problem.noise,
            learning_rate=rate,
            global_batch_size=global_batch_size,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            preconditioning=self._preconditioning if settings.optimizer == "lars" else 0.0,
            weight_decay=settings.weight_decay,
        )

    def _loss(self) -> float:
        return float(self.problem.loss(self._trajectory.squares))

    def _noise_scale(self) -> float | None:
        """Return the exact tr(covariance) / |gradient|^2 in samples (McCandlish et al., arXiv:1812.06162, eq. 2.9)."""
        squared_gradient = float(self._trajectory.squares @ self.problem.curvature**2)
        noise = float(self.problem.noise.sum())
        return (
            noise / squared_gradient
            if squared_gradient > 0 and math.isfinite(squared_gradient)
            else None
        )


def _check_modelled(settings: TrainingSettings) -> None:
    for name, modelled in _MODELLED.items():
        value = getattr(settings, name)
        if value not in modelled:
            known = " or ".join(repr(each) for each in modelled)
            raise JobError(
                f"the noisy quadratic models {name} {known}, but got {value!r}; train another workload "
                f"with it, or set {name} {modelled[0]!r}"
            )
