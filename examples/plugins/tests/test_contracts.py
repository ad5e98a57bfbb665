"""The contract tests of largebatch for plug-ins; install the package, then run pytest examples/plugins/tests."""

from pathlib import Path

from hpo.testing import (
    DecayContract,
    ImporterContract,
    OptimizerContract,
    SamplerContract,
    SchedulerContract,
    WorkloadContract,
)


class TestSignum(OptimizerContract):
    name = "signum"


class TestRestarts(DecayContract):
    name = "restarts"


class TestGenetic(SamplerContract):
    name = "genetic"


class TestTorque(SchedulerContract):
    name = "torque"


class TestRings(WorkloadContract):
    name = "rings"


class TestJsonl(ImporterContract):
    name = "jsonl"

    def sample(self, folder: Path) -> str:
        """Write a sample file with two runs that have a curve each."""
        file = folder / "runs.jsonl"
        file.write_text('{"lr": 0.1, "accuracy": [0.5, 0.8]}\n{"lr": 0.2, "accuracy": [0.6]}\n')
        return str(file)
