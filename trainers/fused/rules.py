"""The optimizers' rules over the parameters of all fused trainings at once, with vectors of rates.

The formulas are those of :mod:`trainers.optimizers`, rule by rule. All tensors are ``(elements,)``, in the order of
:class:`~trainers.fused.memory.StackedMemory`; a number that each training has of its own is read from a row of a
table, made for many updates at once, so that no update waits for the host. Shampoo is not among them: its factors are
small matrices of many sizes, and each training moves by its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.fused.memory import StackedMemory, rule_of
from trainers.loop.synchronous import Training
from trainers.optimizers.parameter_groups import treatment
from trainers.optimizers.rmsprop_warmup import sgd_share
from trainers.optimizers.trust_ratio import trust_ratios

Numbers = dict[str, float]
"""What one training contributes to one update, by name."""


@dataclass(frozen=True)
class FusedUpdate:
    """One update of all trainings: their gradients ``(elements,)`` and their numbers, ``(K,)`` by name.

    The coefficients of weight decay are those of each element and of each tensor of each training; ``adapted`` says
    whether layer-wise adaptation applies to such a tensor.
    """

    memory: StackedMemory
    gradients: Tensor
    numbers: Mapping[str, Tensor]
    decay_of_elements: Tensor
    decay_of_blocks: Tensor
    adapted: Tensor

    def elements(self, name: str) -> Tensor:
        """A number of each training, for each of its elements: shape ``(elements,)``."""
        return self.memory.over_elements(self.numbers[name])

    def blocks(self, name: str) -> Tensor:
        """A number of each training, for each of its tensors: shape ``(blocks,)``."""
        return self.memory.over_blocks(self.numbers[name])

    def spread(self, of_blocks: Tensor) -> Tensor:
        """A number of each tensor, shape ``(blocks,)``, for each of its elements: shape ``(elements,)``."""
        return of_blocks.index_select(0, self.memory.block_of)


class FusedRule:
    """The rule of all trainings; their settings agree in what :mod:`trainers.fused.fusable` says."""

    def __init__(self, memory: StackedMemory, trainings: Sequence[Training]) -> None:
        self._memory, self._trainings = memory, trainings
        self._settings = trainings[0].job.settings
        self._move = RULES[self._settings.optimizer]
        like = memory.parameters
        treatments = [
            treatment(training.replica.kinds[parameter], training.job.settings)
            for parameters in zip(*(each.replica.parameters for each in trainings), strict=True)
            for training, parameter in zip(trainings, parameters, strict=True)
        ]
        self._decay = torch.tensor([decay for decay, _ in treatments], dtype=like.dtype).to(
            like.device
        )
        self._decay_of_elements = self._decay.index_select(0, memory.block_of)
        self._adapted = torch.tensor([adapted for _, adapted in treatments]).to(like.device)

    def table(
        self, rates: Sequence[Sequence[float]], epochs: Sequence[Sequence[float]]
    ) -> NumberTable:
        """The numbers of the next updates; ``rates`` and ``epochs`` are of each update and training."""
        rows = [
            [
                _numbers(training.job.settings, rule_of(training).updates + at, rate, came)
                for training, rate, came in zip(self._trainings, *each, strict=True)
            ]
            for at, each in enumerate(zip(rates, epochs, strict=True), start=1)
        ]
        names = list(rows[0][0])
        values = [[[its[name] for its in row] for name in names] for row in rows]
        like = self._memory.parameters
        return NumberTable(
            names, torch.tensor(values, dtype=torch.float64).to(like.device, like.dtype)
        )

    @torch.no_grad()
    def step(self, gradients: Tensor, numbers: Mapping[str, Tensor]) -> None:
        """Move all trainings by their gradients."""
        update = FusedUpdate(
            self._memory,
            gradients,
            numbers,
            self._decay_of_elements,
            self._decay,
            self._adapted,
        )
        self._move(update, self._settings)


@dataclass(frozen=True)
class NumberTable:
    """Numbers by update, name and training, ``(updates, names, K)``."""

    names: Sequence[str]
    values: Tensor

    def row(self, update: int) -> dict[str, Tensor]:
        """The numbers of one update, ``(K,)`` each."""
        return dict(zip(self.names, self.values[update].unbind(), strict=True))


def _numbers(settings: TrainingSettings, updates: int, rate: float, epochs: float) -> Numbers:
    """Everything that any rule reads of one training in update number ``updates`` (from 1)."""
    count = updates if settings.bias_correction else math.inf
    share = sgd_share(epochs, settings.rmsprop_center_epochs, settings.rmsprop_period_epochs)
    limit = settings.weight_norm_limit
    return {
        "rate": rate,
        "momentum": settings.momentum,
        "beta2": settings.beta2,
        "first_part": 1 - settings.beta1,
        "second_part": 1 - settings.beta2,
        "epsilon": settings.epsilon,
        "first_correction": 1 - math.pow(settings.beta1, count),
        "second_correction": 1 - math.pow(settings.beta2, count),
        "trust_coefficient": settings.trust_coefficient,
        "trust_epsilon": settings.trust_epsilon,
        "weight_norm_limit": math.inf if limit is None else limit,
        "sgd_share": share,
        "rmsprop_share": (1 - share) * settings.rmsprop_learning_rate / rate if rate else 0.0,
    }


def _sgd(update: FusedUpdate, settings: TrainingSettings) -> None:
    _momentum(update, settings, settings.momentum_form or "outside", None)


def _lars(update: FusedUpdate, settings: TrainingSettings) -> None:
    memory = update.memory
    weights, gradients = memory.norms(memory.parameters, update.gradients)
    ratios = trust_ratios(
        weights,
        gradients,
        update.blocks("trust_coefficient"),
        update.decay_of_blocks,
        update.blocks("trust_epsilon"),
    )
    ratios = torch.where(update.adapted, ratios, 1.0)
    _momentum(update, settings, settings.momentum_form or "inside", ratios)


def _momentum(
    update: FusedUpdate, settings: TrainingSettings, form: str, ratios: Tensor | None
) -> None:
    """The forms of :mod:`trainers.optimizers.momentum`; ``ratios`` of each tensor of each training, None: 1."""
    rate = update.blocks("rate")
    rated = rate if ratios is None else rate * ratios
    inner, outer = {
        "outside": (None, rated),
        "inside": (rated, None),
        "corrected": (ratios, rate),
    }[form]
    terms = torch.addcmul(update.gradients, update.decay_of_elements, update.memory.parameters)
    _move_by_momentum(update, terms, inner, outer, nesterov=settings.nesterov)


def _move_by_momentum(
    update: FusedUpdate,
    terms: Tensor,
    inner: Tensor | None,
    outer: Tensor | None,
    *,
    nesterov: bool,
) -> None:
    """v = momentum * v + inner * term, w = w - outer * v; factors of each tensor of each training, None: 1."""
    weights, buffer = update.memory.parameters, update.memory.states["momentum"]
    momentum = update.elements("momentum")
    if inner is not None:
        terms *= update.spread(inner)
    buffer.mul_(momentum).add_(terms)
    moves = torch.addcmul(terms, momentum, buffer) if nesterov else buffer
    if outer is None:
        weights.sub_(moves)
    else:
        weights.addcmul_(update.spread(outer), moves, value=-1)


def _direction(update: FusedUpdate, gradients: Tensor) -> Tensor:
    """The direction of Adam's moments (:mod:`trainers.optimizers.moments`), which take the gradients in."""
    first, second = (update.memory.states[name] for name in ("first_moment", "second_moment"))
    first.lerp_(gradients, update.elements("first_part"))
    second.mul_(update.elements("beta2"))
    second.addcmul_(update.elements("second_part") * gradients, gradients)
    roots = (second / update.elements("second_correction")).sqrt_()
    return first / update.elements("first_correction") / roots.add_(update.elements("epsilon"))


