"""AskedTrial: a trial held by its client, and AskTell, the study that it comes from.

::

    with hpo.ask_tell("study.yaml") as study:
        while (trial := study.ask()) is not None:
            for epoch, top1, loss in my_training(trial.settings, trial.global_batch_size, trial.seed):
                trial.report(epochs=epoch, metric=top1, loss=loss, steps=...)
                if trial.should_stop:
                    break
            trial.tell()
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self, SupportsFloat, SupportsIndex

from hpo.ask_and_tell.messages import LEASE_SECONDS, QUEUED, RUNNING, Asked, Channel, ReportVerdict
from hpo.errors import FigureError, TrialLostError, TuningError
from search_spaces.settings import TrainingSettings
from storage.figures import fault_of_points
from trainers.job import TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome

SEND_SECONDS = 0.2
"""Seconds over which reports are batched: a run that takes milliseconds sends a single message."""

BACKGROUND_SECONDS = 1.0
"""Seconds between reports sent in the background, as many clients may share one server."""

BEATS = 4.0
"""Heartbeats per lease period."""


class AskedTrial:
    """One trial, held under a lease that a thread renews until the trial is finished or given back.

    Used as a context manager, it finishes the trial at the end of the block; an exception there marks the trial as
    failed, and KeyboardInterrupt gives it back. With ``background``, the thread also sends the reports, so that
    training never waits for a server; the answer to a report then arrives with a later report.
    """

    def __init__(
        self,
        channel: Channel,
        key: str,
        asked: Asked,
        lease_seconds: float,
        *,
        background: bool = False,
    ) -> None:
        if asked.number is None or asked.job is None:
            raise TuningError("this answer contains no trial")
        self.number: int = asked.number
        self.job: TrainingJob = asked.job
        self._channel, self._key, self._seconds = channel, key, lease_seconds
        self._began_at = self._sent_at = time.monotonic()
        self._unsent: list[ConvergencePoint] = []
        self._last: ConvergencePoint | None = None
        self._verdict, self._reached, self._state = ReportVerdict(), False, RUNNING
        self._error: TrialLostError | None = None
        self._background = background
        self._pause = BACKGROUND_SECONDS if background else SEND_SECONDS
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"trial {self.number}", daemon=True)
        self._thread.start()

    @property
    def settings(self) -> TrainingSettings:
        """The settings of the training run, tuned and fixed."""
        return self.job.settings

    @property
    def global_batch_size(self) -> int:
        """Samples per update, over all workers."""
        return self.job.global_batch_size

    @property
    def seed(self) -> int:
        """The seed of the initial weights and of the order of the samples."""
        return self.job.seed

    @property
    def state(self) -> str:
        """``running`` until the trial is finished; then how it ended, or ``queued`` if it went back into the queue."""
        return self._state

    @property
    def should_stop(self) -> bool:
        """Whether to stop: the target is reached, the budget of epochs is spent, the loss has diverged, other trials
        are better, or this client no longer holds the trial.
        """
        last = self._last
        spent = last is not None and (
            last.epochs >= self.job.epochs * (1 - 1e-9) or not math.isfinite(last.metric)
        )
        return self._error is not None or self._verdict.stop or self._reached or spent

    @property
    def stop_reason(self) -> str:
        """Why the trial was stopped from outside; empty if it was not."""
        return str(self._error) if self._error else self._verdict.reason

    def report(
        self,
        *,
        epochs: float,
        metric: float,
        steps: int,
        loss: float = math.nan,
        train_loss: float = math.nan,
        seconds: float | None = None,
        learning_rate: float | None = None,
        samples: int | None = None,
        gradient_noise_scale: float | None = None,
    ) -> bool:
        """Report one evaluation, after ``steps`` updates and ``epochs`` epochs; return whether to continue.

        ``metric`` is the value of the study's metric; unmeasured values are NaN. Values may be anything that ``float``
        accepts, such as tensors of one element; ``steps`` and ``samples`` must be whole numbers. By default,
        ``seconds`` is the time since the start of the trial, and ``samples`` is the number of updates times the batch
        size. Raises :class:`TuningError` for impossible values and for evaluations that go backwards, and
        :class:`TrialLostError` if another client now holds the trial.
        """
        steps, epochs = _whole("steps", steps), _number("epochs", epochs)
        last = self._last
        if last is not None and (steps <= last.step or epochs < last.epochs):
            raise TuningError(
                f"evaluations must go forward, but got step {steps} and epoch {epochs:g} after step {last.step} and "
                f"epoch {last.epochs:g}"
            )
        if steps < 1 or not 0 < epochs < math.inf:
            raise TuningError(
                f"an evaluation must come after at least one step and above 0 epochs, but got {steps} and {epochs:g}"
            )
        rate = self.settings.learning_rate if learning_rate is None else learning_rate
        noise = gradient_noise_scale
        point = ConvergencePoint(
            step=steps,
            samples=steps * self.global_batch_size
            if samples is None
            else _whole("samples", samples),
            epochs=epochs,
            seconds=time.monotonic() - self._began_at
            if seconds is None
            else _number("seconds", seconds),
            train_loss=_number("train_loss", train_loss),
            loss=_number("loss", loss),
            metric=_number("metric", metric),
            learning_rate=_number("learning_rate", rate),
            global_batch_size=self.global_batch_size,
            gradient_noise_scale=None if noise is None else _number("gradient_noise_scale", noise),
        )
        if fault := fault_of_points([point]):
            raise FigureError(f"trial {self.number}: {fault}")
        return self.report_point(point)

    def report_point(self, *points: ConvergencePoint) -> bool:
        """Report points that a trainer produced; otherwise like :meth:`report`."""
        self._check()
        with self._lock:
            for point in points:
                if self._unsent and self._unsent[-1].step >= point.step:  # a restart
                    self._unsent = [each for each in self._unsent if each.step < point.step]
                self._unsent.append(point)
                self._last = point
                self._reached = self._reached or self.job.target.reached(point.metric)
        if self._background:
            self._wake.set()
        elif time.monotonic() - self._sent_at >= self._pause:
            self._send()
        return not self.should_stop

    def report_last(self, *points: ConvergencePoint) -> None:
        """Keep points for the next call of :meth:`tell`, which sends them."""
        self._check()
        with self._lock:
            self._unsent += points

    @property
    def stopped(self) -> bool:
        """Whether the trial was stopped from outside: other trials are better, or its study was cancelled."""
        return self._verdict.stop

    def abandon(self) -> None:
        """Send no more heartbeats and no result: another process has the trial."""
        self._finish()

    def tell(
        self,
        state: str | None = None,
        *,
        reason: str = "",
        outcome: TrainingOutcome | None = None,
    ) -> str:
        """End the trial; return how it ended.

        The trial's points determine whether it reached the target, diverged, or is censored, unless ``state``
        (``failed`` for a run that crashed) or a trainer's ``outcome`` is given. A trial that was stopped from outside
        has already ended. Raises :class:`TrialLostError` if another client now holds the trial.
        """
        self._finish()
        self._check()
        if not self._verdict.stop:
            self._state = self._channel.end(
                self.number, self._key, self._unsent, outcome=outcome, state=state, reason=reason
            )
            self._unsent = []
        return self._state

    def release(self) -> None:
        """Give the trial back: it is queued, and another process trains it from its last checkpoint or from the
        start.
        """
        self._finish()
        if self._error is None and self._state == RUNNING:
            self._channel.release(self.number, self._key)
            self._state = QUEUED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != RUNNING or self._error is not None or self._verdict.stop:
            self._finish()
        elif error is None:
            self.tell()
        elif isinstance(error, Exception):
            self.tell("failed", reason=f"{type(error).__name__}: {error}")
        else:
            self.release()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._state != RUNNING and not self._verdict.stop:
            raise TuningError(f"trial {self.number} was reported already, as {self._state!r}")

    def _send(self) -> None:
        """Send unsent reports, or a heartbeat; one message at a time, in order."""
        with self._sending:
            if self._verdict.stop or self._error is not None:
                return
            with self._lock:
                points, self._unsent = self._unsent, []
            self._sent_at = time.monotonic()
            try:
                verdict = self._channel.report(self.number, self._key, points, self._seconds)
            except TrialLostError as error:
                self._error = error
                raise
            except BaseException:
                with self._lock:
                    self._unsent = [*points, *self._unsent]
                raise
            if verdict.stop:
                self._state, self._verdict = verdict.state, verdict

    def _beat(self) -> None:
        """Do the thread's work: send heartbeats and, with ``background``, reports."""
        while not self._over.is_set():
            reported = self._wake.wait(self._seconds / BEATS)
            if reported and self._over.wait(self._sent_at + self._pause - time.monotonic()):
                return
            self._wake.clear()
            if not self._over.is_set():
                # the next report, or the end, gets the same error and raises it
                with contextlib.suppress(Exception):
                    self._send()

    def _finish(self) -> None:
        self._over.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


