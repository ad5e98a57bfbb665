"""Sizes besides the batch size (model width and depth, training length) that are smaller on a study's rungs than at
full scale.

A ladder that is a mapping lists them: ``ladder: {global_batch_size: [32, 64], width: [32, 64], samples: [99, 999]}``.
Every combination is trained, and ``full_scale`` gives each size at full scale. ``width`` and ``depth`` describe the
model; ``samples`` is the length of a training run with a fixed budget. A trial stores its sizes among its settings.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from hpo.study.budgets import RungBudget, rung_budgets
from hpo.study.faults import Location, SpecFaultsError, shown_value
from hpo.study.program import ProgramSection
from hpo.study.samplers import SAMPLERS
from hpo.study.target import StudyTarget
from search_spaces.names import nearest_or_all
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from search_spaces.techniques.parametrizations import MODEL_SIZES, PARAMETRIZATIONS
from trainers.errors import WorkloadError
from trainers.job import LENGTH
from trainers.workloads.described import described_workload, workloads_that_grow
from trainers.workloads.program.formula import parse_cost

Point: TypeAlias = tuple[tuple[str, int], ...]
"""One combination of sizes, by name; empty if only the batch size varies over the ladder."""

WIDTH, DEPTH, SAMPLES = "width", "depth", "samples"
DIRECTIONS = (WIDTH, DEPTH, SAMPLES)
BATCH = "global_batch_size"
MOST_POINTS = 20


class StudyWithSizes(Protocol):
    """The part of :class:`hpo.study.spec.StudySpec` that this module reads."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of the ladder, by name."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """The global batch sizes."""

    @property
    def full_scale(self) -> Any:
        """The full-scale sizes; None if the study has no full scale."""

    @property
    def budget(self) -> Any:
        """The section with the number of trials."""

    @property
    def seeds(self) -> int:
        """The number of seeds with which each of the best settings is trained."""


class FittingStudy(StudyWithSizes, Protocol):
    """The fields of a study that must be compatible with its sizes."""

    @property
    def workload(self) -> str:
        """The name of a workload, or of a class."""

    @property
    def program(self) -> ProgramSection | None:
        """The training program."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The workload's options."""

    @property
    def search(self) -> SearchSpace:
        """The search space."""

    @property
    def target(self) -> StudyTarget:
        """The question that the study asks."""

    @property
    def sampler(self) -> str:
        """The name of the sampler."""

    @property
    def resources(self) -> Any:
        """The resources of a trial."""


def split_sizes_from_ladder(values: Any) -> Any:
    """Return the values of a study with its ladder as a plain list and the sizes under a separate key."""
    if not isinstance(values, Mapping):
        return values
    if "sizes" in values:
        raise SpecFaultsError(
            [(("sizes",), "unknown key 'sizes'; give sizes in the ladder: {width: [...]}")]
        )
    ladder = values.get("ladder")
    if not isinstance(ladder, Mapping):
        return values
    if BATCH not in ladder:
        raise SpecFaultsError(
            [
                (
                    ("ladder",),
                    f"ladder must give its batch sizes as {BATCH}: [...], but got "
                    f"{shown_value(list(ladder))}",
                )
            ]
        )
    faults = [*_faults_of_names(ladder)]
    if faults:
        raise SpecFaultsError(faults)
    sizes = {name: tuple(each) for name, each in ladder.items() if name != BATCH}
    return {**values, "ladder": ladder[BATCH], "sizes": sizes}


def _faults_of_names(ladder: Mapping[Any, Any]) -> Iterator[tuple[Location, str]]:
    for name, each in ladder.items():
        if name == BATCH:
            continue
        if name not in DIRECTIONS:
            yield (
                ("ladder",),
                f"ladder has no size "
                f"{shown_value(name)}{nearest_or_all(str(name), (BATCH, *DIRECTIONS))}",
            )
        elif not isinstance(each, Sequence) or isinstance(each, str) or not each:
            yield (
                ("ladder", name),
                f"ladder.{name} must be a list of sizes, but got {shown_value(each)}",
            )
        elif any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in each):
            yield (
                ("ladder", name),
                f"ladder.{name} must hold whole numbers of 1 or more, but got {shown_value(list(each))}",
            )
        elif any(later <= size for size, later in itertools.pairwise(each)):
            yield (
                ("ladder", name),
                f"ladder.{name} must increase, but got {shown_value(list(each))}",
            )


