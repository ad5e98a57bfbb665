"""Whether to trust a forecast of samples per second: a verdict with its reason in plain words."""

from __future__ import annotations

from typing import Literal, TypeAlias

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.throughput.posterior import StepPosterior, within_one_node
from hpo.planning.throughput.step_model import Limit

Trust: TypeAlias = Literal["high", "medium", "low"]

FAR, VERY_FAR = 4.0, 16.0  # multiples of the largest number of accelerators measured
WIDE, VERY_WIDE = 1.5, 2.0  # ratio of the interval's ends, high to low
SMALL_BATCH = 0.5  # multiple of the smallest local batch measured
ODD = 0.5  # a row is called odd above this probability


def judge_throughput(
    posterior: StepPosterior,
    accelerators: int,
    global_batch_size: int,
    interval: Interval,
    limit: Limit,
) -> tuple[Trust, str]:
    """Return the verdict on a forecast of ``interval`` samples per second on ``accelerators``, and its reason."""
    rows = posterior.rows
    most = max(row.accelerators for row in rows)
    scales = len({row.accelerators for row in rows})
    width = interval.high / interval.low
    beyond = accelerators / most
    doubts, worries = [], []
    if scales == 1:
        doubts.append(
            "all rows have the same number of accelerators, so the cost of scaling is "
            "estimated from other machines"
        )
    elif all(within_one_node(row, posterior.node_size) for row in rows) and accelerators > max(
        most, posterior.node_size or 0
    ):
        doubts.append(
            "no row uses more than one node, so the cost of the network between nodes is "
            "estimated from other machines; measure one row on two nodes"
        )
    elif scales == 2:
        worries.append("only two accelerator counts were measured")
    if beyond > FAR:
        (doubts if beyond > VERY_FAR else worries).append(
            f"{beyond:.3g} times as many accelerators as in the largest row"
        )
    if width > WIDE:
        (doubts if width > VERY_WIDE else worries).append(
            f"the interval spans a factor of {width:.2g}"
        )
    local, least = global_batch_size / accelerators, min(row.local_batch_size for row in rows)
    if local < SMALL_BATCH * least:
        worries.append(
            f"the local batch of {local:.3g} is far below the smallest one measured, {least:.3g}"
        )
    worries += _odd_row(posterior)
    trust: Trust = "low" if doubts or len(worries) >= 3 else "medium" if worries else "high"
    return trust, _sentence(beyond, limit, scales, width, doubts + worries)


def _odd_row(posterior: StepPosterior) -> list[str]:
    found = posterior.odd_row()
    if found is None or found[1] < ODD:
        return []
    row, _, factor = found
    way = "slower" if factor < 1.0 else "faster"
    return [
        f"the row on {row.accelerators} accelerators is {abs(factor - 1.0):.0%} {way} than the "
        f"others suggest and gets less weight; check that it is from the same system"
    ]


def _sentence(beyond: float, limit: Limit, scales: int, width: float, problems: list[str]) -> str:
    where = (
        f"{beyond:.3g} times as many accelerators as in the largest row"
        if beyond > 1.0
        else "Within the measured scales"
    )
    opening = f"{where}, limited by {limit}"
    if not problems:
        return f"{opening}; {scales} scales agree and the interval spans a factor of {width:.2g}."
    told = [
        problem
        for problem in problems
        if not problem.startswith(f"{beyond:.3g} times as many accelerators")
    ]
    return f"{opening}. Doubts: {'; '.join(told)}." if told else f"{opening}; a long extrapolation."
