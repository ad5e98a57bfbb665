"""The registry of optimizers: each is described here once, with everything that is known without training.

``rule`` names the module with its update rule, which can also update several fused trials at once. Plans read its state
size, laws read how its best learning rate changes with the batch size, search spaces read its settings, and ``hpo
init`` and the reference read its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.own_settings import OwnSetting, Range
from search_spaces.plugins import PluginError, PluginRegistry, plugin_instance_of
from search_spaces.techniques.technique import Technique, Use


@dataclass(frozen=True, kw_only=True)
class OptimizerDescription(Technique):
    """An optimizer; ``rule`` names a subclass of :class:`trainers.optimizers.optimizer.GroupOptimizer`.

    Attributes:
        title: the name of its class in ``trainers.optimizers``, for use in other training loops.
        state_bytes: bytes of optimizer state per parameter, in fp32.
        rate_exponent: mean and standard deviation of the prior on ``a``, where the best rate grows as ``batch^a``
            before it levels off; None if nothing is published, in which case a forecast uses a wide prior.
        exponent_source: the source of ``rate_exponent``.
        rate_law: the law that extrapolates the best learning rate: ``descent`` for momentum SGD, whose epochs to
            target follow from its learning rate; ``adam``, fitted to published Adam runs; ``power``, a power law with
            that exponent.
        layerwise: whether the norm of a tensor's update is independent of the norm of its gradient.
        takes: which parameters its rule updates; ``rest``, the rule of another optimizer, updates the others.
        update_size: what determines the size of an update before layer-wise adaptation, and thus how learning rates
            change with model width: ``gradient``, or ``entries`` if the size of each entry depends only on the learning
            rate; None if neither applies or it is unknown.
        normalizes_decay: whether weight decay is part of the gradient that is normalized entry by entry.
    """

    title: str
    state_bytes: int
    rate_exponent: tuple[float, float] | None = None
    exponent_source: str = ""
    rate_law: Literal["descent", "adam", "power"] = "power"
    layerwise: bool = False
    takes: Literal["all", "matrices"] = "all"
    rest: str = ""
    update_size: Literal["gradient", "entries"] | None = None
    normalizes_decay: bool = False


_LAYERWISE = (0.6, 0.15)
_LAYERWISE_SOURCE = (
    "a layer's update is proportional to the learning rate whatever the gradient; LEGW scales "
    "the rate with the square root of the batch size "
    "(arXiv:1901.08256)"
)
_ADAM = (0.75, 0.2)
_ADAM_SOURCE = "between 0.5 and 1 (arXiv:1812.06162)"
_SWEEPS_SOURCE = (
    "best rates of language models at two batch sizes, 130 to 520 million parameters (arXiv:2509.02046; python -m "
    "benchmarks.optimizer_priors)"
)
_MOMENTS = ("beta1", "beta2", "epsilon", "bias_correction")
_LARC_ON_SGD, _LARC_ON_ADAM = Use("larc_optimizer", ("sgd",)), Use("larc_optimizer", ("adam",))


def _share(what: str, default: float) -> OwnSetting:
    return OwnSetting(what=what, default=default, range=Range(0, 1, high_open=True))


def _needs_one_server(settings: Any) -> Iterator[str]:
    if settings.update_mode != "synchronous":
        yield (
            f"optimizer {settings.optimizer!r} is evaluated at its averaged weights, which a "
            f"parameter server does not have; it needs update_mode 'synchronous', but got "
            f"{settings.update_mode!r}"
        )


# settings of every optimizer that shrinks the weights by rate * weight_decay in each update
_DECOUPLED = {
    "weight_decay_epochs": OwnSetting(
        what="time scale of the decay, 1 / (rate * weight_decay), given instead of weight_decay; "
        "null: use weight_decay",
        default=None,
        range=Range(0, low_open=True),
        unit="epochs",
    )
}
OF_LOOP = frozenset(_DECOUPLED)
"""Optimizer settings that the training loop reads instead of the update rules."""

_SCHEDULE_FREE = _DECOUPLED | {
    "schedule_free_beta": OwnSetting(
        what="fraction of the averaged weights in the weights at which gradients are computed",
        default=0.9,
        range=Range(0, 1, low_open=True, high_open=True),
    ),
    "schedule_free_rate_power": OwnSetting(
        what="exponent of the largest learning rate so far in an update's weight in the average",
        default=2.0,
        range=Range(0),
    ),
    "schedule_free_r": OwnSetting(
        what="exponent of the update number in an update's weight in the average",
        default=0.0,
        range=Range(0),
    ),
}

OWN = "own:"
"""Prefix of the name of an optimizer that only the user's program implements."""
_OWN_NAME = re.compile(re.escape(OWN) + r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


class _Optimizers(PluginRegistry[OptimizerDescription]):
    """The described optimizers; ``own:NAME`` is an optimizer that only a program implements.

    Such an optimizer may read every setting that a described optimizer reads, and its best learning rate follows a
    power law that is fitted to trials alone.
    """

    def __getitem__(self, name: str) -> OptimizerDescription:
        if not is_own(name):
            return super().__getitem__(name)
        return OptimizerDescription(
            title=name.removeprefix(OWN),
            rule=f"{name.removeprefix(OWN)}:program",
            about="the program's own optimizer",
            source="the program",
            uses=tuple(
                dict.fromkeys(
                    each for its in self.built_in.values() for each in (*its.uses, *its.uses_if)
                )
            ),
            state_bytes=8,
        )

    def __contains__(self, name: object) -> bool:
        return is_own(name) or super().__contains__(name)

    def explain(self, name: object) -> str:
        return (
            f"{super().explain(name)}; an optimizer that only your program knows is written "
            f"{OWN}NAME"
        )


def is_own(name: object) -> bool:
    """Return whether a name is ``own:NAME``, an optimizer that only a program implements."""
    return isinstance(name, str) and _OWN_NAME.fullmatch(name) is not None


OPTIMIZERS: PluginRegistry[OptimizerDescription] = _Optimizers(
    "optimizers",
    {
        "sgd": OptimizerDescription(
            title="SGD",
            rule="trainers.optimizers.sgd:SGDRule",
            about="momentum SGD, with the rate outside or inside the momentum buffer",
            source="arXiv:1706.02677, section 3",
            uses=("momentum", "momentum_form", "nesterov"),
            state_bytes=4,
            rate_exponent=(0.95, 0.1),
            exponent_source="linear (arXiv:1706.02677, arXiv:1812.06162)",
            rate_law="descent",
            update_size="gradient",
        ),
        "lars": OptimizerDescription(
            title="LARS",
            rule="trainers.optimizers.lars:LARSRule",
            about="layer-wise adaptive rate scaling of momentum SGD",
            source="arXiv:1708.03888",
            uses=(
                "momentum",
                "momentum_form",
                "nesterov",
                "trust_coefficient",
                "trust_epsilon",
                "adapt_norm_and_bias",
            ),
            state_bytes=4,
            rate_exponent=_LAYERWISE,
            exponent_source=_LAYERWISE_SOURCE,
            layerwise=True,
            update_size="gradient",
        ),
        "larc": OptimizerDescription(
            title="LARC",
            rule="trainers.optimizers.larc:LARCRule",
            about="layer-wise adaptive rate control, as in apex",
            source="NVIDIA/apex, apex/parallel/LARC.py",
            uses=(
                "trust_coefficient",
                "trust_epsilon",
                "adapt_norm_and_bias",
                "larc_mode",
                "larc_optimizer",
            ),
            uses_if={"momentum": _LARC_ON_SGD, "nesterov": _LARC_ON_SGD}
            | dict.fromkeys(_MOMENTS, _LARC_ON_ADAM),
            state_bytes=8,
            rate_exponent=_LAYERWISE,
            exponent_source=_LAYERWISE_SOURCE,
            layerwise=True,
        ),
        "lamb": OptimizerDescription(
            title="LAMB",
            rule="trainers.optimizers.lamb:LAMBRule",
            about="layer-wise adaptive moments",
            source="arXiv:1904.00962",
            uses=(*_MOMENTS, "trust_epsilon", "adapt_norm_and_bias", "weight_norm_limit"),
            state_bytes=8,
            rate_exponent=_LAYERWISE,
            exponent_source=_LAYERWISE_SOURCE,
            layerwise=True,
            update_size="entries",
        ),
        "adam": OptimizerDescription(
            title="Adam",
            rule="trainers.optimizers.adam:AdamRule",
            about="Adam with weight decay in the gradient",
            source="arXiv:1412.6980",
            uses=_MOMENTS,
            state_bytes=8,
            rate_exponent=_ADAM,
            exponent_source=_ADAM_SOURCE,
            rate_law="adam",
            update_size="entries",
            normalizes_decay=True,
        ),
        "adamw": OptimizerDescription(
            title="AdamW",
            rule="trainers.optimizers.adamw:AdamWRule",
            about="Adam with decoupled weight decay",
            source="arXiv:1711.05101",
            uses=_MOMENTS,
            settings=_DECOUPLED,
            state_bytes=8,
            rate_exponent=_ADAM,
            exponent_source=_ADAM_SOURCE,
            rate_law="adam",
            update_size="entries",
        ),
        "rmsprop_warmup": OptimizerDescription(
            title="RMSpropWarmup",
            rule="trainers.optimizers.rmsprop_warmup:RMSpropWarmupRule",
            about="RMSprop that becomes momentum SGD over the first epochs",
            source="arXiv:1711.04325",
            uses=(
                "momentum",
                "beta2",
                "epsilon",
                "rmsprop_learning_rate",
                "rmsprop_center_epochs",
                "rmsprop_period_epochs",
            ),
            state_bytes=8,
        ),
        "shampoo": OptimizerDescription(
            title="Shampoo",
            rule="trainers.optimizers.shampoo:ShampooRule",
            about="second-order preconditioning with Kronecker factors, grafted onto momentum SGD",
            source="arXiv:1802.09568, arXiv:2002.09018",
            uses=(
                "momentum",
                "nesterov",
                "beta2",
                "epsilon",
                "adapt_norm_and_bias",
                "preconditioner_interval",
                "preconditioner_size_limit",
            ),
            # the factors, whose size depends on the shapes, count as one more copy of the parameters
            state_bytes=12,
        ),
        "soap": OptimizerDescription(
            title="SOAP",
            rule="trainers.optimizers.soap:SOAPRule",
            about="Adam in the eigenbasis of Shampoo's factors",
            source="arXiv:2409.11321",
            uses=(
                "epsilon",
                "bias_correction",
                "preconditioner_interval",
                "preconditioner_size_limit",
                "adapt_norm_and_bias",
            ),
            settings=_DECOUPLED
            | {
                "soap_beta1": _share("decay per update of SOAP's average of the gradient", 0.95),
                "soap_beta2": _share("decay per update of SOAP's second moment and factors", 0.95),
            },
            # factors and bases, whose size depends on the shapes, count as two more copies of the parameters
            state_bytes=16,
            rate_exponent=(0.35, 0.3),
            exponent_source=_SWEEPS_SOURCE,
        ),
        "muon": OptimizerDescription(
            title="Muon",
            rule="trainers.optimizers.muon:MuonRule",
            about="orthogonalized momentum for matrices, AdamW for all other parameters",
            source="kellerjordan.github.io/posts/muon; arXiv:2502.16982",
            uses=_MOMENTS,
            settings=_DECOUPLED
            | {
                "muon_momentum": _share("decay per update of the momentum of a matrix", 0.95),
                "muon_nesterov": OwnSetting(what="Nesterov momentum for matrices", default=True),
                "muon_rate_scaling": OwnSetting(
                    what="scale a matrix's rate to match AdamW's update size (rms), or by its "
                    "shape only (shape)",
                    default="rms",
                    choices=("rms", "shape"),
                ),
                "muon_rest_rate": OwnSetting(
                    what="learning rate of the parameters that AdamW updates",
                    default=1.0,
                    range=Range(0, low_open=True),
                    unit="of the learning rate",
                ),
                "muon_iterations": OwnSetting(
                    what="Newton-Schulz steps in each update",
                    default=5,
                    range=Range(1, 20),
                    whole=True,
                ),
            },
            state_bytes=4,
            rate_exponent=(0.22, 0.34),
            exponent_source=_SWEEPS_SOURCE,
            layerwise=True,
            takes="matrices",
            rest="adamw",
        ),
        "lion": OptimizerDescription(
            title="Lion",
            rule="trainers.optimizers.lion:LionRule",
            about="the sign of an interpolated momentum",
            source="arXiv:2302.06675",
            uses=("beta1",),
            settings=_DECOUPLED
            | {"lion_beta2": _share("decay per update of Lion's momentum", 0.99)},
            state_bytes=4,
            rate_exponent=(0.56, 0.31),
            exponent_source=_SWEEPS_SOURCE,
            update_size="entries",
        ),
        "nadamw": OptimizerDescription(
            title="NAdamW",
            rule="trainers.optimizers.nadamw:NAdamWRule",
            about="AdamW with Nesterov's momentum",
            source="Dozat 2016, as in optax",
            uses=_MOMENTS,
            settings=_DECOUPLED,
            state_bytes=8,
            rate_exponent=_ADAM,
            exponent_source=_ADAM_SOURCE,
            rate_law="adam",
            update_size="entries",
        ),
        "schedule_free_sgd": OptimizerDescription(
            title="ScheduleFreeSGD",
            rule="trainers.optimizers.schedule_free:ScheduleFreeSGDRule",
            about="SGD evaluated at its averaged weights, which replaces a decay",
            source="arXiv:2405.15682",
            settings=_SCHEDULE_FREE,
            state_bytes=4,
            faults=_needs_one_server,
            update_size="gradient",
        ),
        "schedule_free_adamw": OptimizerDescription(
            title="ScheduleFreeAdamW",
            rule="trainers.optimizers.schedule_free:ScheduleFreeAdamWRule",
            about="AdamW evaluated at its averaged weights, which replaces a decay",
            source="arXiv:2405.15682",
            uses=("beta2", "epsilon", "bias_correction"),
            settings=_SCHEDULE_FREE,
            state_bytes=8,
            faults=_needs_one_server,
            update_size="entries",
        ),
        "ademamix": OptimizerDescription(
            title="AdEMAMix",
            rule="trainers.optimizers.ademamix:AdEMAMixRule",
            about="AdamW with a second, slow average of the gradient",
            source="arXiv:2409.03137",
            uses=_MOMENTS,
            settings=_DECOUPLED
            | {
                "ademamix_alpha": OwnSetting(
                    what="weight of the slow average relative to the fast one",
                    default=5.0,
                    range=Range(0),
                ),
                "ademamix_beta3": _share("decay per update of the slow average", 0.9999),
                "ademamix_warmup_epochs": OwnSetting(
                    what="time over which the slow average is phased in",
                    default=0.0,
                    range=Range(0),
                    unit="epochs",
                ),
            },
            state_bytes=12,
            update_size="entries",
        ),
    },
    plugin_instance_of(OptimizerDescription),
)
"""The optimizers, by value of the setting ``optimizer``."""


def described_optimizer(name: object) -> OptimizerDescription | None:
    """Return the description of an optimizer by its name; None if it is unknown or its plug-in is missing."""
    try:
        return OPTIMIZERS[name] if isinstance(name, str) else None
    except (KeyError, PluginError):
        return None