def points(spec: StudyWithSizes) -> list[Point]:
    """Return the combinations that are trained, cheapest first; a single empty one if only the batch size varies."""
    names = [_kept_as(name) for name in spec.sizes]
    found = [
        tuple(zip(names, each, strict=True)) for each in itertools.product(*spec.sizes.values())
    ]
    return sorted(found, key=lambda point: (relative_cost(point, spec), point))


def full_scale_sizes(spec: StudyWithSizes) -> Point:
    """Return the full-scale sizes."""
    full = spec.full_scale
    if full is None:
        return ()
    return tuple((_kept_as(name), getattr(full, name)) for name in spec.sizes)


def settings_at_full_scale(spec: StudyWithSizes, settings: TrainingSettings) -> TrainingSettings:
    """Return the settings of the full-scale run, including its sizes."""
    if not spec.sizes:
        return settings
    return dataclasses.replace(settings, own={**settings.own, **dict(full_scale_sizes(spec))})


def sizes_of_settings(spec: StudyWithSizes, settings: Mapping[str, Any]) -> Point:
    """Return a trial's sizes from its stored settings; sizes missing there, as in the run of a plan, default to full
    scale.
    """
    return sizes_in_settings(full_scale_sizes(spec), settings)


def has_full_scale_sizes(spec: StudyWithSizes, settings: Mapping[str, Any]) -> bool:
    """Return whether a trial with these stored settings has the full-scale sizes, as every trial does if only the batch
    size varies.
    """
    return sizes_of_settings(spec, settings) == full_scale_sizes(spec)


def sizes_in_settings(full: Point, settings: Mapping[str, Any]) -> Point:
    """Return the sizes in stored settings; ``full`` holds the full-scale sizes, which are the defaults."""
    return tuple((name, int(settings.get(name, size))) for name, size in full)


def transferred_sizes(spec: StudyWithSizes) -> tuple[str, ...]:
    """Return the sizes over which the study's parametrization transfers the learning rate."""
    data: Mapping[str, Any] = getattr(spec, "data", {})
    return PARAMETRIZATIONS.get(str(data.get("parametrization")), ())


def share_weight(spec: StudyWithSizes, point: Point) -> float:
    """Return the weight by which training runs are allotted to a size: one over the square root of the cost of a run.

    It is optimal if the scatter is the same at all sizes (multilevel Monte Carlo, Giles 2008, equation 3.1).
    """
    return 1 / math.sqrt(relative_cost(point, spec))


def relative_cost(point: Point, spec: StudyWithSizes | None = None) -> float:
    """Return the relative cost of a training run: the square of the width, times the depth, times the samples.

    For a program, the cost is the formula that ``spec`` gives under ``cost``, times the samples if the formula is the
    cost of one sample.
    """
    sizes = dict(point)
    program = getattr(spec, "program", None)
    formula = program and program.options.formula()
    if formula:
        length = 1 if SAMPLES in formula.names else sizes.get(LENGTH, 1)
        return float(formula.value({**sizes, SAMPLES: sizes.get(LENGTH, 1)}) * length)
    return float(sizes.get(WIDTH, 1) ** 2 * sizes.get(DEPTH, 1) * sizes.get(LENGTH, 1))


def cost_share_of_sizes(spec: StudyWithSizes, point: Point) -> float:
    """Return the cost of a training run of these sizes as a share of its cost at full scale, computed from the
    workload's operation counts if they are known (:mod:`trainers.workloads.described`).
    """
    workload = str(getattr(spec, "workload", ""))
    described = described_workload(workload)
    counted = None if described is None else described.sample_flops
    if counted is None:
        return relative_cost(point, spec) / relative_cost(full_scale_sizes(spec), spec)
    data = dict(getattr(spec, "data", {}))
    here, full = (counted({**data, **dict(each)}) for each in (point, full_scale_sizes(spec)))
    return here / full * length_share(spec, point)


def sample_cost_share(spec: StudyWithSizes, point: Point) -> float:
    """Return the cost of a sample in a model of these sizes as a share of its cost at full scale."""
    return cost_share_of_sizes(spec, point) / length_share(spec, point)


def length_share(spec: StudyWithSizes, point: Point) -> float:
    """Return the number of samples in a training run of these sizes as a share of the number at full scale."""
    return float(dict(point).get(LENGTH, 1) / dict(full_scale_sizes(spec)).get(LENGTH, 1))


def costly_samples(
    spec: StudyWithSizes, samples: float | None, settings: Mapping[str, Any]
) -> float:
    """Return how many samples of the full-scale model cost as much as ``samples`` of a trial with these settings."""
    if not spec.sizes or not samples:
        return float(samples or 0)
    return samples * sample_cost_share(spec, sizes_of_settings(spec, settings))


