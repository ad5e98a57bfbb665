"""StudySpec: the validated content of a study file.

``load_study(path)`` and ``parse_study(text)`` return a frozen :class:`StudySpec`, or raise one
:class:`hpo.errors.SpecError` that lists every fault with its line. They raise no other error for a bad study file, and
reading a file imports no training or database library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    model_validator,
)

from hpo.errors import SpecError, SpecFault
from hpo.study import faults as study_faults
from hpo.study import recipe as study_recipe
from hpo.study import rules, yaml_text
from hpo.study.constraints import (
    faults_of_constraints,
    faults_of_metrics,
    parse_constraints,
    to_plain,
)
from hpo.study.faults import SpecFaultsError
from hpo.study.program import ProgramSection, Section, faults_of_program
from hpo.study.samplers import SAMPLERS, check_sampler
from hpo.study.sizes import (
    BATCH,
    SAMPLES,
    faults_of_sizes,
    full_scale_sizes,
    length_share,
    points,
    split_sizes_from_ladder,
)
from hpo.study.target import MOST_EPOCHS, StudyTarget, faults_of_target, with_budget
from hpo.study.trackers import TrackerChoice, parse_trackers
from search_spaces.domains import Categorical
from search_spaces.names import did_you_mean
from search_spaces.space import SearchSpace
from trainers.job import Constraint, Question

if TYPE_CHECKING:
    Json = Any  # each workload defines what its own data section holds
else:
    Json = JsonValue
BatchSize = Annotated[
    int, Field(gt=0, le=2**31 - 1)
]  # samples per update, up to the maximum of a PostgreSQL integer column
Count = Annotated[int, Field(gt=0, le=10**9)]
MOST_RUNGS = 100
MOST_EVALUATIONS = 10_000
MOST_SEEDS = 10_000
AUTO = "auto"
SEARCH, LADDER_SAMPLER = "forecast", "tpe"
"""The default samplers: the first for studies that can be searched at full scale, the second for all others."""
LEAST_SEARCH = 10
"""Number of training runs that a search at full scale needs, including short ones; with fewer, the ladder is more
informative.
"""
MOST_TRIALS, USUAL_EPOCHS = 100, 90.0
"""The maximum number of trials, and the default number of epochs per trial, for a search that stops by itself."""


def parse_study_trackers(values: Any, info: ValidationInfo) -> tuple[TrackerChoice, ...]:
    """Parse the list of trackers of a study, which is less strict for a stored study (:func:`parse_trackers`)."""
    return parse_trackers(values, stored=bool((info.context or {}).get("stored")))


class FullScale(Section):
    """The full-scale run that the study prepares: its batch size, its machine, and whether to run it after the sweep.

    ``width``, ``depth`` and ``samples`` are its sizes if the ladder has smaller ones (:mod:`hpo.study.sizes`).
    """

    global_batch_size: BatchSize
    machine: str = Field("local", min_length=1, max_length=4096)
    workers: Count | None = None
    nodes: Count | None = None
    width: Count | None = None
    depth: Count | None = None
    samples: Annotated[int, Field(gt=0, le=10**15)] | None = None
    validate_plan: bool = Field(
        False, alias="validate"
    )  # pydantic's models already have a method named `validate`


class StudyBudget(Section):
    """How much may be trained: ``trials`` trials over the whole ladder, each of ``epochs_per_trial`` epochs.

    ``race`` is the number of samples that the full-scale model may process at the full-scale batch size before the plan
    is made. If it is None, the race may cost a quarter of the sweep; if it is 0, there is no race. With ``trials:
    auto`` or ``budget: auto`` the search stops by itself (``ends_by_itself``), after at most ``MOST_TRIALS`` trials.
    """

    trials: Count
    epochs_per_trial: float = Field(gt=0, le=MOST_EPOCHS)
    evaluations_per_epoch: Annotated[int, Field(gt=0, le=MOST_EVALUATIONS)] = 4
    race: Annotated[int, Field(ge=0, le=10**15)] | None = None

    _ends_by_itself: bool = PrivateAttr(False)

    @model_validator(mode="wrap")
    @classmethod
    def _of_auto(cls, values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if values == AUTO:
            values = {"trials": AUTO}
        if not isinstance(values, Mapping) or values.get("trials") != AUTO:
            return handler(values)
        budget = handler({"epochs_per_trial": USUAL_EPOCHS, **values, "trials": MOST_TRIALS})
        budget._ends_by_itself = True
        return budget

    @property
    def ends_by_itself(self) -> bool:
        """Whether the study ends when no further trial is worth its cost, rather than after a fixed number of
        trials.
        """
        return self._ends_by_itself

    @property
    def asked_trials(self) -> int | None:
        """The number of trials that the study file requests; None if the search stops by itself."""
        return None if self.ends_by_itself else self.trials

    def counted(self, ended: int) -> str:
        """Return how many trials have ended, and out of how many if that is known: ``12 of 48 trials``."""
        return f"{ended} trials" if self.ends_by_itself else f"{ended} of {self.trials} trials"

    def to_plain(self) -> dict[str, Any]:
        """Return the section as plain values, leaving out missing ones."""
        plain = self.model_dump(mode="json", exclude_none=True)
        return {**plain, "trials": AUTO} if self.ends_by_itself else plain


class ResourceSection(Section):
    """The resources of one trial: ``nodes`` of ``workers_per_node`` processes, each with its cores and GPUs.

    GPUs may be shared between workers, as with ``gpus_per_worker: 0.25``. If ``gpus_per_worker`` is None, a worker gets
    one GPU if there are any. As many trials run at once as fit on the free cores and GPUs of the machines.

    ``fused_trials`` is the number of trials that are trained at once as one model, in the sweep's own process. They are
    trials of one rung that differ in learning rate, warmup, decay and momentum. Fusing helps with models that leave an
    accelerator idle (``benchmarks/fused_trials.md``).
    """

    nodes: Count = 1
    workers_per_node: Count = 1
    gpus_per_worker: Annotated[float, Field(ge=0, le=1000)] | None = None
    cpus_per_worker: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    fused_trials: Count = 1

    @model_validator(mode="after")
    def _one_worker_where_fused(self) -> ResourceSection:
        if self.fused_trials > 1 and self.workers > 1:
            raise ValueError(
                f"fused trials must have one worker each, but got fused_trials {self.fused_trials} with {self.workers} "
                "workers a trial; set nodes and workers_per_node to 1, or leave fused_trials out"
            )
        return self

    @property
    def workers(self) -> int:
        """The number of processes of one trial."""
        return self.nodes * self.workers_per_node


class StudySpec(Section):
    """One study, as described by its file; two studies are equal if their content is the same, whatever their text.

    ``ladder`` holds the batch sizes, and ``sizes`` the other sizes of a ladder that is a mapping.
    """

    not_keys: ClassVar[tuple[str, ...]] = ("sizes",)
    name: Annotated[str, AfterValidator(rules.check_name)]
    workload: Annotated[str, AfterValidator(rules.check_workload)]
    program: ProgramSection | None = None
    data: dict[str, Json] = Field(default_factory=dict)
    target: StudyTarget
    ladder: Annotated[
        tuple[BatchSize, ...],
        Field(strict=False, min_length=1, max_length=MOST_RUNGS),
        AfterValidator(rules.check_ladder),
    ]
    sizes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    full_scale: FullScale | None = None
    recipe: Annotated[str, AfterValidator(study_recipe.check_recipe)] | None = None
    search: Annotated[
        SearchSpace,
        PlainValidator(study_recipe.parse_search),
        PlainSerializer(SearchSpace.to_plain),
    ]
    budget: StudyBudget
    resources: ResourceSection = ResourceSection()
    seeds: Annotated[int, Field(gt=0, le=MOST_SEEDS)] = 1
    constraints: Annotated[
        tuple[Constraint, ...], PlainValidator(parse_constraints), PlainSerializer(to_plain)
    ] = ()
    sampler: Annotated[str, AfterValidator(check_sampler)] = LADDER_SAMPLER
    trackers: Annotated[
        tuple[TrackerChoice, ...],
        PlainValidator(parse_study_trackers),
        PlainSerializer(lambda chosen: [each.to_plain() for each in chosen]),
    ] = ()

    _text: str | None = PrivateAttr(None)
    _path: str | None = PrivateAttr(None)
    _folder: str | None = PrivateAttr(None)
    _document: yaml_text.YamlDocument | None = PrivateAttr(None)

    @model_validator(mode="wrap")
    @classmethod
    def _check_together(cls, values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        study = handler(with_budget(split_sizes_from_ladder(values)))
        if "sampler" not in study.model_fields_set:
            study = study.model_copy(update={"sampler": usual_sampler(study)})
        full_scale = None if study.full_scale is None else study.full_scale.global_batch_size
        own = study_recipe.own_settings(values)
        faults = [
            *rules.faults_of_budget(study.budget.trials, study.ladder),
            *faults_of_target(
                study.target,
                study.program,
                study.data,
                [*study.ladder, *([full_scale] if full_scale else [])],
                study.budget.epochs_per_trial,
            ),
            *faults_of_constraints(
                study.constraints,
                study.target.metric,
                study.program,
                fused=study.resources.fused_trials > 1,
                asynchronous=study.search.fixed.get("update_mode", "synchronous") != "synchronous",
                sizes=bool(study.sizes),
            ),
            *_faults_of_auto(study),
            *_faults_of_fixed_budget(study),
            *faults_of_sizes(study),
            *rules.faults_of_normalization(study.search, study.ladder, full_scale),
            *rules.faults_of_workers(study.search, study.ladder, study.resources.workers),
            *faults_of_program(
                study.workload,
                study.program,
                study.search,
                repeated=study.repeated,
                sizes=study.sizes,
            ),
            *study_recipe.faults_of_durations(
                study.recipe, study.search, own, study.budget.epochs_per_trial
            ),
        ]
        if faults:
            raise SpecFaultsError(faults)
        return study

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StudySpec:
        """Return the study with these plain values, as in a study file; raise :class:`SpecError` with all faults."""
        return _validated(yaml_text.YamlDocument(dict(values)), None)

    @property
    def text(self) -> str:
        """The study file as it was given, including comments; :meth:`to_yaml` if there was none."""
        return self.to_yaml() if self._text is None else self._text

    @property
    def path(self) -> Path | None:
        """The path of the study file; None for a study that did not come from a file."""
        return None if self._path is None else Path(self._path)

    @property
    def search_path(self) -> Path | None:
        """The absolute path of the folder with the user's own modules and data: the folder of the study file, or None
        without a file.
        """
        return None if self._folder is None else Path(self._folder)

    @property
    def repeated(self) -> str:
        """The entry of the study that trains configurations again with other seeds, in words; "" if there is none."""
        if self.seeds > 1:
            return f"seeds: {self.seeds} repeats the best settings with other seeds"
        if self.full_scale is not None and self.full_scale.validate_plan:
            return "full_scale: {validate: true} trains the plan with several seeds"
        return ""

    @property
    def race_batch(self) -> int | None:
        """The full-scale batch size at which settings may be raced after the sweep; None if nothing is raced.

        With several sizes, the race uses the full-scale model, unless the sweep already trains that model at this batch
        size.
        """
        full = self.full_scale
        if full is None or self.budget.race == 0 or self.question.fixed:
            return None
        swept = full.global_batch_size in self.ladder and full_scale_sizes(self) in points(self)
        return None if swept else full.global_batch_size

    @property
    def varied(self) -> list[str]:
        """The names of everything that varies between trials besides batch size and seed: the sizes of the ladder, if
        it has any, and the tuned settings.
        """
        return [*(name for name, _ in full_scale_sizes(self)), *self.search.names]

    @property
    def question(self) -> Question:
        """The question that the study asks: how soon runs reach the target, or how good they get within its budget."""
        fixed = self.target.best_within is not None
        epochs = self.budget.epochs_per_trial if fixed else None
        longest = self.full_scale.samples if self.full_scale and SAMPLES in self.sizes else None
        return Question(self.target.aim, epochs, longest, self.constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON-compatible plain values; absent values stay absent."""
        plain = self.model_dump(mode="json", by_alias=True)
        plain["program"] = self.program and self.program.to_plain()
        plain["resources"] = self.resources.model_dump(mode="json", exclude_defaults=True)
        plain["budget"] = self.budget.to_plain()
        plain["target"] = self.target.to_plain()
        if sizes := plain.pop("sizes"):
            plain["ladder"] = {BATCH: plain["ladder"], **sizes}
        given = (plain.pop("full_scale") or {}).items()
        plain["full_scale"] = {key: value for key, value in given if value is not None}
        order = [
            name
            for name in type(self).model_fields
            if plain.get(name)
            or name
            not in (
                "full_scale",
                "recipe",
                "program",
                "resources",
                "trackers",
                "sizes",
                "constraints",
            )
        ]
        return {name: plain[name] for name in order}

    def to_yaml(self) -> str:
        """Return the text of a study file that :func:`parse_study` reads back into an equal study."""
        return yaml_text.write(self.to_dict())

    def renamed(self, name: str) -> StudySpec:
        """Return the same study under another name, keeping the comments in its text if possible; raise
        :class:`SpecError` for an invalid name.
        """
        word = (
            name if re.fullmatch(r"[A-Za-z][\w-]*", name) else json.dumps(name, ensure_ascii=False)
        )
        values = yaml_text.YamlDocument({**self.to_dict(), "name": name})
        wanted = _validated(values, None, stored=True)
        wanted.check_new_name()
        line = None if self._document is None else self._document.line(("name",))
        if self._text is not None and line is not None:
            lines = self._text.splitlines(keepends=True)
            lines[line - 1] = re.sub(
                r"^(\W?name\W?\s*:\s*).*?(\s+#.*|\s*)$",
                lambda found: f"{found[1]}{word}{found[2]}",
                lines[line - 1],
                flags=re.DOTALL,
            )
            try:
                changed = parse_stored_study("".join(lines), folder=self._folder)
            except SpecError:
                changed = None
            if changed == wanted:
                return changed
        return parse_stored_study(wanted.to_yaml(), folder=self._folder)

    def check_new(self) -> None:
        """Raise :class:`SpecError` if no new study may be this one, with every reason; a stored study may be it."""
        shortest = min(length_share(self, point) for point in points(self))
        faults = [
            *rules.faults_of_new(self.name, self.search),
            *rules.faults_of_warmup(self.search, shortest * self.budget.epochs_per_trial),
        ]
        found = [self.error(message, *location) for location, message in faults]
        if found:
            raise SpecError([fault for error in found for fault in error.faults], path=self._path)

    def check_new_name(self) -> None:
        """Raise :class:`SpecError` if no new study may have the study's name."""
        if fault := rules.fault_of_new_name(self.name):
            raise self.error(fault, "name")

    def error(self, message: str, *location: str | int) -> SpecError:
        """Return a :class:`SpecError` about the value at ``location`` (keys from the root), with its line."""
        line = None if self._document is None else self._document.line(location)
        return SpecError(SpecFault(message, line, _dotted(location)), path=self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StudySpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_yaml())


