"""The registry of schedulers, which describes each scheduler once, except for the text of its scripts.

The text of its scripts is in the module that ``rule`` names. Machine files, plans, ``hpo launch``, ``hpo run --on``,
the web service and tests read these descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.plugins import PluginRegistry, plugin_instance_of


@dataclass(frozen=True, kw_only=True)
class SchedulerDescription:
    """A scheduler, or another way to start a plan.

    Attributes:
        rule: what makes its scripts, as ``module:attribute``. Called with a :class:`hpo.planning.launchers.run.Run`, it
            returns a :class:`hpo.planning.launchers.script.Scheduler`, or the whole script if that is not bash. If it
            ``sweeps``, it is also called with a slot of a sweep.
        about: a short description.
        source: its manual.
        program: the command that submits a script; empty if there is none.
        reads_script: whether this command reads the script from standard input rather than taking its name.
        account: the option for the account.
        partition: the option for the partition.
        hands_on: whether jobs inherit the submitter's environment; if not, ``-v NAME=VALUE,...`` passes it on.
        submits: the function that submits a folder if no program does, as ``module:attribute``; returns the job ID.
        script: the name of the script.
        backend: the default backend.
        sweeps: whether ``hpo run --on`` accepts it.
        here: whether it only starts local processes.
    """

    rule: str
    about: str
    source: str
    program: tuple[str, ...] = ()
    reads_script: bool = False
    account: str = ""
    partition: str = ""
    hands_on: bool = False
    submits: str = ""
    script: str = "launch.sh"
    backend: str = "torch"
    sweeps: bool = False
    here: bool = False

    def __post_init__(self) -> None:
        if not all(self.rule.partition(":")):
            raise ValueError(f"rule must be 'package.module:attribute', but got {self.rule!r}")
        if self.program and not (self.account and self.partition):
            raise ValueError("account and partition must be given if there is a program")


_FILES = "hpo.planning.launchers"

SCHEDULERS: PluginRegistry[SchedulerDescription] = PluginRegistry(
    "schedulers",
    {
        "slurm": SchedulerDescription(
            rule=f"{_FILES}.slurm:scheduler",
            about="Slurm",
            source="the manual pages of sbatch, srun and sinfo",
            program=("sbatch",),
            account="--account",
            partition="--partition",
            hands_on=True,
            sweeps=True,
        ),
        "lsf": SchedulerDescription(
            rule=f"{_FILES}.lsf:scheduler",
            about="LSF with IBM's job step manager",
            source="IBM's reference for bsub and jsrun",
            program=("bsub",),
            reads_script=True,
            account="-P",
            partition="-q",
            hands_on=True,
            backend="horovod",
            sweeps=True,
        ),
        "pbs": SchedulerDescription(
            rule=f"{_FILES}.pbs:scheduler",
            about="PBS Pro and OpenPBS",
            source="the PBS Professional User's Guide",
            program=("qsub",),
            account="-A",
            partition="-q",
            sweeps=True,
        ),
        "flux": SchedulerDescription(
            rule=f"{_FILES}.flux:scheduler",
            about="Flux",
            source="flux-batch(1), flux-run(1)",
            program=("flux", "batch"),
            account="--bank",
            partition="--queue",
            hands_on=True,
            sweeps=True,
        ),
        "grid_engine": SchedulerDescription(
            rule=f"{_FILES}.grid_engine:scheduler",
            about="Univa or Altair Grid Engine",
            source="qsub(1), queue_conf(5)",
            program=("qsub",),
            account="-g",
            partition="-q",
        ),
        "ray": SchedulerDescription(
            rule=f"{_FILES}.ray_jobs:script",
            about="a job on a Ray cluster",
            source="the manual of ray job submit",
            submits=f"{_FILES}.ray_jobs:submit",
            script="launch.py",
        ),
        "other": SchedulerDescription(
            rule=f"{_FILES}.mpi:scheduler",
            about="mpiexec or aprun over named hosts, without a scheduler",
            source="the manual pages of mpiexec",
        ),
        "local": SchedulerDescription(
            rule=f"{_FILES}.local:scheduler",
            about="processes on this machine",
            source="trainers.local_workers",
            here=True,
        ),
    },
    plugin_instance_of(SchedulerDescription),
)
