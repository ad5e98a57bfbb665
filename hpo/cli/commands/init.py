"""`hpo init`: five questions, and a study file with comments that `hpo study check` accepts."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from search_spaces.plugins import PluginError
from trainers.workloads.described import WORKLOADS, Beginning

LARGEST_DOUBLINGS = 8
TRIALS_PER_RUNG = 12
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "nan", "inf"}


OWN = Beginning(
    about="your own class, package.module:Class, beside the study file",
    data="data: {}                            # options passed to your class",
    target="accuracy>=0.9",
)
"""The first lines of a study with the user's own workload class."""


def study_beginnings() -> dict[str, tuple[str, Beginning]]:
    """Return the workloads and templates, by the name to give as an answer, without faulty plug-ins."""
    found: dict[str, tuple[str, Beginning]] = {}
    for workload in WORKLOADS:
        with contextlib.suppress(PluginError):
            for name, beginning in WORKLOADS[workload].beginnings.items():
                found.setdefault(name, (workload, beginning))
    return found


class _Answer(click.ParamType):  # type: ignore[type-arg]  # no click before 8.4 takes an argument
    """A value parsed by a given function, whose error states the rule that the value breaks."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that the string stands for."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value.strip())
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class _WorkloadAnswer(_Answer):
    """One of the names of :func:`study_beginnings`; plug-ins are searched only when the help lists them."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return ``[digits|images|package.module:Class]``."""
        return f"[{'|'.join([*study_beginnings(), 'package.module:Class'])}]"


@dataclass(frozen=True)
class MetricAim:
    """A metric and its threshold."""

    metric: str
    at_least: bool
    threshold: float


@dataclass(frozen=True)
class NodePartition:
    """The part of a node that trials use: GPUs or cores, and how many each trial takes."""

    unit: str
    count: int


def _workload(text: str) -> str:
    known = study_beginnings()
    if text in known or re.fullmatch(r"\w+(\.\w+)*:\w+", text):
        return text
    raise ValueError(
        f"must be one of {', '.join(known)}, or your own package.module:Class, but got {text!r}"
    )


def _aim(text: str) -> MetricAim:
    found = re.fullmatch(r"([A-Za-z_]\w*) *(>=|<=) *([-+.\deE]+)", text)
    if found is None:
        raise ValueError(
            f"must be METRIC>=VALUE or METRIC<=VALUE, such as top1>=0.76, but got {text!r}"
        )
    return MetricAim(found[1], found[2] == ">=", float(found[3]))


def _partition(text: str) -> NodePartition:
    found = re.fullmatch(r"(\d+) *(gpus?|cores?|cpus?)", text.lower())
    if found is None or int(found[1]) < 1:
        raise ValueError(f"must be a number of gpus or cores, such as '4 gpus', but got {text!r}")
    return NodePartition("gpus" if found[2].startswith("g") else "cores", int(found[1]))


def _batches(text: str) -> tuple[tuple[int, ...], int]:
    found = re.fullmatch(r"(\d+) *(?:-|to|\.\.) *(\d+) *(?:,|->|for) *(\d+)", text)
    if found is None:
        raise ValueError(
            "must be SMALLEST-LARGEST,FULL: the batch sizes that you can sweep and the one to "
            f"forecast for, such as 64-512,8192; but got {text!r}"
        )
    low, high, full = map(int, found.groups())
    if not 0 < low < high < full:
        raise ValueError(f"must increase, but got {low}, {high} and {full}")
    ladder = [low]
    while ladder[-1] * 2 < high and len(ladder) < LARGEST_DOUBLINGS:
        ladder.append(ladder[-1] * 2)
    return (*ladder, high), full


def _machine(text: str) -> str:
    from hpo.errors import PlanError
    from hpo.planning.machines import load_machine

    try:
        load_machine(text)
    except PlanError as error:
        raise ValueError(str(error)) from error
    return text


