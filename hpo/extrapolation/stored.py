"""Evidence from the trials of a study."""

from __future__ import annotations

from collections.abc import Sequence

from hpo.extrapolation.evidence import Evidence, Observation, ScaledSetting
from search_spaces.domains import Float, Int
from search_spaces.space import SearchSpace
from storage.records import Trial, TrialState


def study_evidence(trials: Sequence[Trial], space: SearchSpace) -> Evidence:
    """All that the trials say about how the settings that ``space`` scales move with the batch size.

    Raises :class:`EvidenceError` where no trial says anything.
    """
    observations = [observation(trial) for trial in trials]
    return Evidence(observations=tuple(o for o in observations if o is not None), tuned=tuned_settings(space))


def observation(trial: Trial) -> Observation | None:
    """What a finished trial says; None where it says nothing: it failed, or ended before its first evaluation."""
    diverged = trial.state is TrialState.DIVERGED
    epochs = trial.epochs_to_target if trial.state is TrialState.REACHED else trial.epochs
    if not trial.state.finished or trial.state is TrialState.FAILED or not (epochs or diverged):
        return None
    return Observation(global_batch_size=trial.global_batch_size, state=trial.state.value, epochs=epochs or 0.0,
                       settings=trial.settings, seed=trial.seed, resolution_epochs=trial.resolution_epochs or 0.0)


def tuned_settings(space: SearchSpace) -> tuple[ScaledSetting, ...]:
    """The numeric settings with the role ``scaled``, with the scale and bounds of their domains."""
    domains = {name: space.domains[name] for name in space.scaled}
    return tuple(ScaledSetting(name, "log" if domain.log else "linear", domain.low, domain.high)
                 for name, domain in domains.items() if isinstance(domain, Float | Int))
