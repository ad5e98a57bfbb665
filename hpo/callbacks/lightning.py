"""The callback for Lightning: ``Trainer(callbacks=[LightningReport({"top1": "val_acc"})])``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from hpo.callbacks.names import report_metrics
from hpo.callbacks.reporting import should_stop


class LightningReport(Callback):  # type: ignore[misc]
    """Reports the logged metrics after each validation, and stops training when asked to.

    ``metrics`` maps the study's names to the logged names; without it, all metrics are reported under their own names.
    If the number of batches per epoch is unknown, as for streamed data, the progress is reported in updates.
    """

    def __init__(self, metrics: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._metrics = metrics

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Report the metrics, and stop on all workers if asked to."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        found, batches = trainer.callback_metrics, trainer.num_training_batches
        if math.isinf(batches):
            report_metrics(found, self._metrics, steps=trainer.global_step)
        else:
            done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
            epochs = trainer.current_epoch + done / max(1, batches)
            report_metrics(found, self._metrics, epochs=epochs)
        if trainer.strategy.reduce_boolean_decision(should_stop(), all=False):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, because a restarted run simply continues reporting."""
        return {}
