"""Rules that tie settings to each other: what one value asks of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search_spaces.settings import TrainingSettings


def faults_together(settings: TrainingSettings) -> Iterator[str]:
    """What is wrong with settings whose values are each in their range: the rule, the value and the way out."""
    yield from _faults_of_optimizer(settings)
    yield from _faults_of_schedule(settings)
    yield from _faults_of_batch_control(settings)
    yield from _faults_of_precision(settings)
    yield from _faults_of_update_mode(settings)


def _faults_of_optimizer(settings: TrainingSettings) -> Iterator[str]:
    if settings.nesterov and settings.momentum == 0:
        yield "nesterov needs a momentum above 0, but got momentum 0"


def _faults_of_schedule(settings: TrainingSettings) -> Iterator[str]:
    milestones = settings.decay_milestones
    if list(milestones) != sorted(set(milestones)):
        yield f"decay_milestones must increase, but got {milestones}"
    if settings.decay in ("step", "piecewise") and not milestones:
        yield f"decay {settings.decay!r} needs decay_milestones, the epochs at which the rate changes"
    if settings.decay == "piecewise" and len(settings.decay_values) != len(milestones) + 1:
        yield ("decay 'piecewise' needs one of decay_values before each of decay_milestones and one after the last, "
               f"but got {len(settings.decay_values)} values and {len(milestones)} milestones")
    if settings.decay in ("polynomial", "cosine") and settings.decay_epochs is not None \
            and settings.decay_epochs <= settings.warmup_epochs:
        yield (f"decay_epochs must exceed warmup_epochs, but got decay_epochs {settings.decay_epochs:g} and "
               f"warmup_epochs {settings.warmup_epochs:g}")
    if settings.warmup_shape == "exponential" and settings.warmup_epochs > 0 and settings.warmup_start_factor == 0:
        yield "warmup_shape 'exponential' multiplies the rate and needs a warmup_start_factor above 0, but got 0"


def _faults_of_batch_control(settings: TrainingSettings) -> Iterator[str]:
    milestones, factors = settings.batch_milestones, settings.batch_factors
    if list(milestones) != sorted(set(milestones)):
        yield f"batch_milestones must increase, but got {milestones}"
    if settings.batch_control == "piecewise" and (not milestones or len(milestones) != len(factors)):
        yield ("batch_control 'piecewise' needs batch_milestones and one of batch_factors for each, but got "
               f"{len(milestones)} milestones and {len(factors)} factors")
    if settings.batch_control == "grow" and settings.decay != "step":
        yield ("batch_control 'grow' grows the batch where decay 'step' would lower the rate, but got decay "
               f"{settings.decay!r}; set decay 'step' and decay_milestones, or batch_control 'piecewise'")
    if settings.adascale_batch_size is not None and settings.batch_control != "constant":
        yield ("AdaScale (adascale_batch_size) sets the rate by itself and needs batch_control 'constant', but got "
               f"{settings.batch_control!r}")


def _faults_of_precision(settings: TrainingSettings) -> Iterator[str]:
    if settings.reduced_weights and settings.precision == "fp32":
        yield "reduced_weights needs a precision of bf16 or fp16, but got precision 'fp32'"


def _faults_of_update_mode(settings: TrainingSettings) -> Iterator[str]:
    if settings.update_mode == "synchronous":
        return
    for name, plain in (("gradient_lag", 0), ("gradient_reduction", "mean"), ("adascale_batch_size", None),
                        ("batch_control", "constant")):
        if getattr(settings, name) != plain:
            yield (f"update_mode {settings.update_mode!r} needs {name} {plain!r}, but got "
                   f"{getattr(settings, name)!r}")
