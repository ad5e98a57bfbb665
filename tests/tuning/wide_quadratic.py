"""A simulated model of several widths: a noisy quadratic with as many modes as it is wide."""

from trainers.workloads.noisy_quadratic.task import NoisyQuadratic, SimulatedTraining


class Wide(NoisyQuadratic):
    """The quadratic of `width` modes times 10; a study says the width."""

    own_settings = ("width",)

    def begin(self, job, communicator):
        modes = 10 * int(job.settings.own["width"])
        return SimulatedTraining(
            job,
            workload=NoisyQuadratic({**job.data, "modes": modes}),
            workers=communicator.size if communicator else 1,
        )
