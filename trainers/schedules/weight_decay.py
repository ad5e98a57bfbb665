"""Weight decay set by its time scale in epochs, so that it scales with the batch and the rate.

Decoupled decay makes the weights an average over their last 1 / (rate * weight_decay) updates (Wang and Aitchison,
arXiv:2405.13698, section 2). In epochs, the length of this average is ``weight_decay_epochs``, so for an update of B
out of N samples

    weight_decay = B / (N * rate * weight_decay_epochs)

at the peak rate and the first batch size. The best time scale hardly depends on batch size, model and data (section 4
there; Bergsma et al., arXiv:2505.13738, section 3), whereas the best coefficient grows with the batch size.
"""

from __future__ import annotations

from search_spaces.settings import TrainingSettings


def with_weight_decay(
    settings: TrainingSettings, global_batch_size: int, train_samples: int
) -> TrainingSettings:
    """Return the settings with the coefficient given by ``weight_decay_epochs``, or unchanged if that is not set."""
    if "weight_decay_epochs" not in settings.own_settings:
        return settings
    epochs = settings.value("weight_decay_epochs")
    if epochs is None:
        return settings
    coefficient = global_batch_size / (train_samples * settings.learning_rate * epochs)
    return settings.replace(weight_decay=coefficient)
