"""Trials as a sweep would leave them, written without training anything."""

from __future__ import annotations

from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, TrialResult, TrialState
from storage.store import Store


def write_trials(store: Store, study_id: int, *, train_samples: int, best_metric: float) -> None:
    """Write trials that need 2 (1 + batch / 64) epochs at the learning rate batch / 160, and more at other rates."""
    for batch in (16, 32, 64):
        for seed, factor in enumerate((0.5, 0.7, 1.0, 1.0, 1.4, 2.0)):
            settings = TrainingSettings(
                learning_rate=batch / 160 * factor, normalization_batch_size=1
            )
            (trial,) = store.add_trials(
                study_id,
                [NewTrial(global_batch_size=batch, seed=seed, settings=settings.to_dict())],
            )
            epochs = 2 * (1 + batch / 64) * (1 + (factor - 1) ** 2)
            store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.REACHED,
                    epochs_to_target=epochs,
                    epochs=epochs,
                    steps=round(epochs * train_samples / batch),
                    seconds=epochs,
                    best_metric=best_metric,
                    final_metric=best_metric,
                    resolution_epochs=0.25,
                ),
            )
