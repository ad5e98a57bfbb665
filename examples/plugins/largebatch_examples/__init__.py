"""Descriptions of the plug-ins in this package; their code is imported only when a training run needs it."""

from hpo.past_runs.importers import ImporterDescription, ImporterOption
from hpo.planning.schedulers import SchedulerDescription
from hpo.study.samplers import SamplerDescription
from search_spaces.own_settings import OwnSetting, Range
from search_spaces.techniques.optimizers import OptimizerDescription
from search_spaces.techniques.schedules import DecayDescription
from trainers.workloads.described import Beginning, WorkloadDescription

SIGNUM = OptimizerDescription(
    title="Signum",
    rule="largebatch_examples.signum:SignumRule",
    about="the sign of a momentum",
    source="arXiv:1802.04434, algorithm 2",
    settings={
        "signum_momentum": OwnSetting(
            what="decay of the momentum per update",
            default=0.9,
            range=Range(0, 1, high_open=True),
        )
    },
    state_bytes=4,
    rate_exponent=(0.5, 0.2),
    exponent_source="square root, as for Adam without noise in its second moment (arXiv:2205.10287)",
)

RESTARTS = DecayDescription(
    rule="largebatch_examples.restarts:restarts",
    about="a cosine that restarts every restart_epochs",
    source="arXiv:1608.03983, equation 5",
    uses=("end_learning_rate_factor",),
    settings={
        "restart_epochs": OwnSetting(
            what="time from one restart to the next",
            default=10.0,
            range=Range(0, low_open=True),
            unit="epochs",
        )
    },
)

GENETIC = SamplerDescription(
    rule="largebatch_examples.genetic:genetic",
    about="a genetic algorithm",
    source="Deb et al., IEEE Transactions on Evolutionary Computation 6, 2002",
)

TORQUE = SchedulerDescription(
    rule="largebatch_examples.torque:scheduler",
    about="Torque",
    source="qsub(1B) of Torque",
    program=("qsub",),
    account="-A",
    partition="-q",
)

RINGS = WorkloadDescription(
    rule="largebatch_examples.rings:Rings",
    about="which of two rings a point lies on",
    source="sklearn.datasets.make_circles",
    beginnings={
        "rings": Beginning(
            about="points on two rings, generated",
            data="data: {noise: 0.1}",
            target="accuracy>=0.98",
            fixed={"momentum": 0.9, "weight_decay": 0},
            epochs=20,
        )
    },
)

JSONL = ImporterDescription(
    rule="largebatch_examples.jsonl:read_jsonl",
    about="a file with one JSON object per run",
    source="jsonlines.org",
    options={
        "name": ImporterOption(
            what="The key whose value names a run; default: the number of its line."
        )
    },
)
