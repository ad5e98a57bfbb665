"""What largebatch asks of plug-ins: pytest examples/plugins/tests, with the package installed."""

from hpo.testing import DecayContract, OptimizerContract, SamplerContract, SchedulerContract


class TestSignum(OptimizerContract):
    name = "signum"


class TestRestarts(DecayContract):
    name = "restarts"


class TestGenetic(SamplerContract):
    name = "genetic"


class TestTorque(SchedulerContract):
    name = "torque"
