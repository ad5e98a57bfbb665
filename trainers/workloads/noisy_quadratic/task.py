"""The workload ``noisy_quadratic``: trainings simulated in closed form, on a simulated clock, without torch.

Data options: those of :class:`~trainers.workloads.noisy_quadratic.problem.Problem`, and ``sampled`` (draw the
weights, so that seeds scatter, instead of following their expectation), ``preconditioning`` (p, what the optimizer
``lars`` stands for: mode i has the rate lr h_i^-p), ``seconds_per_update`` and ``seconds_per_sample`` (of one worker).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.errors import DataError
from trainers.job import TrainingJob
from trainers.workloads.noisy_quadratic.problem import Problem, check_number, option_names
from trainers.workloads.workload import AnyWorkload, check_options

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.workloads.noisy_quadratic.training import SimulatedTraining

_OPTIONS = ("sampled", "preconditioning", "seconds_per_update", "seconds_per_sample")


class NoisyQuadratic(AnyWorkload):
    """A quadratic with noisy gradients (Zhang et al., arXiv:1907.04164); the loss is the exact one."""

    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}
    simulated: ClassVar[bool] = True

    def __init__(self, data: Mapping[str, Any]) -> None:
        check_options(data, (*option_names(), *_OPTIONS))
        self.problem = Problem.from_data({name: data[name] for name in data if name not in _OPTIONS})
        self.train_samples = self.problem.train_samples
        self.sampled = data.get("sampled", False)
        if not isinstance(self.sampled, bool):
            raise DataError(f"sampled must be true or false, but got {self.sampled!r}")
        self.preconditioning: float = data.get("preconditioning", 0.5)
        self.seconds_per_update: float = data.get("seconds_per_update", 0.001)
        self.seconds_per_sample: float = data.get("seconds_per_sample", 0.0001)
        check_number("preconditioning", self.preconditioning, at_most=1)
        check_number("seconds_per_update", self.seconds_per_update)
        check_number("seconds_per_sample", self.seconds_per_sample)

    def begin(self, job: TrainingJob, communicator: Communicator | None) -> SimulatedTraining:
        """A simulated training; every worker runs all of it, and the clock runs as if they had shared it."""
        from trainers.workloads.noisy_quadratic.training import SimulatedTraining
        return SimulatedTraining(job, workload=self, workers=communicator.size if communicator else 1)
