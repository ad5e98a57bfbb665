"""The callback for Hugging Face's Trainer: ``Trainer(..., callbacks=[TrainerReport()])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from hpo.callbacks.names import report_metrics
from hpo.callbacks.reporting import should_stop


class TrainerReport(TrainerCallback):  # type: ignore[misc]
    """Reports the metrics of each evaluation, and stops training when asked to.

    Metrics keep their names from ``compute_metrics``, without ``eval_``; ``metrics`` maps the study's names to other
    names. If the training data has no length, as with streaming, the progress is reported in updates. A second
    evaluation of the same data set without an update in between, such as ``trainer.evaluate()`` after the training, is
    not reported.
    """

    def __init__(self, metrics: Mapping[str, str] | None = None) -> None:
        self._metrics = metrics
        self._step, self._reported = -1, set[frozenset[str]]()

    def on_evaluate(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        train_dataloader: Any = None,
        **others: Any,  # noqa: ARG002
    ) -> None:
        """Report the metrics, and stop on all workers if asked to."""
        if not state.epoch:
            return  # an evaluation before training started
        told = {name: value for name, value in (metrics or {}).items() if name != "epoch"}
        if state.global_step != self._step:
            self._step, self._reported = state.global_step, set()
        if frozenset(told) in self._reported:
            return
        self._reported.add(frozenset(told))  # several data sets have metrics of different names
        if train_dataloader is None or has_length(train_dataloader):
            report_metrics(told, self._metrics, epochs=state.epoch, prefix="eval_")
        else:  # Trainer divides by max_steps then, so that its epoch is not a pass over the data
            report_metrics(told, self._metrics, steps=state.global_step, prefix="eval_")
        asked = [should_stop()]
        broadcast_object_list(asked, from_process=0)
        if asked[0]:
            control.should_training_stop = True
