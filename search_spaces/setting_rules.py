"""Rules that tie settings to each other: what one value asks of the others, and which settings others make use of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Use:
    """A way to take effect: ``setting`` has one of ``values`` (none given: is a number above 0), and ``also`` holds."""

    setting: str
    values: tuple[str, ...] = ()
    also: Use | None = None

    def hindrances(self, values_of: Callable[[str], Collection[Any]]) -> Iterator[str]:
        """The settings of which no possible value makes this hold."""
        if not any(
            value in self.values if self.values else (value or 0) > 0
            for value in values_of(self.setting)
        ):
            yield self.setting
        elif self.also is not None:
            yield from self.also.hindrances(values_of)

    def __str__(self) -> str:
        mine = (
            f"{self.setting} {_listed(self.values)}" if self.values else f"{self.setting} above 0"
        )
        return mine if self.also is None else f"{mine} and {self.also}"


def _optimizers(*names: str) -> Use:
    return Use("optimizer", names)


_LARC_ON_SGD = Use("optimizer", ("larc",), Use("larc_optimizer", ("sgd",)))
_LARC_ON_ADAM = Use("optimizer", ("larc",), Use("larc_optimizer", ("adam",)))
_ADAMS = _optimizers("lamb", "adam", "adamw")
_WARMUP = Use("warmup_epochs")
_SERVED = Use("update_mode", ("asynchronous", "stale_synchronous"))

USES: dict[str, tuple[Use, ...]] = {
    "momentum": (_optimizers("sgd", "lars", "rmsprop_warmup", "shampoo"), _LARC_ON_SGD),
    "momentum_form": (_optimizers("sgd", "lars"),),
    "nesterov": (_optimizers("sgd", "lars", "shampoo"), _LARC_ON_SGD),
    "beta1": (_ADAMS, _LARC_ON_ADAM),
    "beta2": (_optimizers("lamb", "adam", "adamw", "rmsprop_warmup", "shampoo"), _LARC_ON_ADAM),
    "epsilon": (_optimizers("lamb", "adam", "adamw", "rmsprop_warmup", "shampoo"), _LARC_ON_ADAM),
    "bias_correction": (_ADAMS, _LARC_ON_ADAM),
    "decay_norm_and_bias": (Use("weight_decay"),),
    "decay_bias": (Use("weight_decay"),),
    "trust_coefficient": (_optimizers("lars", "larc"),),
    "trust_epsilon": (_optimizers("lars", "larc", "lamb"),),
    "adapt_norm_and_bias": (_optimizers("lars", "larc", "lamb", "shampoo"),),
    "weight_norm_limit": (_optimizers("lamb"),),
    "larc_mode": (_optimizers("larc"),),
    "larc_optimizer": (_optimizers("larc"),),
    "rmsprop_learning_rate": (_optimizers("rmsprop_warmup"),),
    "rmsprop_center_epochs": (_optimizers("rmsprop_warmup"),),
    "rmsprop_period_epochs": (_optimizers("rmsprop_warmup"),),
    "preconditioner_interval": (_optimizers("shampoo"),),
    "preconditioner_size_limit": (_optimizers("shampoo"),),
    "warmup_shape": (_WARMUP,),
    "warmup_start_factor": (_WARMUP,),
    "decay_epochs": (Use("decay", ("polynomial", "cosine")),),
    "decay_power": (Use("decay", ("polynomial",)),),
    "decay_milestones": (Use("decay", ("step", "piecewise")),),
    "decay_factor": (Use("decay", ("step",)),),
    "decay_values": (Use("decay", ("piecewise",)),),
    "end_learning_rate_factor": (Use("decay", ("polynomial", "cosine")),),
    "batch_milestones": (Use("batch_control", ("piecewise",)),),
    "batch_factors": (Use("batch_control", ("piecewise",)),),
    "batch_limit_factor": (Use("batch_control", ("grow",)),),
    "batch_rate_rule": (Use("batch_control", ("piecewise",)),),
    "reduced_weights": (Use("precision", ("bf16", "fp16")),),
    "loss_scale": (Use("loss_scaling", ("static", "dynamic")),),
    "loss_scale_growth_updates": (Use("loss_scaling", ("dynamic",)),),
    "asynchronous_workers": (_SERVED,),
    "staleness_bound": (Use("update_mode", ("stale_synchronous",)),),
    "epoch_quorum": (Use("update_mode", ("asynchronous",)),),
}
"""The settings that take effect with certain values of others only, and with which; any one of the uses will do."""


def fault_of_use(name: str, values_of: Callable[[str], Collection[Any]]) -> str | None:
    """Why the setting ``name`` has no effect, whichever of its possible values each setting takes; None if it has."""
    uses = USES.get(name, ())
    hindrances = [[*use.hindrances(values_of)] for use in uses]
    if not all(hindrances) or not uses:
        return None
    others = dict.fromkeys(other for each in hindrances for other in each)
    found = " and ".join(
        f"{other} {_listed(tuple(map(_shown, values_of(other))))}" for other in others
    )
    return f"has no effect with {found}; it is used with {', or with '.join(map(str, uses))}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"