def usual_sampler(study: StudySpec) -> str:
    """Return the default sampler of a study: the search at full scale if that is possible, otherwise TPE on the ladder.

    A search at full scale is possible if the search may choose the budget itself, or if runs at the full-scale batch
    size can find the best learning rate. The latter requires that this batch size may be trained here (a program must
    be able to accumulate gradients), ``learning_rate`` is scaled, all scaled settings are numbers, and there are at
    least ``LEAST_SEARCH`` trials.
    """
    if study.budget.ends_by_itself and not study.sizes:
        return SEARCH
    full, scaled = study.full_scale, study.search.scaled
    trainable = full is not None and (
        study.race_batch is not None or full.global_batch_size in study.ladder
    )
    if study.program is not None:
        trainable = trainable and study.program.options.accumulates
    numbers = all(not isinstance(study.search.domains[name], Categorical) for name in scaled)
    enough = study.budget.trials >= LEAST_SEARCH
    searchable = trainable and enough and not study.question.fixed and not study.sizes
    return SEARCH if searchable and "learning_rate" in scaled and numbers else LADDER_SAMPLER


def _faults_of_auto(study: StudySpec) -> Iterator[tuple[study_faults.Location, str]]:
    """Yield a fault if the budget is ``auto`` but the search does not stop by itself."""
    if not study.budget.ends_by_itself or (study.question.fixed and not study.sizes):
        return
    if not SAMPLERS[study.sampler].chooses_rung and not study.sizes:
        yield (
            ("sampler",),
            f"budget: auto needs a sampler that stops by itself (forecast), but got "
            f"{study.sampler}; use it, or give budget: {{trials: ...}}",
        )
    elif not study.search.scaled:
        yield (
            ("budget",),
            "budget: auto needs a setting with role: scaled, which decides when the search "
            "stops; add one, or give budget: {trials: ...}",
        )
    for name in study.search.scaled:
        if isinstance(study.search.domains.get(name), Categorical):
            yield (
                ("budget",),
                f"budget: auto needs scaled settings that are numbers, but {name} is a choice: give it role: shared, "
                "or give budget: {trials: ...}",
            )


