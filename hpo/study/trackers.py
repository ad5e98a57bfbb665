"""The registry of experiment trackers that a study may name; each tracker is described without being imported.

In a study file, ``trackers: [wandb]`` names one, and ``trackers: [{mlflow: {uri: "http://mlflow.example"}}]`` names one
with settings. Trackers are not part of a study's question: the study may be continued with other trackers, or without
any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.study.faults import shown_value
from search_spaces.names import did_you_mean
from search_spaces.plugins import PluginError, PluginRegistry, plugin_instance_of

LONGEST = 4096
"""Maximum number of characters in a tracker's setting."""


@dataclass(frozen=True, kw_only=True)
class TrackerDescription:
    """A tracker: ``about`` says briefly what it is, and ``source`` where its package is documented.

    ``rule`` is ``module:attribute``, imported in the process that writes to the tracker. It is called with the stored
    study (:class:`storage.records.Study`), its :class:`hpo.study.spec.StudySpec`, a folder that it may write to
    (:class:`pathlib.Path`, the same each time) and the study's ``settings`` as keyword arguments (strings). It returns
    a :class:`hpo.runs.exports.tracking.Tracker`. ``places`` are the settings that say where the tracker writes; for the
    worker of a service, the operator sets these in the environment.
    """

    rule: str
    about: str
    source: str
    settings: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(self.rule.partition(":")):
            raise ValueError(f"rule must be 'package.module:attribute', but got {self.rule!r}")


_EXPORTS = "hpo.runs.exports"

TRACKERS: PluginRegistry[TrackerDescription] = PluginRegistry(
    "trackers",
    {
        "wandb": TrackerDescription(
            rule=f"{_EXPORTS}.wandb_log:WandbTracker",
            about="Weights & Biases; without network access or a key, into a folder for `wandb "
            "sync`",
            source="docs.wandb.ai",
            settings={
                "project": "the project; default: largebatch",
                "entity": "the user or team; default: the owner of the key",
                "mode": "online or offline; default: online",
            },
            places=("entity",),
        ),
        "mlflow": TrackerDescription(
            rule=f"{_EXPORTS}.mlflow_log:open_mlflow",
            about="MLflow",
            source="mlflow.org/docs",
            settings={
                "uri": "a tracking server or a database; default: MLFLOW_TRACKING_URI, or "
                "mlflow.db in .hpo/trackers",
                "experiment": "the experiment; default: the study's name",
            },
            places=("uri",),
        ),
        "tensorboard": TrackerDescription(
            rule=f"{_EXPORTS}.tensorboard_log:open_tensorboard",
            about="event files for TensorBoard",
            source="tensorboard.dev",
            settings={"folder": "the folder to write to; default: tensorboard in .hpo/trackers"},
            places=("folder",),
        ),
        "aim": TrackerDescription(
            rule=f"{_EXPORTS}.aim_log:AimTracker",
            about="Aim",
            source="aimstack.readthedocs.io",
            settings={
                "repo": "its repository, a folder or aim://host:port; default: aim in "
                ".hpo/trackers",
                "experiment": "the experiment; default: the study's name",
            },
            places=("repo",),
        ),
    },
    plugin_instance_of(TrackerDescription),
)


@dataclass(frozen=True)
class TrackerChoice:
    """One tracker of a study, by name, with its settings as text."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_plain(self) -> str | dict[str, dict[str, str]]:
        """Return the tracker in the form that a study file uses."""
        return {self.name: dict(self.settings)} if self.settings else self.name


def parse_trackers(values: Any, *, stored: bool = False) -> tuple[TrackerChoice, ...]:
    """Parse the list of trackers in a study file; raise ValueError if there is a fault in it.

    A ``stored`` study may name trackers whose package is missing here or has changed since.
    """
    if not isinstance(values, list | tuple):
        raise ValueError(
            f"must be a list, such as [{next(iter(TRACKERS))}], but got {shown_value(values)}"
        )
    found = [
        each if isinstance(each, TrackerChoice) else _choice(each, stored=stored) for each in values
    ]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"must name each tracker once, but got {name} {names.count(name)} times"
            )
    return tuple(found)


def check_tracker_names(names: Sequence[str]) -> None:
    """Raise ValueError for an unknown tracker."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(
                f"there is no tracker {shown_value(name)}{TRACKERS.explain(name)}; "
                f"the choices are {', '.join(TRACKERS)}"
            )


def described_tracker(name: str) -> TrackerDescription:
    """Return the description of a tracker; raise ValueError if it is unknown or its plug-in cannot be used."""
    check_tracker_names([name])
    try:
        return TRACKERS[name]
    except PluginError as error:
        raise ValueError(f"{shown_value(name)} cannot be used: {error}") from error


def trackers_allowed_here(
    chosen: Sequence[TrackerChoice], names: Sequence[str]
) -> tuple[list[TrackerChoice], list[str]]:
    """Return the trackers of a study that a worker may write to, and the reason why each other tracker is refused.

    ``names`` are the trackers that the worker's operator allows; settings that say where to write are reserved for the
    operator.
    """
    found, refused = [], []
    for each in chosen:
        if each.name not in names:
            allowed = f"those that its operator allows: {', '.join(names)}" if names else "none"
            refused.append(f"tracker {each.name}: this worker writes to {allowed}")
            continue
        try:
            described = described_tracker(each.name)
        except ValueError as error:
            refused.append(str(error))
            continue
        places = [key for key in each.settings if key in described.places]
        if places:
            refused.append(
                f"tracker {each.name}: on this worker the operator decides where it writes, "
                f"but the study gives {', '.join(places)}; leave it out"
            )
        else:
            found.append(each)
    return found, [
        f"{why}; trials continue without it, and `hpo export trackers` writes them later from "
        f"the database"
        for why in refused
    ]


def _choice(value: Any, *, stored: bool) -> TrackerChoice:
    name: Any = value
    settings: Any = {}
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, settings),) = value.items()
        settings = {} if settings is None else settings
    if stored and isinstance(name, str) and isinstance(settings, Mapping):
        return TrackerChoice(name, dict(settings))
    *names, last = TRACKERS
    if not isinstance(name, str) or name not in TRACKERS:
        raise ValueError(
            f"must name one of {', '.join(names)} or {last}, alone or with its settings, such as "
            f"{{{names[0]}: {{project: mine}}}}, but got {shown_value(value)}{TRACKERS.explain(name)}"
        )
    known = described_tracker(name).settings
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"must have the settings of {name} as a mapping, but got {shown_value(settings)}"
        )
    for key, text in settings.items():
        if key not in known:
            raise ValueError(
                f"must have settings that {name} has ({', '.join(known) or 'none'}), but got "
                f"{shown_value(key)}{did_you_mean(str(key), known)}"
            )
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
            raise ValueError(
                f"{key} of {name} must be text of 1 to {LONGEST} characters, but got {shown_value(text)}"
            )
    return TrackerChoice(name, dict(settings))