def budgets_by_sizes(spec: StudyWithSizes) -> dict[Point, dict[int, RungBudget]]:
    """Return the number of training runs at each rung, by sizes and batch size.

    Cheaper sizes get more runs, in proportion to :func:`share_weight`. Every rung gets at least one run.
    """
    found = points(spec)
    weights = [share_weight(spec, point) for point in found]
    rungs = len(spec.ladder)
    free = spec.budget.trials - rungs * len(found)
    shares = [rungs + int(free * weight / math.fsum(weights)) for weight in weights]
    shares[0] += spec.budget.trials - sum(shares)
    return {
        point: rung_budgets(spec.ladder, share, spec.seeds)
        for point, share in zip(found, shares, strict=True)
    }


def rung_in_words(global_batch_size: int, point: Point) -> str:
    """Return the rung in words, such as ``64`` or ``64, width 32``."""
    return ", ".join(filter(None, (str(global_batch_size), sizes_in_words(point))))


def sizes_in_words(point: Point) -> str:
    """Return the sizes in words, such as ``width 64, samples 4000``."""
    return ", ".join(f"{name} {size}" for name, size in named_sizes(point).items())


def named_sizes(point: Point) -> dict[str, int]:
    """Return the sizes by the names that a ladder uses."""
    return {SAMPLES if name == LENGTH else name: size for name, size in point}


def faults_of_sizes(spec: FittingStudy) -> Iterator[tuple[Location, str]]:
    """Yield a fault for every part of the study that cannot be combined with sizes besides the batch size."""
    full = spec.full_scale
    given = [] if full is None else [name for name in DIRECTIONS if getattr(full, name) is not None]
    for name in given:
        if name not in spec.sizes:
            yield (
                ("full_scale", name),
                f"full_scale.{name} needs a ladder with smaller values (ladder: {{{BATCH}: "
                f"[...], {name}: [...]}}); add them, or leave full_scale.{name} "
                f"out{_in_data(spec, name)}",
            )
    yield from _faults_of_cost(spec)
    if not spec.sizes:
        return
    for name, sizes in spec.sizes.items():
        at_full = None if full is None else getattr(full, name)
        if at_full is None:
            yield (
                ("full_scale",),
                f"full_scale must give its {name}, as the ladder has several {name} values; "
                f"add full_scale: "
                f"{{{BATCH}: ..., {name}: ...}}",
            )
        elif at_full < sizes[-1]:
            yield (
                ("full_scale", name),
                f"full_scale.{name} must be at least the largest of the ladder, {sizes[-1]}, but got {at_full}",
            )
        yield from _faults_of_workload(spec, name)
    trained = math.prod(len(sizes) for sizes in spec.sizes.values())
    rungs = trained * len(spec.ladder)
    if trained > MOST_POINTS:
        yield (
            ("ladder",),
            f"ladder must have at most {MOST_POINTS} combinations of sizes, but got {trained}",
        )
    elif spec.budget.trials < rungs:
        yield (
            ("budget", "trials"),
            f"budget.trials must be at least {rungs}, one for each batch size at each "
            f"combination of sizes, but got "
            f"{spec.budget.trials}",
        )
    if SAMPLES in spec.sizes:
        yield from _faults_of_samples(spec)
    if SAMPLERS[spec.sampler].chooses_rung:
        yield (
            ("sampler",),
            f"a ladder of several sizes needs a sampler that trains rung by rung, but got "
            f"{spec.sampler}, which chooses the batch size itself; use tpe",
        )
    if spec.resources.fused_trials > 1:
        yield (
            ("resources", "fused_trials"),
            f"fused trials must have the same model size, but the ladder has several sizes and "
            f"resources.fused_trials is {spec.resources.fused_trials}; leave fused_trials out",
        )


