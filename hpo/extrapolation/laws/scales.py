"""How model size and training length change the predictions of the batch-size laws.

Everything is relative to the full scale: ``away`` is log(value / value at full scale), 0 at full scale and negative
below.

    the batch          B counts as B exp(-sum c_d away_d): the critical batch grows as the power c_d of the scale
    the best settings  log best += sum k_d away_d
    the epochs         log E    += -sum a_d u_d
    the best metric    log S    += log(f + sum s_d exp(-b_d u_d))             with f + sum s_d = 1
                       u_d = away_d, but with steps that grow as exp(k_d (away_d - away_d of the largest seen));
                       for the best metric, a batch size that needs more epochs counts as a shorter run
                       (``fixed_budget``)

The critical batch size grows roughly as the square root of the number of samples and hardly depends on the model size
(Zhang et al. 2024, arXiv:2410.21676; Bergsma et al. 2025, arXiv:2505.13738). In the standard parametrization the best
learning rate falls with the model size, by a power of the number of parameters from 0.5 (one over the width, Yang et
al. 2022, arXiv:2203.03466) to 0.71 (Step Law, arXiv:2503.04715); in the maximal update parametrization it stays
constant. With longer training at a fixed batch size, it falls too (Bjorck et al. 2024, arXiv:2409.19913), mostly
because the critical batch size grows. The shortfall of a run is a sum of powers of model size and samples plus an
irreducible floor (Hoffmann et al. 2022, arXiv:2203.15556, equation 2). No power law holds forever: the exponent falls
near a floor, and is larger for runs so short that they have only begun to learn (Alabdulmohsin et al. 2022,
arXiv:2209.06640; Caballero et al. 2022, arXiv:2210.14891). So the exponent drifts with the scale, in either direction,
and the forecast widens with the distance from the evidence. All of these are priors with a width: the exponents are
unknowns of the fit, and a published law is one point of the prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.setting_laws import RATE, setting_values
from trainers.job import LENGTH

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]
Kind: TypeAlias = Literal["model", "length"]

LENGTHS = ("samples", "tokens", LENGTH)
WIDTH = "width"
PARAMETERS_BY_WIDTH = 2.0
"""Parameters, and the cost of a sample, grow as the square of the width."""

# each is an exponent of the number of parameters or samples
CRITICAL = {"model": NormalPrior(0.05, 0.15), "length": NormalPrior(0.45, 0.2)}
BEST_RATE = {"model": NormalPrior(-0.4, 0.3), "length": NormalPrior(-0.05, 0.2)}
BEST_RATE_OF_MUP = NormalPrior(0.0, 0.1)
BEST_ELSE = NormalPrior(0.0, 0.1)
EPOCHS = {"model": NormalPrior(0.25, 0.35), "length": NormalPrior(0.0, 0.3)}
SHARE = NormalPrior(float(np.log(0.3)), 1.0)  # log (s_d / f)
POWER = NormalPrior(float(np.log(0.3)), 0.5)  # log b_d
# k_d: the change of the log of the exponent per factor of e in the parameters or the samples, beyond what the floor of
# the loss explains. Over the samples it is -0.36 in 20 published series of language models, of which the floor explains
# -0.24; in byte-level training runs of at most 256 updates it is +0.5. It was not measured over model sizes, and is
# assumed to be half as large there
DRIFT = {"model": NormalPrior(0.0, 0.25), "length": NormalPrior(0.0, 0.5)}
# the same for the epochs, which have no floor of their own in the law: the exponent of f + (1 - f) exp(-b u) changes by
# -b f at u = 0, which is -0.25 for b = f = 1/2
DRIFT_OF_EPOCHS = {"model": NormalPrior(-0.25, 0.25), "length": NormalPrior(0.0, 0.25)}
MOST_DRIFT = 5.0  # largest change of the logarithm of the exponent


@dataclass(frozen=True)
class Scales:
    """The directions, besides the batch size, in which a study scales, and their values at ``full_scale``.

    ``reach`` (directions,) is how far the largest value seen lies below the full scale, 0 if the full scale was seen.
    ``fixed_budget`` says that the question is about a metric, not the epochs; ``carried`` lists the directions over
    which the parametrization transfers the learning rate.
    """

    full_scale: Mapping[str, float] = field(default_factory=dict)
    reach: Array = field(default_factory=lambda: np.zeros(0))
    fixed_budget: bool = False
    carried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.full_scale.items():
            if not (np.isfinite(value) and value > 0):
                raise EvidenceError(
                    f"{name} at full scale must be a finite number above 0, but got {value}"
                )

    def __bool__(self) -> bool:
        return bool(self.full_scale)

    @property
    def names(self) -> list[str]:
        """The directions, in the order of the columns of ``away``."""
        return list(self.full_scale)

    def away(self, settings: Sequence[Mapping[str, object]]) -> Array:
        """Return log(value / value at full scale) of each direction: (settings, directions)."""
        columns = [
            np.log(setting_values(name, settings)) - np.log(value)
            for name, value in self.full_scale.items()
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(settings), 0))

    def growth(self) -> dict[str, float]:
        """Return the ratio of the full scale to the largest scale seen, in parameters or samples, by direction."""
        return {
            name: float(np.exp(unit * far))
            for name, unit, far in zip(self.names, self._units, self.reach, strict=True)
        }

    def longer(self, away: Array) -> Array:
        """Return log(length / length at full scale): (places,)."""
        lengths = [name in LENGTHS for name in self.names]
        return np.asarray(away[:, lengths].sum(axis=1))

    def parameters(self, settings: Sequence[str], away: Array) -> list[LawParameter]:
        """Return the unknowns for ``settings`` that have laws; ``away`` (seen, directions) locates the evidence."""
        found = []
        for index, name in enumerate(self.names):
            kind, unit = _kind(name), _unit(name)
            if not away[:, index].any():
                continue  # all evidence is at its full scale
            found.append(_parameter(f"{name}.critical", CRITICAL[kind], unit))
            for setting in settings:
                found.append(_parameter(f"{name}.{setting}", self._best(setting, name), unit))
            if self.fixed_budget:
                found.append(LawParameter(f"{name}.log_share", SHARE.mean, SHARE.sd))
                found.append(
                    LawParameter(f"{name}.log_power", POWER.mean + float(np.log(unit)), POWER.sd)
                )
                found.append(_parameter(f"{name}.drift", DRIFT[kind], unit))
            else:
                found.append(_parameter(f"{name}.epochs", EPOCHS[kind], unit))
                found.append(_parameter(f"{name}.drift", DRIFT_OF_EPOCHS[kind], unit))
        return found

    def log_batch(self, values: Values, log_batch: Array, away: Array) -> Array:
        """Return the log of the equivalent batch at full scale: (1 or particles, places)."""
        if not self:
            return np.atleast_2d(log_batch)
        return np.asarray(np.asarray(log_batch)[None, :] - self._sum(values, "critical", away))

    def shift(self, values: Values, setting: str, away: Array) -> Array:
        """Return what the scale adds to the best coordinate of a setting: (particles, places)."""
        return self._sum(values, setting, away)

    def shows_length(self, values: Values) -> bool:
        """Whether the evidence shows how the shortfall depends on the training length."""
        return self.fixed_budget and any(
            f"{name}.log_share" in values for name in self.names if name in LENGTHS
        )

    def critical_by_length(self, values: Values) -> Array:
        """Return the power of the training length with which the critical batch size grows: (particles,)."""
        powers = [values[f"{name}.critical"] for name in self.names if name in LENGTHS]
        return np.asarray(sum(powers, start=np.zeros(1)))

    def level(self, values: Values, away: Array, shorter: Array | float = 0.0) -> Array:
        """Return what the scale adds to the log epochs, or to the log shortfall of a run: (particles, places).

        The result is relative to the largest values seen, where the evidence is strongest. ``shorter`` (particles,
        places) is the log factor by which a run is worth less than its length.
        """
        return self._level(values, away, shorter) - self._level(values, -self.reach[None, :], 0.0)

    def _level(self, values: Values, away: Array, shorter: Array | float) -> Array:
        told = [name for name in self.names if f"{name}.drift" in values]
        total = np.zeros((1, len(away)))
        if not self.fixed_budget:
            for name in told:
                total = total - values[f"{name}.epochs"][:, None] * self._drifted(
                    values, name, away, 0.0
                )
            return np.asarray(total)
        floor = 1 + sum(np.exp(values[f"{name}.log_share"]) for name in told)
        for name in told:
            share = (np.exp(values[f"{name}.log_share"]) / floor)[:, None]
            power = np.exp(values[f"{name}.log_power"])[:, None]
            less = shorter if name in LENGTHS else 0.0
            column = self._drifted(values, name, away, less)
            total = total + share * np.expm1(np.minimum(-power * column, 50.0))
        return np.asarray(np.log(np.maximum(1.0 + total, 1e-12)))

    def _drifted(self, values: Values, name: str, away: Array, shorter: Array | float) -> Array:
        """Return u_d of the direction ``name``: (particles, places)."""
        index = self.names.index(name)
        beyond = away[:, index][None, :] + self.reach[index] - shorter
        return np.asarray(drifted(beyond, values[f"{name}.drift"][:, None]) - self.reach[index])

    def moves(self, setting: str) -> NormalPrior:
        """Return the prior on the shift of a setting's best coordinate from the largest scale seen to full scale."""
        beliefs = [self._best(setting, name) for name in self.names]
        return _total(beliefs, self._units * self.reach)

    def critical_moves(self) -> NormalPrior:
        """Return the prior on the shift of the log critical batch size from the largest scale seen to full scale."""
        beliefs = [CRITICAL[_kind(name)] for name in self.names]
        return _total(beliefs, self._units * self.reach)

    @property
    def _units(self) -> Array:
        return np.array([_unit(name) for name in self.names])

    def _best(self, setting: str, name: str) -> NormalPrior:
        if setting != RATE:
            return BEST_ELSE
        if name in self.carried:
            return BEST_RATE_OF_MUP
        return BEST_RATE[_kind(name)]

    def _sum(self, values: Values, what: str, away: Array) -> Array:
        total = np.zeros((1, len(away)))
        for index, name in enumerate(self.names):
            if f"{name}.{what}" in values:
                total = total + values[f"{name}.{what}"][:, None] * away[:, index][None, :]
        return np.asarray(total)


def drifted(beyond: Array, drift: Array) -> Array:
    """Return the distance ``beyond`` the largest scale seen, in steps that grow as exp(drift * beyond) from 1 at 0."""
    grown = np.clip(drift * beyond, -MOST_DRIFT, MOST_DRIFT)
    return np.asarray(
        beyond
        * np.where(np.abs(grown) < 1e-6, 1.0, np.expm1(grown) / np.where(grown == 0, 1.0, grown))
    )


def _total(beliefs: Sequence[NormalPrior], factors: Array) -> NormalPrior:
    means = np.array([belief.mean for belief in beliefs])
    deviations = np.array([belief.sd for belief in beliefs])
    return NormalPrior(float(means @ factors), float(np.sqrt((deviations**2) @ (factors**2))))


def _kind(name: str) -> Kind:
    return "length" if name in LENGTHS else "model"


def _unit(name: str) -> float:
    return PARAMETERS_BY_WIDTH if name == WIDTH else 1.0


def _parameter(name: str, belief: NormalPrior, unit: float) -> LawParameter:
    return LawParameter(name, belief.mean * unit, belief.sd * unit)
