"""A server's responses as typed values. Fields that newer servers add are available in ``document``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpo.errors import ServiceError

if TYPE_CHECKING:
    from hpo.extrapolation.inference.intervals import Interval

T = TypeVar("T")
Document = Mapping[str, Any]
ENDED = ("finished", "failed", "cancelled", "interrupted")
PLAN_FILES = ("script", "job", "settings")


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """The state of a study; ``trials`` counts its trials by state.

    ``best_epochs_to_target`` covers all rungs, as does ``best_metric``, which is None unless the study asks for the
    best metric within a budget.
    """

    name: str
    state: str
    owner: str
    priority: int
    workload: str
    message: str
    trials: Mapping[str, int]
    best_epochs_to_target: float | None
    best_metric: float | None
    samples: int
    worker: str | None
    cancel_requested: bool
    created_at: datetime
    updated_at: datetime
    document: Document = dataclasses.field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether the study has ended; it may still be resumed."""
        return self.state in ENDED

    @classmethod
    def of(cls, document: Any) -> StudyStatus:
        """Read the record from the server's JSON."""
        return _read(
            cls,
            document,
            lambda plain: cls(
                name=plain["name"],
                state=plain["state"],
                owner=plain["owner"],
                priority=plain["priority"],
                workload=plain["workload"],
                message=plain["message"],
                trials=dict(plain["trials"]),
                best_epochs_to_target=plain["best_epochs_to_target"],
                best_metric=plain.get("best_metric"),
                samples=plain["samples"],
                worker=plain["worker"],
                cancel_requested=plain["cancel_requested"],
                created_at=_time(plain["created_at"]),
                updated_at=_time(plain["updated_at"]),
                document=plain,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RemoteEvent:
    """An event of a study; ``id`` is None for progress, which the server does not store."""

    id: int | None
    kind: str
    message: str
    study: str | None
    at: datetime | None
    data: Document

    @classmethod
    def of(cls, document: Any) -> RemoteEvent:
        """Read the record from the server's JSON."""
        return _read(
            cls,
            document,
            lambda plain: cls(
                id=int(plain["id"]),
                kind=plain["kind"],
                message=plain["message"],
                study=plain.get("study"),
                at=_time(plain["at"]),
                data=plain.get("data") or {},
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RemoteTrial:
    """One trial: its settings at one global batch size with one seed, and its results.

    Each of ``figures`` is also an attribute, such as ``epochs_to_target``, ``epochs``, ``seconds`` and ``best_metric``;
    it is None if not measured. The available figures depend on the server's release. ``sizes`` holds the width, depth
    and samples of the trial's rung; it is empty if only the batch size grows.
    """

    number: int
    state: str
    global_batch_size: int
    seed: int
    purpose: str
    settings: Document
    reason: str
    figures: Mapping[str, float | None]
    document: Document = dataclasses.field(repr=False, compare=False)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, document: Any) -> RemoteTrial:
        """Read the record from the server's JSON."""
        others = ("figures", "document", "sizes")
        names = [each.name for each in dataclasses.fields(cls) if each.name not in others]

        def read(plain: Document) -> RemoteTrial:
            figures = {
                name: value
                for name, value in plain.items()
                if name not in (*names, "sizes", "started_at", "finished_at", "measures")
            }
            return cls(
                **{name: plain[name] for name in names},
                figures=figures,
                document=plain,
                sizes=dict(plain.get("sizes") or {}),
            )

        return _read(cls, document, read)

    def __getattr__(self, name: str) -> float | None:
        """Return a figure; raise AttributeError if the trial has no figure of this name."""
        figures: Mapping[str, float | None] = self.__dict__.get("figures", {})
        if name not in figures:
            raise AttributeError(
                f"a trial has no field {name!r}; its fields are {', '.join(figures)}"
            )
        return figures[name]


@dataclass(frozen=True, kw_only=True)
class RemoteForecast:
    """Settings and epochs to target at a batch size, each as a median with its 90 % interval.

    For a study that asks for the best metric within a budget, ``epochs_to_target`` is None and ``best`` is that metric.
    ``sizes`` holds the width, depth and samples of the forecast; it is empty if only the batch size grows.
    """

    global_batch_size: float
    epochs_to_target: Interval | None
    settings: Mapping[str, Interval]
    trust: str
    reason: str
    complete_settings: Document
    document: Document = dataclasses.field(repr=False, compare=False)
    best: Interval | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, document: Any) -> RemoteForecast:
        """Read the record from the server's JSON."""
        return _read(
            cls,
            document,
            lambda plain: cls(
                global_batch_size=plain["global_batch_size"],
                epochs_to_target=_perhaps(plain["epochs_to_target"]),
                best=_perhaps(plain.get("best")),
                sizes=dict(plain.get("sizes") or {}),
                settings={name: _interval(each) for name, each in plain["settings"].items()},
                trust=plain["trust"],
                reason=plain["reason"],
                complete_settings=plain["complete_settings"],
                document=plain,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RemoteDesign:
    """A sweep design: training runs over the ladder up to ``largest``, their cost, and the interval at full scale.

    ``cost`` is measured in full-scale training runs; ``accelerator_hours`` is None if no run was timed; ``own`` marks
    the current study. See :class:`hpo.Design`.
    """

    largest: Mapping[str, int]
    trainings: int
    cost: float
    accelerator_hours: float | None
    interval: Interval
    factor: float
    regret: float
    own: bool
    document: Document = dataclasses.field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Any) -> RemoteDesign:
        """Read the record from the server's JSON."""
        return _read(
            cls,
            document,
            lambda plain: cls(
                largest=dict(plain["largest"]),
                trainings=plain["trainings"],
                cost=plain["cost"],
                accelerator_hours=plain["accelerator_hours"],
                interval=_interval(plain["interval"]),
                factor=plain["factor"],
                regret=plain["regret"],
                own=plain["own"],
                document=plain,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RemotePlan:
    """A plan that the server stores under ``id``; ``files`` holds the text of its script, job and settings."""

    id: int
    machine: str
    nodes: int
    workers: int
    global_batch_size: int
    epochs_to_target: Interval | None
    seconds_to_target: Interval | None
    trust: str
    reason: str
    files: Mapping[str, str] = dataclasses.field(repr=False)
    document: Document = dataclasses.field(repr=False, compare=False)

    def write(self, directory: Path | str) -> list[Path]:
        """Write the files into a folder, the script as an executable; return their paths in the order of ``files``."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, text in self.files.items():
            path = folder / Path(name).name  # the server must not choose where files go
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
            paths.append(path)
        return paths

    @classmethod
    def of(cls, document: Any, files: Mapping[str, str]) -> RemotePlan:
        """Read the plan from the server's JSON and the texts of its files by name."""
        return _read(
            cls,
            document,
            lambda plain: cls(
                id=plain["plan"]["id"],
                machine=plain["plan"]["machine"],
                nodes=plain["plan"]["nodes"],
                workers=plain["plan"]["workers"],
                global_batch_size=plain["plan"]["global_batch_size"],
                epochs_to_target=_perhaps(plain["plan"]["epochs_to_target"]),
                seconds_to_target=_perhaps(plain["plan"]["seconds_to_target"]),
                trust=plain["plan"].get("trust") or "",
                reason=plain["plan"].get("reason") or "",
                files=dict(files),
                document=plain,
            ),
        )


def _read(kind: type[T], document: Any, make: Callable[[Any], T]) -> T:
    try:
        return make(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServiceError(
            f"the server's response is not a {kind.__name__}: {type(error).__name__} {error}; "
            f"is it an `hpo serve` of the same release?"
        ) from error


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _interval(plain: Any) -> Interval:
    from hpo.extrapolation.inference.intervals import Interval

    return Interval(plain["median"], plain["low"], plain["high"])


def _perhaps(plain: Any) -> Interval | None:
    return None if plain is None else _interval(plain)