def _adam(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG001 - as all rules
    weights = update.memory.parameters
    terms = torch.addcmul(update.gradients, update.decay_of_elements, weights)
    weights.addcmul_(update.elements("rate"), _direction(update, terms), value=-1)


def _adamw(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG001 - as all rules
    weights, rate = update.memory.parameters, update.elements("rate")
    weights.addcmul_(rate * update.decay_of_elements, weights, value=-1)
    weights.addcmul_(rate, _direction(update, update.gradients), value=-1)


def _lamb(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG001 - as all rules
    memory, weights = update.memory, update.memory.parameters
    moves = torch.addcmul(_direction(update, update.gradients), update.decay_of_elements, weights)
    weight_norms, move_norms = memory.norms(weights, moves)
    limited = torch.minimum(weight_norms, update.blocks("weight_norm_limit"))
    ratios = limited / (move_norms + update.blocks("trust_epsilon"))
    defined = (weight_norms > 0) & (move_norms > 0) & update.adapted
    rates = update.blocks("rate") * torch.where(defined, ratios, 1.0)
    weights.addcmul_(update.spread(rates), moves, value=-1)


def _larc(update: FusedUpdate, settings: TrainingSettings) -> None:
    memory, weights = update.memory, update.memory.parameters
    weight_norms, gradient_norms = memory.norms(weights, update.gradients)
    factors = trust_ratios(
        weight_norms,
        gradient_norms,
        update.blocks("trust_coefficient"),
        update.decay_of_blocks,
        update.blocks("trust_epsilon"),
    )
    if settings.larc_mode == "clip":
        factors = (factors / update.blocks("rate")).clamp(max=1.0)
    defined = (weight_norms > 0) & (gradient_norms > 0)
    factors = torch.where(defined & update.adapted, factors, 1.0)
    decays = torch.where(defined | ~update.adapted, factors * update.decay_of_blocks, 0.0)
    terms = update.spread(factors) * update.gradients
    terms.addcmul_(update.spread(decays), weights)
    if settings.larc_optimizer == "adam":
        weights.addcmul_(update.elements("rate"), _direction(update, terms), value=-1)
    else:
        _move_by_momentum(update, terms, None, update.blocks("rate"), nesterov=settings.nesterov)


def _rmsprop_warmup(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG001 - as all rules
    weights = update.memory.parameters
    buffer, moment = (update.memory.states[name] for name in ("momentum", "second_moment"))
    terms = torch.addcmul(update.gradients, update.decay_of_elements, weights)
    moment.mul_(update.elements("beta2"))
    moment.addcmul_(update.elements("second_part") * terms, terms)
    factors = update.elements("rmsprop_share") / (moment.sqrt().add_(update.elements("epsilon")))
    factors += update.elements("sgd_share")
    buffer.mul_(update.elements("momentum")).addcmul_(factors, terms, value=-1)
    weights.addcmul_(update.elements("rate"), buffer)


RULES: dict[str, Callable[[FusedUpdate, TrainingSettings], None]] = {
    "sgd": _sgd,
    "lars": _lars,
    "larc": _larc,
    "lamb": _lamb,
    "adam": _adam,
    "adamw": _adamw,
    "rmsprop_warmup": _rmsprop_warmup,
}
"""The fused rules by the names of the setting ``optimizer``."""
