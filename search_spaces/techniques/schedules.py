"""The registries of schedules: how the learning rate falls, how it rises in the warmup, and how the batch size changes.

The formulas are pure functions of progress, in the module that ``rule`` names. The entry point of a plug-in is named
after the setting and the schedule: ``decay.sawtooth``, ``warmup_shape.cubic``, ``batch_control.doubling``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from search_spaces.own_settings import OwnSetting, Range
from search_spaces.plugins import PluginRegistry, plugin_instance_of
from search_spaces.techniques.technique import Technique


@dataclass(frozen=True, kw_only=True)
class DecayDescription(Technique):
    """How the learning rate falls after the warmup.

    ``rule`` names a function ``(by, settings, epochs, end) -> factor`` that returns a multiple of the peak, where
    ``end`` is the end of the decay in epochs, and ``by`` the arithmetic (:mod:`trainers.schedules.arithmetic`).
    ``ends`` says whether the function reads ``end``, which is ``decay_epochs`` or the trial's budget.
    """

    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class WarmupDescription(Technique):
    """How the rate rises; ``rule`` names ``(by, settings, t) -> factor``, a multiple of the peak, for t from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class BatchControlDescription(Technique):
    """How the batch size changes; ``rule`` names a :class:`trainers.schedules.batch_size.BatchControl`."""


def _milestones(settings: Any) -> Iterator[str]:
    if not settings.decay_milestones:
        yield f"decay {settings.decay!r} needs decay_milestones, the epochs at which the rate changes"


def _piecewise(settings: Any) -> Iterator[str]:
    yield from _milestones(settings)
    values, milestones = len(settings.decay_values), len(settings.decay_milestones)
    if values != milestones + 1:
        yield (
            "decay 'piecewise' needs one entry of decay_values before each of decay_milestones "
            f"and one after the last, but got {values} values and {milestones} milestones"
        )


def _exponential(settings: Any) -> Iterator[str]:
    if settings.warmup_epochs > 0 and settings.warmup_start_factor == 0:
        yield "warmup_shape 'exponential' multiplies the rate and needs a warmup_start_factor above 0, but got 0"


def _batch_pieces(settings: Any) -> Iterator[str]:
    milestones, factors = settings.batch_milestones, settings.batch_factors
    if not milestones or len(milestones) != len(factors):
        yield (
            "batch_control 'piecewise' needs batch_milestones and one entry of batch_factors "
            "for each, but got "
            f"{len(milestones)} milestones and {len(factors)} factors"
        )


def _growth(settings: Any) -> Iterator[str]:
    if settings.decay != "step":
        yield (
            "batch_control 'grow' grows the batch where decay 'step' would lower the rate, but got decay "
            f"{settings.decay!r}; set decay to 'step' and give decay_milestones, or set batch_control to 'piecewise'"
        )


_COOLDOWN = {
    "cooldown_share": OwnSetting(
        what="final fraction of training, over which the learning rate falls to "
        "end_learning_rate_factor; 0: no cooldown",
        default=0.2,
        range=Range(0, 1),
        unit="of training",
    ),
    "cooldown_shape": OwnSetting(
        what="shape of the cooldown: linear, half a cosine, or 1 minus the square root of time",
        default="linear",
        choices=("linear", "cosine", "one_less_sqrt"),
    ),
}

_RATES, _BATCHES = "trainers.schedules.learning_rate", "trainers.schedules.batch_size"

