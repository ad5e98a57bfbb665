"""Judges whether to trust a forecast: a verdict with its reason in plain words."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from hpo.extrapolation.calibration import ForecastCalibration
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.raced import RaceEvidence, whole_race_trainings

Trust: TypeAlias = Literal["high", "medium", "low"]

FAR, VERY_FAR = 4.0, 16.0  # times the largest rung, or below the smallest
WIDE, VERY_WIDE = 1.6, 2.5  # ratio of high to low, in epochs
# the same for the shortfall after a fixed budget, which varies less than the epochs
WIDE_SHORTFALL, VERY_WIDE_SHORTFALL = 1.2, 1.5
FEW_RUNGS = 4
ONE_RATE_OVER = 4.0  # batches that differ by this factor do not share their best learning rate
SHOWN = 2  # runs of a race that have to reach the target
REGIMES = (
    (0.2, "perfect scaling"),
    (0.6, "diminishing returns"),
    (np.inf, "maximal data parallelism"),
)


def judge_forecast(
    posterior: Posterior,
    global_batch_size: float,
    low: float,
    high: float,
    calibration: ForecastCalibration | None = None,
    learning_rate: float | None = None,
    raced: RaceEvidence | None = None,
) -> tuple[Trust, str]:
    """Return the verdict on a forecast of ``low`` to ``high`` epochs with ``learning_rate``, and the reason for it.

    With a fixed budget, ``low`` and ``high`` are shortfalls instead.
    If at least ``SHOWN`` runs of a race reached the target at that batch size, the batch no longer counts as far from
    the evidence; if no run reached it, that is a reason for doubt.
    """
    seen_there = raced is not None and raced.reached >= SHOWN
    doubts = _grave(posterior, needs_growth=not seen_there)
    doubts += [] if seen_there else _one_rate(posterior)
    mixed, changed = _several_optimizers(posterior)
    doubts, worries = doubts + mixed, changed
    reached = _reached_rungs(posterior)
    rungs = len(reached)
    ladder = [batch for batch in reached if raced is None or batch != raced.global_batch_size]
    ladder = ladder or posterior.evidence.batches
    beyond, below = global_batch_size / ladder[-1], ladder[0] / global_batch_size
    place = _place(beyond, below)
    width = high / low
    wide, very_wide = (
        (WIDE, VERY_WIDE)
        if posterior.model.budget is None
        else (WIDE_SHORTFALL, VERY_WIDE_SHORTFALL)
    )
    if raced is not None and not raced.reached:
        doubts.append("no training run of the race reached the target")
    if seen_there:
        pass
    elif max(beyond, below) > VERY_FAR:
        doubts.append(f"the batch is {place}")
    elif max(beyond, below) > FAR:
        worries.append(f"the batch is {place}")
    if width > very_wide:
        doubts.append(f"the interval spans a factor of {width:.2g}")
    elif width > wide:
        worries.append(f"the interval spans a factor of {width:.2g}")
    if 2 <= rungs < FEW_RUNGS and not seen_there:
        worries.append(f"only {rungs} rungs {_done(posterior)}")
    worries += _minor(posterior)
    if not seen_there and learning_rate is not None and _untried(posterior, learning_rate):
        worries.append("the learning rate is above all that were tried, and none of those diverged")
    grave, minor = _of_scales(posterior)
    doubts, worries = doubts + grave, worries + minor
    spread = law_disagreement(posterior, global_batch_size)
    if spread > 1.3 and max(beyond, below) > 1 and not seen_there:
        worries.append(
            f"laws that fit the rungs equally well differ by a factor of {spread:.2g} there"
        )
    if calibration and calibration.doubt:
        doubts.append(calibration.doubt)
    trust: Trust = "low" if doubts or len(worries) >= 3 else "medium" if worries else "high"
    return trust, _sentence(posterior, global_batch_size, place, width, doubts + worries, raced)


def scaling_regime(posterior: Posterior, global_batch_size: float) -> str:
    """Return the scaling regime at a batch size, according to d log E / d log B there."""
    slope = float(
        np.median(posterior.model.slope(posterior.values, float(np.log(global_batch_size))))
    )
    return next(name for limit, name in REGIMES if slope < limit)


def law_disagreement(posterior: Posterior, global_batch_size: float) -> float:
    """Return the factor between the median epochs of particles with sharper transitions and of the other half."""
    expected = posterior.model.mean(posterior.values, np.array([np.log(global_batch_size)]))[:, 0]
    shape = posterior.model.turn(posterior.values)
    sharp = shape > np.median(shape)
    return float(np.exp(abs(np.median(expected[sharp]) - np.median(expected[~sharp]))))


def _place(beyond: float, below: float) -> str:
    """Return, in words, where a batch is that is ``beyond`` times the largest rung, or ``below`` times the smallest."""
    if below > 1:
        return f"{below:.3g} times below the smallest rung"
    return f"{beyond:.3g} times the largest rung" if beyond > 1 else "inside the ladder"


def _reached_rungs(posterior: Posterior) -> list[int]:
    """Return the batch sizes at which a run reached the target, in increasing order."""
    evidence = posterior.evidence
    reached = {item.global_batch_size for item in evidence.observations if item.state == "reached"}
    return sorted(reached | {row.global_batch_size for row in evidence.aggregates})


def _done(posterior: Posterior) -> str:
    """Return, in words, what the informative runs of a rung did."""
    return (
        "reached the target"
        if posterior.model.budget is None
        else "trained to the end of the budget"
    )


def _grave(posterior: Posterior, *, needs_growth: bool) -> list[str]:
    doubts = [posterior.note] if posterior.note else []
    observations = posterior.evidence.observations
    rungs = len(_reached_rungs(posterior))
    if rungs == 0:
        states = {item.state for item in observations}
        doubts.append(
            "every trial diverged" if states == {"diverged"} else f"no trial {_done(posterior)}"
        )
    elif rungs == 1 and needs_growth:
        doubts.append(
            f"only one rung {_done(posterior)}, so the growth is a guess from other workloads"
        )
    elif rungs == 2 and needs_growth:
        doubts.append(
            f"only two rungs {_done(posterior)}, so the curvature is a guess from other workloads"
        )
    return doubts


def _one_rate(posterior: Posterior) -> list[str]:
    """Return a doubt if very different batch sizes were all trained with one learning rate."""
    first, last = posterior.evidence.batches[0], posterior.evidence.batches[-1]
    alike = [
        law for law in posterior.model.laws if law.name == RATE and law.tried[0] == law.tried[1]
    ]
    if not alike or last < ONE_RATE_OVER * first:
        return []
    return [
        f"batches from {first} to {last} were all trained with one learning rate, so nothing shows how it changes "
        "with the batch, nor how soon a run with a tuned rate reaches the target"
    ]


def _several_optimizers(posterior: Posterior) -> tuple[list[str], list[str]]:
    """Return a doubt if runs of several optimizers at one batch size share one law of the learning rate, or a worry if
    the optimizer changes along the ladder.
    """
    evidence = posterior.evidence
    runs = [
        *((trial.global_batch_size, trial.settings) for trial in evidence.observations),
        *((row.global_batch_size, row.settings) for row in evidence.aggregates),
    ]
    used = {(batch, str(each["optimizer"])) for batch, each in runs if each.get("optimizer")}
    optimizers = sorted({name for _, name in used})
    if len(optimizers) < 2 or all(law.name != RATE for law in posterior.model.laws):
        return [], []
    names = ", ".join(optimizers)
    if len({batch for batch, _ in used}) == len(used):
        changes = (
            f"the optimizer changes along the ladder ({names}), and each has its own learning rates"
        )
        return [], [changes]
    several = f"{len(optimizers)} optimizers ({names}) share one law of the learning rate; keep the runs of one"
    return [several], []


def _minor(posterior: Posterior) -> list[str]:
    worries = []
    observations = posterior.evidence.observations
    seeds = {item.seed for item in observations}
    if len(seeds) == 1 and None not in seeds:
        worries.append("one seed only")
    if observations:
        for law in posterior.model.laws:
            if law.tried[0] == law.tried[1] and not (law.name == RATE and _one_rate(posterior)):
                worries.append(f"{law.name} was never varied")
    fixed = (
        posterior.model.budget is not None
    )  # successive halving stops most runs, so that is no worry
    whole = (
        [item for item in observations if item.state != "pruned"]
        if fixed
        else whole_race_trainings(observations)
    )
    missed = sum(item.state != "reached" for item in whole)
    if whole and missed > 0.7 * len(whole):
        ended = "did not train to the end" if fixed else "missed the target"
        worries.append(f"{missed} of {len(whole)} trials {ended}")
    return worries


def _of_scales(posterior: Posterior) -> tuple[list[str], list[str]]:
    """Return doubts and worries about how far the forecast's model and length are from those of the evidence."""
    scales = posterior.model.scales
    if not scales:
        return [], []
    doubts, worries = [], []
    slack = 1 + 1e-9  # for rounding in log and exp
    away = scales.away(posterior.evidence.settings)
    for index, (name, times) in enumerate(scales.growth().items()):
        beyond, sizes = float(np.exp(scales.reach[index])), len(np.unique(away[:, index]))
        of = f" ({times:.3g} times the parameters)" if times != beyond else ""
        if times > VERY_FAR * slack:
            doubts.append(f"{name} is {beyond:.3g} times the largest that was trained{of}")
        elif times > FAR * slack:
            worries.append(f"{name} is {beyond:.3g} times the largest that was trained{of}")
        if beyond > slack and sizes == 1:
            doubts.append(
                f"only one {name} was trained, so its effect is a guess from other workloads"
            )
        elif beyond > slack and sizes == 2:
            worries.append(f"only two values of {name} were trained")
    return doubts, worries


def _untried(posterior: Posterior, learning_rate: float) -> bool:
    observations = posterior.evidence.observations
    tried = [
        float(item.settings[RATE]) for item in observations if item.settings.get(RATE) is not None
    ]
    return (
        bool(tried)
        and learning_rate > max(tried)
        and all(item.state != "diverged" for item in observations)
    )


def _sentence(
    posterior: Posterior,
    batch: float,
    place: str,
    width: float,
    problems: list[str],
    raced: RaceEvidence | None,
) -> str:
    opening = f"{place[0].upper()}{place[1:]}, in the regime of {scaling_regime(posterior, batch)}"
    opening += f"; {raced.told()}" if raced else ""
    if not problems:
        rungs = len(_reached_rungs(posterior))
        agree = f"{rungs} rungs agree with one law and " if rungs > 1 else ""
        return f"{opening}; {agree}the interval spans a factor of {width:.2g}."
    return f"{opening}. Doubts: {'; '.join(problems)}."