def _faults_of_fixed_budget(study: StudySpec) -> Iterator[tuple[study_faults.Location, str]]:
    """Yield a fault if a study with a fixed budget requests something that only works with a target that ends
    training.
    """
    if not study.question.fixed:
        return
    way_out = "or give target: {metric: ..., at_least or at_most: ...}"
    if study.budget.ends_by_itself and not study.sizes:
        yield (
            ("budget",),
            f"budget: auto needs a target that ends training, or a ladder of several sizes, "
            f"but got best_within with one size; give budget: {{trials: ...}}, {way_out}",
        )
    elif SAMPLERS[study.sampler].chooses_rung:
        yield (
            ("sampler",),
            f"sampler {study.sampler} needs a target that ends training, but got best_within; "
            f"use tpe, {way_out}",
        )
    if study.budget.race:
        yield (
            ("budget", "race"),
            f"a race needs a target that ends training, but got best_within; leave race out, "
            f"{way_out}",
        )


def load_study(path: str | Path) -> StudySpec:
    """Read the study in a YAML file; raise :class:`SpecError` for any fault in the file."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(yaml_text.MAX_BYTES + 1)
        text = raw.decode("utf-8-sig") if len(raw) <= yaml_text.MAX_BYTES else None
    except FileNotFoundError:
        raise SpecError("the study file must exist, but it does not", path=str(path)) from None
    except (OSError, ValueError) as error:
        reason = (
            f"it is not UTF-8: {error.reason}"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", None) or error
        )
        raise SpecError(
            f"the study file must be readable text, but {reason}", path=str(path)
        ) from None
    if text is None:
        raise SpecError(
            f"a study file must have at most {yaml_text.MAX_BYTES:,} bytes, but got more",
            path=str(path),
        )
    return parse_study(text, path)


def parse_study(
    text: str, path: str | Path | None = None, *, folder: str | Path | None = None
) -> StudySpec:
    """Read the study in a YAML text.

    ``path`` is the file to name in errors. ``folder`` holds the study's own modules and data (default: the folder of
    ``path``).
    """
    return _parsed(text, path, folder)


def parse_stored_study(text: str, *, folder: str | Path | None = None) -> StudySpec:
    """Read a study that is stored, which may name trackers that are missing here: its trials do not depend on them.

    ``folder`` is as in :func:`parse_study`.
    """
    return _parsed(text, None, folder, stored=True)


def _parsed(
    text: str, path: str | Path | None, folder: str | Path | None, *, stored: bool = False
) -> StudySpec:
    place = None if path is None else str(path)
    if folder is None and path is not None:
        folder = Path(path).resolve().parent
    document = yaml_text.read(text)
    if document.value is None and not document.faults:
        document.faults.append(SpecFault("a study file must hold a study, but got an empty file"))
    spec = _validated(document, place, stored=stored)
    spec._text, spec._folder = text, None if folder is None else str(Path(folder).absolute())
    return spec


def check_study_target(spec: StudySpec, metrics: Mapping[str, bool]) -> None:
    """Raise :class:`SpecError` unless the workload can reach the study's target.

    ``metrics`` maps each of the workload's metrics to True if higher is better (accuracy) and to False if lower is
    better (loss).
    """
    metric = spec.target.metric
    if metric not in metrics:
        raise spec.error(
            f"target.metric must be one that workload {spec.workload!r} measures "
            f"({', '.join(sorted(metrics))}), but got {metric!r}{did_you_mean(metric, metrics)}",
            "target",
            "metric",
        )
    if spec.question.fixed and spec.target.higher_is_better != metrics[metric]:
        right, wrong = ("maximize", "minimize") if metrics[metric] else ("minimize", "maximize")
        raise spec.error(
            f"target.direction must be {right} with {metric}, which is better when "
            f"{'higher' if metrics[metric] else 'lower'}, but got {wrong}; write direction: {right}",
            "target",
            "direction" if spec.target.direction else "metric",
        )
    if spec.target.higher_is_better and not metrics[metric]:
        raise spec.error(
            f"target.at_most must be used with {metric}, which is better when lower, "
            "but got at_least",
            "target",
            "at_least",
        )
    if metrics[metric] and not spec.target.higher_is_better:
        raise spec.error(
            f"target.at_least must be used with {metric}, which is better when higher, "
            "but got at_most",
            "target",
            "at_most",
        )


def check_study_constraints(spec: StudySpec, metrics: Mapping[str, bool], *, memory: bool) -> None:
    """Raise :class:`SpecError` unless the workload's trials report everything that the study constrains.

    ``metrics`` is as in :func:`check_study_target`; ``memory`` says whether the trials report their memory use.
    """
    found = faults_of_metrics(spec.constraints, spec.workload, metrics, memory=memory)
    for location, message in found:
        raise spec.error(message, *location)


def _validated(
    document: yaml_text.YamlDocument, path: str | None, *, stored: bool = False
) -> StudySpec:
    faults = list(document.faults)
    spec = None
    if not isinstance(document.value, dict):
        if not faults:
            faults.append(
                SpecFault(
                    "a study file must be a mapping of keys to values, but got "
                    f"{study_faults.shown_value(document.value)}"
                )
            )
        raise SpecError(faults, path=path)
    try:
        spec = StudySpec.model_validate(document.value, context={"stored": stored})
    except ValidationError as error:
        for location, message in study_faults.explain_fault(error, StudySpec):
            faults.append(SpecFault(message, document.line(location), _dotted(location)))
    if faults or spec is None:
        faults.sort(key=lambda fault: (fault.line is None, fault.line or 0))
        raise SpecError(faults, path=path)
    spec._path, spec._document = path, document
    return spec


def _dotted(location: yaml_text.Location) -> str | None:
    return study_faults.dotted_location(location) or None