class AskTell:
    """A study that hands out trials: :meth:`ask` until it returns None. Threads and processes may share a study.

    ``message``, ``ended`` and ``wait_seconds`` come from the last answer: why there was no trial, whether the study has
    ended, and when to ask again.
    """

    def __init__(
        self,
        channel: Channel,
        holder: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        background: bool = False,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._holder, self._seconds = channel, holder, lease_seconds
        self._background, self._close = background, close
        self.message, self.ended, self.wait_seconds = "", False, 0.0

    def ask(
        self, *, wait: bool = True, stopped: Callable[[], bool] = lambda: False
    ) -> AskedTrial | None:
        """Return the next trial, or None when the study has ended; ``message`` then says how.

        Wait while every remaining trial depends on running ones; with ``wait`` off, or once ``stopped`` returns true,
        return None in that case too.
        """
        while not stopped():
            key = uuid.uuid4().hex
            asked = self._channel.ask(key, self._holder, self._seconds)
            self.message, self.ended = asked.message, asked.ended
            self.wait_seconds = asked.wait_seconds
            if asked.number is not None:
                return AskedTrial(
                    self._channel, key, asked, self._seconds, background=self._background
                )
            if asked.ended or not wait:
                return None
            _sleep(asked.wait_seconds, stopped)
        return None

    def close(self) -> None:
        """Close the database."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise FigureError(f"{name} must be a number, but got {value!r:.40}") from None


def _whole(name: str, value: SupportsIndex) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise FigureError(f"{name} must be a whole number, but got {value!r:.40}") from None


def _sleep(seconds: float, stopped: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stopped():
        time.sleep(min(left, 0.2))
