"""A simulated model of several widths: a noisy quadratic whose number of modes grows with its width."""

from trainers.workloads.noisy_quadratic.task import NoisyQuadratic, SimulatedTraining


class Wide(NoisyQuadratic):
    """A quadratic with 10 times `width` modes; the study sets the width."""

    own_settings = ("width",)

    def begin(self, job, communicator):
        modes = 10 * int(job.settings.own["width"])
        return SimulatedTraining(
            job,
            workload=NoisyQuadratic({**job.data, "modes": modes}),
            workers=communicator.size if communicator else 1,
        )
