"""The next step for a study in its current state, and the command for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from hpo.dashboard.view import StudyView
from hpo.runs.results import PlannedRun, StudyResult
from storage.records import StudyState, TrialState

GOES_ON = (StudyState.QUEUED, StudyState.INTERRUPTED, StudyState.CANCELLED)
DIVERGED = """Every trial diverged: lower the range of learning rates, or allow a longer warmup. To change the search
space, start a study with another name."""
FAILED = (
    "Every trial failed. The list of trials shows the reasons; fix the workload, then run the "
    "study again."
)
MISSED = """No trial reached the target: raise budget.epochs_per_trial, widen the search ranges, or set a target that
can be reached. Start the changed study under another name."""
UNFINISHED = """No trial reached the end of its budget: extend the search ranges to lower learning rates. Start the
changed study under another name."""
UNSURE = """No settings reached the target with every seed, so there is no forecast: raise budget.trials and run the
same command to continue the study."""


@dataclass(frozen=True)
class NextStep:
    """Something to do next; ``command`` is "" if there is none."""

    text: str
    command: str = ""


def next_steps(view: StudyView) -> list[NextStep]:
    """Return the next steps of a study in order; there is at least one."""
    result, storage = view.result, f"--storage {shlex.quote(view.storage)}"
    name = shlex.quote(result.study.name)
    again = f"hpo run STUDY.yaml {storage}"
    sweep = _about_the_sweep(result, again, f"hpo report {name} {storage}")
    if sweep is not None:
        return [sweep]
    if result.plan is not None:
        return _about_the_plan(result.plan, name, storage)
    if result.forecast is not None:
        return [NextStep("Plan the full-scale run.", f"hpo plan {name} {storage}")]
    if result.spec.full_scale is None:
        return [
            NextStep(
                "The study file has no full-scale batch size; forecast any batch size you need.",
                f"hpo forecast {name} --at BATCH {storage}",
            )
        ]
    return [NextStep(UNSURE, again)]


def _about_the_sweep(result: StudyResult, again: str, report: str) -> NextStep | None:
    """Return the next step for a sweep that is incomplete or has no results; None if the sweep has results."""
    states = {trial.state for trial in result.trials if trial.state.finished}
    if result.study.state is StudyState.RUNNING:
        return NextStep("The sweep is still running; write this report again later.", report)
    if result.study.state in GOES_ON or not states:
        started = (
            "is not complete; run the same command to continue it"
            if states
            else "has no results yet"
        )
        return NextStep(f"The sweep {started}. The study file is at the end of this page.", again)
    if states == {TrialState.DIVERGED}:
        return NextStep(DIVERGED)
    if states == {TrialState.FAILED}:
        return NextStep(FAILED, f"hpo trials {report.removeprefix('hpo report ')}")
    question = result.spec.question
    if any(question.need(trial) is not None for trial in result.trials):
        return None
    return NextStep(UNFINISHED if question.fixed else MISSED)


def _about_the_plan(run: PlannedRun, name: str, storage: str) -> list[NextStep]:
    launch = f"hpo launch {run.plan.id} {storage}"
    if not run.outcomes:
        return [
            NextStep(
                "Launch the plan on this machine; its outcome is stored with the forecast.", launch
            )
        ]
    seed = max(outcome.seed for outcome in run.outcomes) + 1
    return [
        NextStep("Launch the plan with another seed.", f"{launch} --seed {seed}"),
        NextStep(
            "Plan the run for another machine.",
            f"hpo plan {name} --machine MACHINE.yaml --nodes N {storage}",
        ),
    ]