DECAYS: PluginRegistry[DecayDescription] = PluginRegistry(
    "schedules",
    {
        "constant": DecayDescription(
            rule=f"{_RATES}:constant", about="stays at the peak", source="arXiv:1706.02677"
        ),
        "step": DecayDescription(
            rule=f"{_RATES}:step",
            about="multiplies the rate by decay_factor at each milestone",
            source="arXiv:1706.02677, section 5.1",
            uses=("decay_milestones", "decay_factor"),
            faults=_milestones,
        ),
        "piecewise": DecayDescription(
            rule=f"{_RATES}:piecewise",
            about="takes one of decay_values between successive milestones",
            source="arXiv:1711.04325, slow start",
            uses=("decay_milestones", "decay_values"),
            faults=_piecewise,
        ),
        "polynomial": DecayDescription(
            rule=f"{_RATES}:polynomial",
            about="falls as a power of the remaining fraction, to end_learning_rate_factor",
            source="arXiv:1708.03888; MLPerf: power 2",
            uses=("decay_epochs", "decay_power", "end_learning_rate_factor"),
            ends=True,
        ),
        "cosine": DecayDescription(
            rule=f"{_RATES}:cosine",
            about="falls along half a cosine period, to end_learning_rate_factor",
            source="arXiv:1608.03983",
            uses=("decay_epochs", "end_learning_rate_factor"),
            ends=True,
        ),
        "linear": DecayDescription(
            rule=f"{_RATES}:linear",
            about="falls linearly to end_learning_rate_factor, which is zero by default",
            source="arXiv:2502.15938, linear to zero",
            uses=("decay_epochs", "end_learning_rate_factor"),
            ends=True,
        ),
        "wsd": DecayDescription(
            rule=f"{_RATES}:wsd",
            about="stays at the peak, then cools down over the final fraction of training",
            source="arXiv:2404.06395; arXiv:2405.18392",
            uses=("decay_epochs", "end_learning_rate_factor"),
            settings=_COOLDOWN,
            ends=True,
        ),
        "inverse_sqrt": DecayDescription(
            rule=f"{_RATES}:inverse_sqrt",
            about="falls with the inverse square root of time, then cools down",
            source="arXiv:2106.04560, section 3.5",
            uses=("decay_epochs", "end_learning_rate_factor"),
            settings={
                "inverse_sqrt_epochs": OwnSetting(
                    what="time scale: this long after the warmup, the learning rate is the "
                    "peak divided by the square root of 2",
                    default=1.0,
                    range=Range(0, low_open=True),
                    unit="epochs",
                ),
                **_COOLDOWN,
            },
            ends=True,
        ),
        "power": DecayDescription(
            rule=f"{_RATES}:power",
            about="stays at the peak, falls as a power of time, then cools down",
            source="arXiv:2408.13359",
            uses=("decay_epochs", "end_learning_rate_factor"),
            settings={
                "power_start_epochs": OwnSetting(
                    what="how long the learning rate stays at its peak",
                    default=1.0,
                    range=Range(0, low_open=True),
                    unit="epochs",
                ),
                "power_exponent": OwnSetting(
                    what="exponent of the power law by which the learning rate falls over time",
                    default=0.51,
                    range=Range(0),
                ),
                **_COOLDOWN,
            },
            ends=True,
        ),
    },
    plugin_instance_of(DecayDescription),
    "decay",
)
"""How the rate falls, by value of the setting ``decay``."""

WARMUP_SHAPES: PluginRegistry[WarmupDescription] = PluginRegistry(
    "schedules",
    {
        "gradual": WarmupDescription(
            rule=f"{_RATES}:gradual",
            about="rises by a constant amount in each update",
            source="arXiv:1706.02677, section 2.2",
        ),
        "constant": WarmupDescription(
            rule=f"{_RATES}:constant_warmup",
            about="stays at the start value",
            source="arXiv:1706.02677, section 2.2",
        ),
        "exponential": WarmupDescription(
            rule=f"{_RATES}:exponential",
            about="rises by a constant factor in each update",
            source="arXiv:1706.02677, geometric instead of linear",
            faults=_exponential,
        ),
        "quadratic": WarmupDescription(
            rule=f"{_RATES}:quadratic",
            about="rises with the square of time",
            source="NVCaffe's ramp-up",
        ),
    },
    plugin_instance_of(WarmupDescription),
    "warmup_shape",
)
"""How the rate rises, by value of the setting ``warmup_shape``."""

BATCH_CONTROLS: PluginRegistry[BatchControlDescription] = PluginRegistry(
    "schedules",
    {
        "constant": BatchControlDescription(
            rule=f"{_BATCHES}:ConstantBatch",
            about="keeps one batch size",
            source="arXiv:1706.02677",
        ),
        "grow": BatchControlDescription(
            rule=f"{_BATCHES}:BatchGrowth",
            about="grows the batch where a step decay would lower the rate",
            source="arXiv:1711.00489",
            uses=("batch_limit_factor",),
            faults=_growth,
        ),
        "piecewise": BatchControlDescription(
            rule=f"{_BATCHES}:BatchPieces",
            about="takes one of batch_factors from each milestone on",
            source="arXiv:1811.05233",
            uses=("batch_milestones", "batch_factors", "batch_rate_rule"),
            faults=_batch_pieces,
        ),
        "doubling": BatchControlDescription(
            rule=f"{_BATCHES}:BatchDoubling",
            about="doubles the batch at planned times, further and further apart, as the noise scale grows",
            source="arXiv:2505.23971, batch size warmup",
            uses=("batch_limit_factor", "batch_rate_rule"),
            settings={
                "doubling_epochs": OwnSetting(
                    what="when the batch first doubles",
                    default=1.0,
                    range=Range(0, low_open=True),
                    unit="epochs",
                ),
                "doubling_spacing": OwnSetting(
                    what="each further doubling occurs at this multiple of the time of the previous "
                    "one",
                    default=2.0,
                    range=Range(1, low_open=True),
                ),
            },
        ),
        "noise_scale": BatchControlDescription(
            rule=f"{_BATCHES}:BatchByNoise",
            about="doubles the batch when the measured noise scale exceeds it",
            source="arXiv:2505.23971, section 4; arXiv:1812.06162",
            uses=("batch_limit_factor", "batch_rate_rule"),
            settings={
                "noise_scale_ratio": OwnSetting(
                    what="the batch doubles once the measured noise scale exceeds the doubled batch "
                    "by this factor",
                    default=1.0,
                    range=Range(0, low_open=True),
                ),
            },
        ),
    },
    plugin_instance_of(BatchControlDescription),
    "batch_control",
)
"""How the batch size changes, by value of the setting ``batch_control``."""
