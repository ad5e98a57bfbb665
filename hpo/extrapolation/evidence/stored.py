"""Evidence from the trials of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpo.extrapolation.evidence.evidence import Evidence, Observation, ScaledSetting
from search_spaces.domains import Float, Int
from search_spaces.space import SearchSpace
from storage.records import Convergence, Trial, TrialState, training_key

MOST_MEASURED = (
    64  # trials whose points are read for their noise scale: the median over more says the same
)

_TELLING = (TrialState.REACHED, TrialState.CENSORED, TrialState.DIVERGED)


def study_evidence(
    trials: Sequence[Trial], space: SearchSpace, noise_scales: Mapping[int, float] | None = None
) -> Evidence:
    """All that the trials say about how the settings that ``space`` scales move with the batch size.

    ``noise_scales`` are measured gradient noise scales in samples, by the id of the trial. Raises
    :class:`EvidenceError` where no trial says anything.
    """
    trials = counted_once(trials)
    observations = [observation(trial, (noise_scales or {}).get(trial.id)) for trial in trials]
    return Evidence(
        observations=tuple(o for o in observations if o is not None),
        tuned=tuned_settings(space),
        samples_per_epoch=samples_per_epoch(trials),
    )


def counted_once(trials: Sequence[Trial]) -> list[Trial]:
    """The trials without those that a study trained again with the same settings, batch size and seed.

    They say nothing that the first has not said, and would pass for other seeds. Of such trainings one that went to its
    end counts before one that was dropped, has failed or is not there yet.
    """
    chosen: dict[tuple[int, int, str] | None, Trial] = {}
    for trial in trials:
        key = training_key(trial)
        if key not in chosen or (trial.state in _TELLING and chosen[key].state not in _TELLING):
            chosen[key] = trial
    return [
        trial for trial in trials if (key := training_key(trial)) is None or chosen[key] is trial
    ]


def samples_per_epoch(trials: Sequence[Trial]) -> float | None:
    """Samples in an epoch, the median over trials; None where none tells."""
    told = [trial.samples / trial.epochs for trial in trials if trial.samples and trial.epochs]
    return float(np.median(told)) if told else None


def measured_trials(trials: Sequence[Trial]) -> list[int]:
    """Ids of the trials whose convergence points tell the noise scale: some of those that reached the target."""
    reached = [trial.id for trial in trials if trial.state is TrialState.REACHED]
    return reached[:: math.ceil(len(reached) / MOST_MEASURED)] if reached else []


def noise_scales(points: Convergence) -> dict[int, float]:
    """The noise scale of each trial in samples, the median over its points; trials that measured none are left out."""
    found = {}
    measured = np.isfinite(points.gradient_noise_scale) & (points.gradient_noise_scale > 0)
    for trial_id in np.unique(points.trial_id[measured]):
        found[int(trial_id)] = float(
            np.median(points.gradient_noise_scale[measured & (points.trial_id == trial_id)])
        )
    return found


def observation(trial: Trial, noise_scale: float | None = None) -> Observation | None:
    """What a finished trial says; None where it says nothing: it failed, or ended before its first evaluation."""
    diverged = trial.state is TrialState.DIVERGED
    epochs = trial.epochs_to_target if trial.state is TrialState.REACHED else trial.epochs
    if not trial.state.finished or trial.state is TrialState.FAILED or not (epochs or diverged):
        return None
    return Observation(
        global_batch_size=trial.global_batch_size,
        state=trial.state.value,
        epochs=epochs or 0.0,
        settings=trial.settings,
        seed=trial.seed,
        resolution_epochs=trial.resolution_epochs or 0.0,
        gradient_noise_scale=noise_scale,
    )


def tuned_settings(space: SearchSpace) -> tuple[ScaledSetting, ...]:
    """The numeric settings with the role ``scaled``, with the scale and bounds of their domains."""
    domains = {name: space.domains[name] for name in space.scaled}
    return tuple(
        ScaledSetting(name, "log" if domain.log else "linear", domain.low, domain.high)
        for name, domain in domains.items()
        if isinstance(domain, Float | Int)
    )
