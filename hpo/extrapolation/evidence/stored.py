"""Evidence from the trials of a study."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from search_spaces.domains import Float, Int
from search_spaces.space import SearchSpace
from storage.records import Convergence, Trial, TrialState, training_key
from trainers.job import Question

MOST_MEASURED = (
    64  # trials from which the noise scale is read: a median over more would be no better
)

_TELLING = (TrialState.REACHED, TrialState.CENSORED, TrialState.DIVERGED)


def study_evidence(
    trials: Sequence[Trial],
    space: SearchSpace,
    noise_scales: Mapping[int, float] | None = None,
    question: Question | None = None,
    full_scale: Mapping[str, float] | None = None,
    *,
    carried: tuple[str, ...] = (),
) -> Evidence:
    """Return the trials as evidence of how the scaled settings of ``space`` change with the batch size.

    ``noise_scales`` holds measured gradient noise scales in samples, by trial id; ``question`` is the question of the
    study, by default the epochs to target. ``full_scale`` holds the model size and training length if trials differ in
    them (they are among a trial's settings); ``carried`` lists those over which the learning rate stays constant.
    Raises :class:`EvidenceError` if no trial is informative.
    """
    trials = trials_counted_once(trials)
    fixed = question if question is not None and question.fixed else None
    observations = (
        [observation_of_trial(trial, (noise_scales or {}).get(trial.id)) for trial in trials]
        if fixed is None
        else shortfalls(trials, fixed, noise_scales, list(full_scale or ()))
    )
    return Evidence(
        observations=tuple(_sized(o, full_scale or {}) for o in observations if o is not None),
        tuned=tuned_settings_of_space(space),
        samples_per_epoch=samples_per_epoch(trials),
        question=fixed,
        full_scale=dict(full_scale or {}),
        carried=carried,
    )


def _sized(seen: TrainingObservation, full_scale: Mapping[str, float]) -> TrainingObservation:
    """Return the observation with its sizes; one without sizes, such as a plan's run, was made at full scale."""
    if full_scale.keys() <= seen.settings.keys():
        return seen
    return dataclasses.replace(seen, settings={**full_scale, **seen.settings})


def trials_counted_once(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials without repetitions of the same settings, batch size and seed.

    A repetition adds no information and would be mistaken for another seed. Among repeated runs, one that was trained
    to the end takes precedence over one that was pruned, failed or has not finished.
    """
    chosen: dict[tuple[int, int, str] | None, Trial] = {}
    for trial in trials:
        key = training_key(trial)
        if key not in chosen or (trial.state in _TELLING and chosen[key].state not in _TELLING):
            chosen[key] = trial
    return [
        trial for trial in trials if (key := training_key(trial)) is None or chosen[key] is trial
    ]


def trial_as_counted(trial: Trial, question: Question) -> Trial:
    """Return the trial as the search counts it: if it violates a constraint, it has not reached its target.

    Its epochs are unchanged. The laws of the epochs are fitted to the original trial.
    """
    if not question.constraints or trial.state is not TrialState.REACHED:
        return trial
    broken = question.broken(trial)
    if not broken:
        return trial
    return dataclasses.replace(
        trial,
        state=TrialState.CENSORED,
        epochs_to_target=None,
        reason=f"not within the constraints: {broken}",
    )


def samples_per_epoch(trials: Sequence[Trial]) -> float | None:
    """Return the median samples per epoch over the trials; None if no trial reports them."""
    told = [trial.samples / trial.epochs for trial in trials if trial.samples and trial.epochs]
    return float(np.median(told)) if told else None


def measured_trials(trials: Sequence[Trial]) -> list[int]:
    """Return the ids of the trials from which the noise scale is read: some of those that reached the target.

    If none did, as with a fixed budget, return some of those that trained to the end of their budget.
    """
    reached = [trial.id for trial in trials if trial.state is TrialState.REACHED]
    reached = reached or [trial.id for trial in trials if trial.state is TrialState.CENSORED]
    return reached[:: math.ceil(len(reached) / MOST_MEASURED)] if reached else []


def noise_scales(points: Convergence) -> dict[int, float]:
    """Return each trial's noise scale in samples, the median over its points; trials without one are left out."""
    found = {}
    measured = np.isfinite(points.gradient_noise_scale) & (points.gradient_noise_scale > 0)
    for trial_id in np.unique(points.trial_id[measured]):
        found[int(trial_id)] = float(
            np.median(points.gradient_noise_scale[measured & (points.trial_id == trial_id)])
        )
    return found


def observation_of_trial(
    trial: Trial, noise_scale: float | None = None
) -> TrainingObservation | None:
    """Return the observation of a finished trial; None if it failed or ended before its first evaluation."""
    diverged = trial.state is TrialState.DIVERGED
    epochs = trial.epochs_to_target if trial.state is TrialState.REACHED else trial.epochs
    if not trial.state.finished or trial.state is TrialState.FAILED or not (epochs or diverged):
        return None
    return TrainingObservation(
        global_batch_size=trial.global_batch_size,
        state=trial.state.value,
        epochs=epochs or 0.0,
        settings=trial.settings,
        seed=trial.seed,
        resolution_epochs=trial.resolution_epochs or 0.0,
        gradient_noise_scale=noise_scale,
    )


def shortfalls(
    trials: Sequence[Trial],
    question: Question,
    noise_scales: Mapping[int, float] | None = None,
    sizes: Sequence[str] = (),
) -> list[TrainingObservation]:
    """Return observations of the shortfall after a fixed budget.

    A trial that was stopped because others at its batch and ``sizes`` were better is assumed to end behind the best of
    them, which gives only a lower bound on its shortfall. A trial that failed or ended early by itself is left out.
    """
    found, least = [], dict[tuple[object, ...], float]()

    def rung(trial: Trial) -> tuple[object, ...]:
        return trial.global_batch_size, *(trial.settings.get(name) for name in sizes)

    for trial in trials:
        need = question.need(trial)
        if need is not None:
            least[rung(trial)] = min(need, least.get(rung(trial), math.inf))
    for trial in trials:
        need, state = question.need(trial), "reached"
        if need is None and trial.state in (TrialState.PRUNED, TrialState.DIVERGED):
            need, state = least.get(rung(trial), math.inf), trial.state.value
            if trial.state is TrialState.PRUNED and not math.isfinite(need):
                continue
        if need is not None:
            found.append(
                TrainingObservation(
                    global_batch_size=trial.global_batch_size,
                    state=state,
                    epochs=need if math.isfinite(need) else 0.0,
                    settings=trial.settings,
                    seed=trial.seed,
                    gradient_noise_scale=(noise_scales or {}).get(trial.id),
                )
            )
    return found


def tuned_settings_of_space(space: SearchSpace) -> tuple[ScaledSetting, ...]:
    """Return the numeric settings with the role ``scaled``, with the scale and bounds of their domains."""
    domains = {name: space.domains[name] for name in space.scaled}
    return tuple(
        ScaledSetting(name, "log" if domain.log else "linear", domain.low, domain.high)
        for name, domain in domains.items()
        if isinstance(domain, Float | Int)
    )
