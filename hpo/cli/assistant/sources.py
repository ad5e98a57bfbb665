"""Data sources of the tools: a database on this machine, or a server with its tokens and limits.

Both sources return plain values. A refused request raises one of the errors of :mod:`hpo.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hpo.errors import PlanError, RequestError
from hpo.runs import api
from hpo.runs.repository import open_store
from hpo.study.sizes import named_sizes, sizes_of_settings
from search_spaces.names import did_you_mean
from storage.errors import NotFound
from storage.records import NewStudy, StudyState

if TYPE_CHECKING:
    from hpo.client.client import Client
    from hpo.runs.results import StudyResult

Plain = dict[str, Any]


class StudySource(Protocol):
    """The calls that the tools make to a database or a server; they raise :class:`hpo.errors.HpoError`."""

    plans_are_kept: bool
    """Whether making a plan stores it."""

    def studies(self, state: str | None, search: str | None) -> list[Plain]:
        """Return the studies that are in the given state and have ``search`` in their name, newest first."""
        ...

    def study(self, name: str) -> Plain:
        """Return all data of a study including its file, but without a forecast."""
        ...

    def trials(self, name: str) -> list[Plain]:
        """Return the study's trials, ordered by number."""
        ...

    def events(self, name: str) -> list[Plain]:
        """Return the study's events, oldest first."""
        ...

    def forecast(self, name: str, batches: Sequence[int], budgets: Sequence[float]) -> list[Plain]:
        """Return forecasts at the batch sizes, or at the study's full-scale batch size if none is given."""
        ...

    def designs(self, name: str) -> Plain:
        """Return the interval at full scale and the cost for the study's training runs, and for fewer or more runs."""
        ...

    def plan(self, name: str, asked: Mapping[str, Any]) -> Plain:
        """Return the best plan for the given fields of :class:`hpo.PlanRequest`."""
        ...

    def plans(self, name: str) -> list[Plain]:
        """Return the stored plans with the outcomes of their launches."""
        ...

    def calibration(self) -> list[Plain]:
        """Return every launched plan with its forecast and outcome."""
        ...

    def submit(self, spec: str, limits: Mapping[str, Any]) -> Plain:
        """Queue the study described by the text of a study file; return its state."""
        ...