def fault_of_other_model_sizes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return why a stored study must not be continued with another file, if the two files, given as plain values, vary
    different model sizes; "" if they vary the same.

    A trial stores only the sizes that vary, so nothing would say with which size the earlier ones trained. Lengths are
    no model sizes: without one, a trial has the study's whole budget.
    """
    had, has = _model_sizes(before), _model_sizes(after)
    if had == has:
        return ""
    return (
        f"the ladder must vary the same model sizes when a study continues, because its trials state only those, but "
        f"it varied {' and '.join(had) or 'none'}, and now {' and '.join(has) or 'none'}; give the study another name"
    )


def _model_sizes(plain: Mapping[str, Any]) -> list[str]:
    ladder = plain.get("ladder")
    return sorted(set(MODEL_SIZES).intersection(ladder)) if isinstance(ladder, Mapping) else []


def _faults_of_workload(spec: FittingStudy, name: str) -> Iterator[tuple[Location, str]]:
    known = described_workload(spec.workload)
    option = name if known is None else known.size_option(name)
    if option in spec.data:
        yield (
            ("data", option),
            f"{name} must be given in the ladder and full_scale or in data, but got both; "
            f"remove {'it' if option == name else option} from data",
        )
    if name in spec.search.fixed or name in spec.search.domains:
        yield (
            ("search", name),
            f"{name} must be given in the ladder or in search, but got both; remove it from search",
        )
    if name == SAMPLES:
        return
    if spec.program is not None:
        if name not in (spec.program.options.own_settings or ()):
            yield (
                ("program", "command"),
                f"the command must contain {{{name}}}, which varies over the ladder, but it "
                f"does not; add it",
            )
    elif known is not None and name not in known.grows:
        knows, others = known.grows, workloads_that_grow(name)
        yield (
            ("ladder",),
            f"workload {spec.workload!r} has no option {name}"
            f"{f'; it grows in {chr(44).join(knows)}' if knows else ''}. {name.capitalize()} "
            f"is supported by {', '.join(others)}, by your own class if own_settings lists it, "
            f"and by a program whose command contains {{{name}}}",
        )


def _faults_of_cost(spec: FittingStudy) -> Iterator[tuple[Location, str]]:
    """Yield a fault if a program whose sizes vary does not give its cost for every size."""
    program, place = spec.program, ("program", "cost")
    if program is None:
        return
    options, formula = program.options, program.options.formula()
    grown = [name for name in spec.sizes if name != SAMPLES]
    if grown and formula is None:
        example = " * ".join({WIDTH: "{width}**2", DEPTH: "{depth}"}[name] for name in grown)
        yield (
            place,
            "cost must give the cost of a sample for every model size, as a formula of "
            f"{' and '.join(f'{{{name}}}' for name in grown)}, which the ladder varies, but "
            f"{'its flops_per_sample is a number or missing' if program.cost else 'there is none'}; "
            f"add cost: '{example}' if that fits, in any unit, or give flops_per_sample under cost "
            "as a formula",
        )
        return
    if formula is not None:
        for name in grown:
            if name not in formula.names:
                yield (
                    place,
                    f"cost must contain {{{name}}}, which varies over the ladder, but got "
                    f"{formula.text!r}; add it",
                )
                return
    texts = [program.cost] if isinstance(program.cost, str) else [*(program.cost or {}).values()]
    for text in texts:
        for name in parse_cost(text).names if isinstance(text, str) else ():
            if name not in spec.sizes:
                yield (
                    place,
                    f"cost may contain only what varies over the ladder, "
                    f"{', '.join(spec.sizes) or 'nothing'}, but {text!r} contains {{{name}}}; "
                    f"write its value instead",
                )
                return
    every = itertools.islice(itertools.product(*spec.sizes.values()), MOST_POINTS)
    corners = [dict(zip(spec.sizes, each, strict=True)) for each in every]
    full = {name: getattr(spec.full_scale, name, None) for name in spec.sizes}
    if None not in full.values():
        corners.append({name: int(size or 0) for name, size in full.items()})
    for sizes in corners:
        try:
            options.figures(sizes)
            if formula is not None:
                formula.value(sizes)
        except WorkloadError as error:
            yield place, str(error)
            return


def _faults_of_samples(spec: FittingStudy) -> Iterator[tuple[Location, str]]:
    within, full = spec.target.best_within, spec.full_scale
    if within is None:
        yield (
            ("ladder", SAMPLES),
            "samples give the length of training runs with a fixed budget, but here the target "
            "ends training; give target: {metric: "
            "..., best_within: {samples: ...}}, or leave samples out of the ladder",
        )
    elif full is not None and full.samples is not None and within.samples != full.samples:
        yield (
            ("target", "best_within"),
            f"best_within must equal the samples of full_scale, {full.samples}, but got "
            f"{within.model_dump(exclude_none=True)}",
        )
    least, largest = spec.sizes[SAMPLES][0], spec.ladder[-1]
    if least < largest:
        yield (
            ("ladder", SAMPLES),
            f"ladder.samples must allow at least one update at every batch size of the ladder, "
            f"but got {least}, which is less than the batch size {largest}",
        )


def _kept_as(name: str) -> str:
    return LENGTH if name == SAMPLES else name


def _in_data(spec: FittingStudy, name: str) -> str:
    known = described_workload(spec.workload)
    if known is None or name not in known.grows:
        return ""
    return f" and give data: {{{known.size_option(name)}: ...}}"
