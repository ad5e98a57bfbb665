"""The callback for Keras, on any backend: ``model.fit(..., callbacks=[KerasReport({"top1": "val_accuracy"})])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras.callbacks import Callback

from hpo.callbacks.names import report_metrics
from hpo.callbacks.reporting import should_stop


class KerasReport(Callback):  # type: ignore[misc]
    """Reports the metrics after each epoch, and stops training when asked to.

    ``metrics`` maps the study's names to the names in Keras's logs; without it, all metrics are reported under their
    own names.
    """

    def __init__(self, metrics: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._metrics = metrics

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the metrics, and stop if asked to."""
        report_metrics(logs or {}, self._metrics, epochs=epoch + 1)
        if should_stop():
            self.model.stop_training = True