@click.command()
@click.option(
    "--workload",
    type=_WorkloadAnswer("workload", _workload),
    help="Workload to train; package.module:Class is your own class.",
)
@click.option(
    "--target", type=_Answer("target", _aim), metavar="METRIC>=VALUE", help="Target to reach."
)
@click.option(
    "--partition",
    type=_Answer("partition", _partition),
    metavar="N",
    help="Hardware for the sweep, on one node: '4 gpus' or '8 cores'.",
)
@click.option(
    "--batches",
    type=_Answer("batches", _batches),
    metavar="LOW-HIGH,FULL",
    help="Batch sizes to sweep, and the one to forecast for: 64-512,8192.",
)
@click.option(
    "--machine",
    type=_Answer("machine", _machine),
    help="Machine of the full-scale run: local, a name from `hpo machines`, or a machine file.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("study.yaml"),
    show_default=True,
    help="The study file to write; the study is named after it.",
)
@click.option(
    "--defaults", is_flag=True, help="Do not ask; use defaults for options that are not given."
)
def init(output: Path, defaults: bool, **given: Any) -> None:
    """Write a study file with comments, from five answers: workload, target, partition, batch sizes, machine."""
    from hpo.study.spec import parse_study

    if output.exists():
        raise click.UsageError(
            f"{output} exists already; give another name with --output, or move it away"
        )
    if not output.absolute().parent.is_dir():
        raise click.UsageError(f"the folder of {output} must exist; create it first")

    def answer(name: str, question: str, default: str, read: Callable[[str], Any]) -> Any:
        if given[name] is not None:
            return given[name]
        if defaults:
            return read(default)
        return click.prompt(question, default=default, type=_Answer(name, read), err=True)

    if not defaults and given["workload"] is None:
        offered = {name: begun.about for name, (_, begun) in study_beginnings().items()}
        for name, about in {**offered, "module:Class": OWN.about}.items():
            click.echo(f"  {name:12}  {about}", err=True)
    workload = answer("workload", "1. Which workload do you train?", "digits", _workload)
    _, begun = study_beginnings().get(workload, (workload, OWN))
    aim = answer("target", "2. Which metric must it reach?", begun.target, _aim)
    partition = answer(
        "partition",
        "3. Which hardware do you sweep on (gpus or cores of one node)?",
        "2 cores",
        _partition,
    )
    ladder, full = answer(
        "batches",
        "4. Which batch sizes can you sweep, and which one is the forecast for?",
        "16-128,512",
        _batches,
    )
    machine = answer(
        "machine", "5. On which machine will the full-scale run take place?", "local", _machine
    )
    text = study_text(output.stem, workload, aim, partition, ladder, full, machine)
    parse_study(text, output)
    output.write_text(text, encoding="utf-8")
    click.echo(f"wrote {output}\n\nnext:")
    click.echo(f"  hpo study check {output}      whether it can run here, and what it will cost")
    click.echo(f"  hpo run {output}      sweep, forecast, plan; run it again after an interruption")


def study_text(
    name: str,
    workload: str,
    aim: MetricAim,
    partition: NodePartition,
    ladder: tuple[int, ...],
    full: int,
    machine: str,
) -> str:
    """Return the study file for these answers, with comments."""
    from hpo.study.program import PROGRAM

    trained, begun = study_beginnings().get(workload, (workload, OWN))
    data = begun.data.replace("METRIC", aim.metric).replace("BETTER", str(aim.at_least).lower())
    group = _normalization(ladder, full)
    search = _search(begun)
    if trained != PROGRAM and group != 16:
        search += (
            f"\n  normalization_batch_size: {group}       # samples that share batch-norm statistics; "
            "divides every batch"
        )
    trials = TRIALS_PER_RUNG * len(ladder)
    gpus = 1 if partition.unit == "gpus" else 0
    resources = (
        "# resources: what one trial gets. As many trials run at once as fit.\n"
        f"resources: {{gpus_per_worker: {gpus}}}        # workers_per_node: 2 gives a trial two workers"
    )
    side = "at_least" if aim.at_least else "at_most"
    return f"""\
# Which settings reach the target at a batch of {full}, and in how many epochs?
# The search runs on {partition.count} {partition.unit}, at {full} itself by gradient accumulation, and stops by itself.
# hpo study check {name}.yaml estimates the cost; hpo run {name}.yaml runs the study.
name: {_yaml(name)}
workload: {trained}
{data}
target: {{metric: {aim.metric}, {side}: {aim.threshold:g}}}

# the ladder: smaller global batch sizes (samples per update), for a search or sweep that does not train at {full}; it
# needs at least three sizes, each about twice the previous one
ladder: [{", ".join(map(str, ladder))}]

# the full-scale run; validate: true also runs the plan, on a local machine
full_scale: {{global_batch_size: {full}, machine: {machine}}}

search:
{search}

# the search: short runs first, then the most promising settings to the end, until no further run is worth its cost. A
# run ends at the target or after epochs_per_trial, two to four times what a good run needs. With race: 0 the search
# trains at the three largest rungs and never at {full}. With trials: {trials} the ladder is swept rung by rung, and a
# few settings then race at {full}.
budget: {{trials: auto, epochs_per_trial: {begun.epochs}}}

{resources}
"""


def _search(begun: Beginning) -> str:
    """Return the section ``search``, with the other optimizers, including those of plug-ins, in a comment."""
    from search_spaces.techniques import OPTIMIZERS, described_optimizer

    usable = (name for name in OPTIMIZERS if described_optimizer(name) is not None)
    others = ", ".join(name for name in usable if name != begun.optimizer)
    named = f"{begun.optimizer:22}# or {others}" if begun.others else begun.optimizer
    low, high = begun.learning_rate
    lines = [
        f"optimizer: {named}",
        f"learning_rate: {{log_uniform: [{low:g}, {high:g}], role: scaled}}    "
        "# tuned at every rung, then extrapolated",
    ]
    if begun.warmup_epochs:
        lines.append(f"warmup_epochs: {{uniform: [0, {begun.warmup_epochs:g}], role: scaled}}")
    lines += [f"{name}: {_yaml(value)}" for name, value in begun.fixed.items()]
    return "\n".join(f"  {line}" for line in lines)


def _yaml(value: Any) -> str:
    """Return a value as YAML."""
    plain = isinstance(value, str) and not _is_special(value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _is_special(name: str) -> bool:
    """Return whether YAML would read the name as something else."""
    return re.fullmatch(r"[A-Za-z][\w-]+", name) is None or name.lower() in _YAML_WORDS


def _normalization(ladder: tuple[int, ...], full: int) -> int:
    """Return the largest group size of at most 16 samples that divides every batch."""
    return next(
        size for size in range(16, 0, -1) if all(batch % size == 0 for batch in (*ladder, full))
    )
