"""The rules of a study file beyond types: each fault says what must hold, what was given, and how to fix it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from hpo.study.faults import Location, shown_value
from search_spaces.divisors import divisors_of
from search_spaces.domains import Categorical, Float
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from search_spaces.techniques import DECAYS

MAX_NAME_CHARACTERS = 100
_WORKLOAD = re.compile(r"[^\W\d]\w*|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_name(name: str) -> str:
    """Return ``name`` if it fits in a table, a title and a log line; otherwise raise ValueError."""
    if not name.isprintable() or name != name.strip() or not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise ValueError(
            f"must be 1 to {MAX_NAME_CHARACTERS} printable characters with no space at its "
            f"ends, but got {shown_value(name)}"
        )
    return name


def fault_of_new_name(name: str) -> str:
    """Return why no new study may have this name, or ""; a study that was stored under it can still be read."""
    if name not in (".", ".."):
        return ""
    return (
        f"name must not be {name!r}, which cannot be part of a path or URL; add a letter or a digit"
    )


def faults_of_new(name: str, search: SearchSpace) -> Iterator[tuple[Location, str]]:
    """Yield why no new study may have this name and search space; a study stored with them can still be read."""
    if of_name := fault_of_new_name(name):
        yield ("name",), of_name
    for setting, message in search.faults_of_new():
        yield ("search", setting), message


def faults_of_warmup(search: SearchSpace, shortest: float) -> Iterator[tuple[Location, str]]:
    """Yield a fault if a run may warm up for longer than it trains, with a decay that lasts to its end.

    ``shortest`` is the length of the shortest run, in epochs.
    """
    decays = [name for name in search.possible("decay") if name in DECAYS and DECAYS[name].ends]
    if not decays or None not in search.possible("decay_epochs"):
        return
    most = max(float(each) for each in search.possible("warmup_epochs"))
    ends = isinstance(search.domains.get("warmup_epochs"), Float)  # a sample hardly ever meets it
    if most > shortest or (most == shortest and not ends):
        yield (
            ("search", "warmup_epochs"),
            f"warmup_epochs must be less than the length of every run, as decay {decays[0]} lasts to its end, but got "
            f"up to {most:g} and runs of {shortest:g} epochs; lower it, or give decay_epochs",
        )


def check_workload(workload: str) -> str:
    """Return ``workload`` if it is a name or ``package.module:Class``; otherwise raise ValueError."""
    if not _WORKLOAD.fullmatch(workload):
        raise ValueError(
            "must be the name of a workload, or package.module:Class for your own class, but "
            f"got {shown_value(workload)}"
        )
    return workload


def check_ladder(ladder: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``ladder`` if its global batch sizes increase; otherwise raise ValueError."""
    for rung, following in itertools.pairwise(ladder):
        if following <= rung:
            raise ValueError(
                f"must increase, but got {following} after {rung} in {shown_value(list(ladder))}"
            )
    return ladder


def faults_of_budget(trials: int, ladder: Sequence[int]) -> Iterator[tuple[Location, str]]:
    """Yield a fault if the budget has fewer trials than the ladder has rungs."""
    if trials < len(ladder):
        yield (
            ("budget", "trials"),
            (
                f"budget.trials must be at least {len(ladder)}, one for each rung of "
                f"the ladder, but got {trials}"
            ),
        )


def faults_of_normalization(
    search: SearchSpace, ladder: Sequence[int], full_scale: int | None
) -> Iterator[tuple[Location, str]]:
    """Yield a fault if a batch cannot be split into groups of ``normalization_batch_size`` samples.

    The samples of a group share batch-norm statistics. The rule applies to every rung and to the ``full_scale`` global
    batch size.
    """
    sizes, default = _normalization_batch_sizes(search)
    for size in sizes:
        rung = next((rung for rung in ladder if rung % size), None)
        if rung is not None:
            divisor = _nearest_divisor(size, math.gcd(*ladder))
            yield (
                ("ladder",) if default else ("search", "normalization_batch_size"),
                (
                    f"normalization_batch_size must divide every rung of the ladder, but {size}"
                    f"{' (the default)' if default else ''} does not divide {rung}; the nearest that divides all "
                    f"is {divisor} (search: normalization_batch_size: {divisor})"
                ),
            )
            return
        if full_scale is not None and full_scale % size:
            yield (
                ("full_scale", "global_batch_size"),
                (
                    "full_scale.global_batch_size must be a multiple of normalization_batch_size "
                    f"{size}{' (the default)' if default else ''}, but got {full_scale}; the nearest is "
                    f"{max(1, round(full_scale / size)) * size}"
                ),
            )
            return


def faults_of_workers(
    search: SearchSpace, ladder: Sequence[int], workers: int
) -> Iterator[tuple[Location, str]]:
    """Yield a fault if a rung cannot be split over the workers of a trial in whole normalization batches."""
    unit = 1
    if workers > 1:
        sizes, _ = _normalization_batch_sizes(search)
        for size in sizes:
            unit = math.lcm(unit, workers * size)
            if unit > ladder[-1]:  # divides no rung; a range may hold a billion sizes
                break
    rung = next((rung for rung in ladder if rung % unit), None)
    if rung is not None:
        yield (
            ("resources",),
            (
                f"every rung of the ladder must be a multiple of {unit}, the {workers} workers "
                f"of a trial times their normalization_batch_size, but got {rung}; use fewer "
                f"workers or larger rungs"
            ),
        )


def _normalization_batch_sizes(search: SearchSpace) -> tuple[Iterable[int], bool]:
    # returns all sizes that the search may try, and whether they are the default because the study sets none
    name = "normalization_batch_size"
    if name in search.fixed:
        return [search.fixed[name]], False
    if name not in search.domains:
        return [TrainingSettings().normalization_batch_size], True
    domain = search.domains[name]
    if isinstance(domain, Categorical):
        return [value for value in domain.values if isinstance(value, int)], False
    return range(int(domain.low), int(domain.high) + 1), False


def _nearest_divisor(size: int, of: int) -> int:
    return min(divisors_of(of), key=lambda divisor: (abs(divisor - size), divisor))