class StudyDatabase:
    """A database on this machine. Only :meth:`submit` creates or changes anything in it."""

    plans_are_kept = False

    def __init__(self, storage: str) -> None:
        self._storage = storage

    def studies(self, state: str | None, search: str | None) -> list[Plain]:
        """See :class:`StudySource`."""
        return [
            {
                "name": each.name,
                "state": str(each.state),
                "workload": each.workload,
                "metric": each.metric,
                "threshold": each.threshold,
                "created_at": each.created_at.isoformat(),
                "message": each.message,
            }
            for each in reversed(api.studies(self._storage))
            if state in (None, str(each.state)) and (search or "").lower() in each.name.lower()
        ]

    def study(self, name: str) -> Plain:
        """See :class:`StudySource`."""
        result = api.read_study(name, self._storage)
        return {**result.to_dict(), "spec": result.spec.text}

    def trials(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        from hpo.cli.output.tables import trial_rows

        result = api.read_study(name, self._storage)
        rows = trial_rows(result)
        if not result.spec.sizes:
            return rows
        return [
            {"sizes": named_sizes(sizes_of_settings(result.spec, trial.settings)), **row}
            for trial, row in zip(result.trials, rows, strict=True)
        ]

    def events(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        study, found = api.read_study(name, self._storage).study, list[Plain]()
        with open_store(self._storage, create=False) as store:
            last = 0
            while page := store.events(after=last, study_id=study.id):
                found += [
                    {"kind": each.kind, "at": each.at.isoformat(), "message": each.message}
                    for each in page
                ]
                last = page[-1].id
        return found

    def forecast(self, name: str, batches: Sequence[int], budgets: Sequence[float]) -> list[Plain]:
        """See :class:`StudySource`."""
        result = api.read_study(name, self._storage)
        full = result.spec.full_scale
        at = list(batches) or _full_scale(name, full.global_batch_size if full else None)
        posterior = api.fit_posterior(result, at)
        return [api.forecast(result, each, posterior, budgets=budgets).to_dict() for each in at]

    def designs(self, name: str) -> Plain:
        """See :class:`StudySource`."""
        return api.designs(api.read_study(name, self._storage)).to_dict()

    def plan(self, name: str, asked: Mapping[str, Any]) -> Plain:
        """See :class:`StudySource`; a machine must be one that `hpo machines` lists, not a file."""
        result: StudyResult = api.read_study(name, self._storage)
        _known("machine", asked.get("machine"), _machines())
        return api.plan_study(result, **asked)[1].to_dict()

    def plans(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        return [each.to_dict() for each in api.read_study(name, self._storage).runs]

    def calibration(self) -> list[Plain]:
        """See :class:`StudySource`."""
        import dataclasses

        return [dataclasses.asdict(each) for each in api.calibration(self._storage)]

    def submit(self, spec: str, limits: Mapping[str, Any]) -> Plain:
        """See :class:`StudySource`; an `hpo worker` of this database runs the study."""
        study = api.parse_study(spec)
        with open_store(self._storage) as store:
            try:
                store.study(study.name)
            except NotFound:
                study.check_new()
            done = store.submit_study(
                NewStudy(
                    name=study.name,
                    workload=study.workload,
                    metric=study.target.metric,
                    threshold=study.target.threshold,
                    higher_is_better=study.target.higher_is_better,
                    spec=study.text,
                    budget_trials=study.budget.asked_trials,
                    **limits,
                ),
                event="submitted by an assistant",
            )
        return {
            "name": done.study.name,
            "state": str(done.study.state),
            "created": done.created,
            "next": "a worker of this database will run it (hpo worker)"
            if done.study.state is StudyState.QUEUED
            else "this study existed already",
        }


class StudyServer:
    """A server, used through the project's client with the permissions of the token."""

    plans_are_kept = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def studies(self, state: str | None, search: str | None) -> list[Plain]:
        """See :class:`StudySource`."""
        return [dict(each.document) for each in self._client.studies(state=state, search=search)]

    def study(self, name: str) -> Plain:
        """See :class:`StudySource`."""
        return dict(self._client.study(name).status().document)

    def trials(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        return [
            {**{k: v for k, v in each.document.items() if k != "settings"}, **each.settings}
            for each in self._client.study(name).trials()
        ]

    def events(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        return [
            {
                "kind": each.kind,
                "at": each.at and each.at.isoformat(),
                "message": each.message,
            }
            for each in self._client.study(name).logs()
        ]

    def forecast(self, name: str, batches: Sequence[int], budgets: Sequence[float]) -> list[Plain]:
        """See :class:`StudySource`."""
        study = self._client.study(name)
        full = {} if batches else study.status().document.get("full_scale") or {}
        at = list(batches) or _full_scale(name, full.get("global_batch_size"))
        return [dict(study.forecast(each, budgets=budgets).document) for each in at]

    def designs(self, name: str) -> Plain:
        """See :class:`StudySource`."""
        found: Plain = self._client.document("studies", name, "designs")
        return found

    def plan(self, name: str, asked: Mapping[str, Any]) -> Plain:
        """See :class:`StudySource`; the server stores the plan."""
        return dict(self._client.study(name).plan(**asked).document)

    def plans(self, name: str) -> list[Plain]:
        """See :class:`StudySource`."""
        found: list[Plain] = self._client.document("studies", name, "plans")["plans"]
        return found

    def calibration(self) -> list[Plain]:
        """See :class:`StudySource`."""
        found: list[Plain] = self._client.document("calibration")["plans"]
        return found

    def submit(self, spec: str, limits: Mapping[str, Any]) -> Plain:
        """See :class:`StudySource`."""
        return dict(self._client.submit(api.parse_study(spec), **limits).status().document)


def _full_scale(name: str, batch: int | None) -> list[int]:
    if batch is None:
        raise RequestError(f"study {name!r} has no full_scale batch size; give global_batch_sizes")
    return [batch]


def _machines() -> list[str]:
    from hpo.planning.machines import machine_names

    return [*machine_names()]


def _known(what: str, name: str | None, names: Sequence[str]) -> None:
    if name is not None and name not in names:
        raise PlanError(
            f"{what} must be one of {', '.join(names)}, but got {name!r}{did_you_mean(name, names)}"
        )
