"""SimulatedTraining: a training of the noisy quadratic, with the budget, evaluations and ends of any other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from search_spaces.settings import TrainingSettings
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.run import Stretch, TrainingRun
from trainers.schedules import learning_rate
from trainers.workloads.noisy_quadratic.dynamics import Update, make_update
from trainers.workloads.noisy_quadratic.task import NoisyQuadratic
from trainers.workloads.noisy_quadratic.trajectories import Expected, Sampled, Trajectory


class SimulatedTraining(TrainingRun):
    """One simulated training; ``seconds`` are those of a clock that only its updates move.

    An update takes seconds_per_update + seconds_per_sample * global_batch_size / workers. Settings that a quadratic
    knows nothing of (label smoothing, trust coefficient, normalization batch size, precision) change nothing; one
    that would change the update, and is not modelled, raises :class:`~trainers.errors.JobError`.
    """

    def __init__(self, job: TrainingJob, *, workload: NoisyQuadratic | None = None, workers: int = 1) -> None:
        workload = workload or NoisyQuadratic(job.data)
        _check_modelled(job.settings)
        super().__init__(job, workload)
        self.problem, self._preconditioning = workload.problem, workload.preconditioning
        self._seconds_per_update = workload.seconds_per_update
        self._seconds_per_global_sample = workload.seconds_per_sample / workers
        squares = self.problem.initial_squares
        self._trajectory: Trajectory = Sampled(squares, job.seed) if workload.sampled else Expected(squares)

    def _train(self, first_step: int, last_step: int) -> Stretch:
        first_loss, total, step, rate = self._loss(), np.zeros(self.problem.modes), first_step, math.nan
        batch = self.course.phase(first_step).global_batch_size
        rates = (learning_rate(self.job.settings, self.course.epochs(at), self.job.epochs)
                 for at in range(first_step, last_step))
        with np.errstate(over="ignore", invalid="ignore"):      # a training that diverges says so itself
            for rate, same in itertools.groupby(rates):
                steps = sum(1 for _ in same)
                total = total + self._trajectory.move(self._update(rate, batch), steps, step)
                step += steps
            return Stretch(
                train_loss=float(self.problem.loss(total)) / (last_step - first_step), first_loss=first_loss,
                learning_rate=rate, scores={"loss": self._loss()},
                seconds=(last_step - first_step) * (self._seconds_per_update
                                                    + self._seconds_per_global_sample * batch),
                gradient_noise_scale=self._noise_scale())

    def _weights(self) -> dict[str, Any]:
        return {"trajectory": self._trajectory.state.tolist()}

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        self._trajectory.state = np.array(state["trajectory"], dtype=float)

    def _update(self, rate: float, global_batch_size: int) -> Update:
        settings = self.job.settings
        return make_update(
            self.problem.curvature, self.problem.noise, learning_rate=rate,
            global_batch_size=global_batch_size, momentum=settings.momentum, nesterov=settings.nesterov,
            preconditioning=self._preconditioning if settings.optimizer == "lars" else 0.0,
            weight_decay=settings.weight_decay)

    def _loss(self) -> float:
        return float(self.problem.loss(self._trajectory.squares))

    def _noise_scale(self) -> float | None:
        """tr(covariance) / |gradient|^2 in samples (McCandlish et al., arXiv:1812.06162, eq. 2.9), from the truth."""
        squared_gradient = float(self._trajectory.squares @ self.problem.curvature**2)
        noise = float(self.problem.noise.sum())
        return noise / squared_gradient if squared_gradient > 0 and math.isfinite(squared_gradient) else None


_MODELLED: dict[str, tuple[Any, ...]] = {
    "optimizer": ("sgd", "lars"), "momentum_form": ("outside",), "gradient_clip_norm": (None,),
    "weight_norm_limit": (None,), "adascale_batch_size": (None,), "gradient_lag": (0,), "gradient_reduction": ("mean",),
    "update_mode": ("synchronous",)}


def _check_modelled(settings: TrainingSettings) -> None:
    for name, modelled in _MODELLED.items():
        value = getattr(settings, name)
        if value not in modelled:
            known = " or ".join(repr(each) for each in modelled)
            raise JobError(f"the noisy quadratic models {name} {known}, but got {value!r}; train another workload "
                           f"with it, or set {name} {modelled[0]!r}")
