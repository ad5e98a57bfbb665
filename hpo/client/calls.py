"""The calls that all clients share: how each call builds its requests and reads the responses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpo.ask_and_tell.messages import Asked, ReportVerdict
from hpo.client.protocol import (
    ClientPause,
    ClientRequest,
    ServerResponse,
    Steps,
    get_request,
    join_url_path,
)
from hpo.client.records import (
    PLAN_FILES,
    RemoteDesign,
    RemoteEvent,
    RemoteForecast,
    RemotePlan,
    RemoteTrial,
    StudyStatus,
)
from hpo.client.retries import RetryPolicy, ask
from hpo.errors import StudyFailedError, WaitTimeoutError
from hpo.study.spec import StudySpec, load_study, parse_study
from trainers.job import TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome

PAGE = 500
MOST_REASON = 10_000
CURVES_AT_A_TIME = 50
OnEvent = Callable[[RemoteEvent], None]


@dataclass(frozen=True)
class WaitPolicy:
    """How a client waits for a study: it polls every ``poll_seconds``, and tolerates outages of ``outage_seconds``."""

    poll_seconds: float = 2.0
    outage_seconds: float = 600.0


def read_spec(spec: StudySpec | str | Path) -> StudySpec:
    """Return a spec unchanged, or read it from a file or YAML text; raise SpecError before anything is sent."""
    if isinstance(spec, StudySpec):
        return spec
    if isinstance(spec, str) and "\n" in spec:
        return parse_study(spec)
    return load_study(spec)


def submit(
    retries: RetryPolicy,
    spec: StudySpec | str | Path,
    *,
    priority: int = 0,
    max_samples: int | None = None,
    max_accelerator_hours: float | None = None,
    idempotency_key: str | None = None,
    for_agents: bool = False,
) -> Steps[StudyStatus]:
    """Queue a study; retries are safe, because requests with the same key count as one submission.

    By default the key is derived from the submission, so that a script that is run again finds its study instead of
    causing a conflict.
    """
    text = read_spec(spec).text
    body: dict[str, Any] = {"spec": text, "priority": priority}
    limits = {"max_samples": max_samples, "max_accelerator_hours": max_accelerator_hours}
    body |= {name: value for name, value in limits.items() if value is not None}
    body |= {"for_agents": True} if for_agents else {}
    key = idempotency_key or hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    answer = yield from ask(
        ClientRequest(
            "POST",
            join_url_path("studies"),
            body=body,
            headers={"Idempotency-Key": key},
            repeatable=True,
        ),
        retries,
    )
    return StudyStatus.of(answer.document)


def status(retries: RetryPolicy, name: str) -> Steps[StudyStatus]:
    """Return the state of a study."""
    return StudyStatus.of((yield from ask(get_request("studies", name), retries)).document)


def studies(retries: RetryPolicy, **filters: str | None) -> Steps[list[StudyStatus]]:
    """Return all studies that the token may read and that match the filters."""
    return [
        StudyStatus.of(each)
        for each in (yield from _pages(retries, ("studies",), "studies", filters))
    ]


def cancel(retries: RetryPolicy, name: str) -> Steps[StudyStatus]:
    """Cancel a study; the call is idempotent."""
    answer = yield from ask(
        ClientRequest("POST", join_url_path("studies", name, "cancel"), repeatable=True), retries
    )
    return StudyStatus.of(answer.document)


def resume(
    retries: RetryPolicy,
    name: str,
    spec: StudySpec | str | Path | None = None,
    *,
    retry_failed: bool = False,
) -> Steps[StudyStatus]:
    """Queue an ended study again; a finished study needs a larger budget."""
    body: dict[str, Any] = {} if spec is None else {"spec": read_spec(spec).text}
    body |= {"retry_failed": True} if retry_failed else {}
    answer = yield from ask(
        ClientRequest("POST", join_url_path("studies", name, "resume"), body=body), retries
    )
    return StudyStatus.of(answer.document)


def rename(retries: RetryPolicy, name: str, new: str) -> Steps[StudyStatus]:
    """Rename a study that is not running."""
    request = ClientRequest("POST", join_url_path("studies", name, "rename"), body={"name": new})
    return StudyStatus.of((yield from ask(request, retries)).document)


def delete(retries: RetryPolicy, name: str) -> Steps[None]:
    """Delete a study that is not running."""
    yield from ask(ClientRequest("DELETE", join_url_path("studies", name)), retries)


def wait(
    retries: RetryPolicy,
    name: str,
    *,
    timeout: float | None,
    policy: WaitPolicy,
    on_event: OnEvent | None,
    check: bool,
) -> Steps[StudyStatus]:
    """Wait until the study has ended; see ``RemoteStudy.wait``."""
    until = None if timeout is None else time.monotonic() + timeout
    last_seen = 0
    while True:
        now = yield from status(_within(retries, policy, until), name)
        if on_event is not None:
            events = yield from logs(retries, name, after=last_seen)
            for event in events:
                on_event(event)
                last_seen = event.id or last_seen
        if now.ended:
            if check and now.state != "finished":
                raise StudyFailedError(
                    f"study {name!r} is {now.state}"
                    + (f": {now.message}" if now.message else "")
                    + f"; `hpo logs {name}` shows more",
                    now.state,
                )
            return now
        left = (
            policy.poll_seconds
            if until is None
            else min(policy.poll_seconds, until - time.monotonic())
        )
        if left <= 0:
            raise WaitTimeoutError(
                f"study {name!r} is still {now.state} after {timeout:g} s; wait longer, or "
                f"cancel it"
            )
        yield ClientPause(left)


def logs(retries: RetryPolicy, name: str, *, after: int = 0) -> Steps[list[RemoteEvent]]:
    """Return a study's log messages with numbers above ``after``, oldest first."""
    return [
        RemoteEvent.of(each)
        for each in (
            yield from _pages(
                retries, ("studies", name, "logs"), "events", {"after": after or None}
            )
        )
    ]


def trials(
    retries: RetryPolicy, name: str, *, states: Sequence[str] | None, global_batch_size: int | None
) -> Steps[list[RemoteTrial]]:
    """Return the trials of a study, ordered by number."""
    filters = {"state": list(states) if states else None, "global_batch_size": global_batch_size}
    return [
        RemoteTrial.of(each)
        for each in (yield from _pages(retries, ("studies", name, "trials"), "trials", filters))
    ]


def convergence(
    retries: RetryPolicy,
    name: str,
    *,
    numbers: Sequence[int] | None,
    columns: Sequence[str] | None,
    max_points: int | None,
) -> Steps[dict[int, dict[str, list[float | None]]]]:
    """Return the curves of some or all trials by trial number, each as a dict of columns."""
    if numbers is None:
        numbers = [
            trial.number
            for trial in (yield from trials(retries, name, states=None, global_batch_size=None))
        ]
    found: dict[int, dict[str, list[float | None]]] = {}
    for first in range(0, len(numbers), CURVES_AT_A_TIME):
        request = get_request(
            "studies",
            name,
            "convergence",
            trial=list(numbers[first : first + CURVES_AT_A_TIME]),
            column=list(columns) if columns else None,
            max_points=max_points,
        )
        for curve in (yield from ask(request, retries)).document["curves"]:
            found[curve["trial"]] = curve["columns"]
    return found


def forecast(
    retries: RetryPolicy, name: str, global_batch_size: int, *, budgets: Sequence[float]
) -> Steps[RemoteForecast]:
    """Return the forecast at one batch size."""
    request = get_request(
        "studies", name, "forecast", at=global_batch_size, budget_epochs=list(budgets) or None
    )
    answer = yield from ask(request, retries)
    return RemoteForecast.of(answer.document["forecasts"][0])


def designs(retries: RetryPolicy, name: str) -> Steps[list[RemoteDesign]]:
    """Return a study's designs, cheapest first."""
    found = (yield from document(retries, "studies", name, "designs"))["designs"]
    return [RemoteDesign.of(each) for each in found]


def plan(retries: RetryPolicy, name: str, options: Mapping[str, Any]) -> Steps[RemotePlan]:
    """Make a plan, and fetch its files."""
    body = {
        key: dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
        for key, value in options.items()
        if value is not None
    }
    answer = yield from ask(
        ClientRequest("POST", join_url_path("studies", name, "plans"), body=body), retries
    )
    return (yield from _with_files(retries, answer.document))


def plans(retries: RetryPolicy, name: str) -> Steps[list[RemotePlan]]:
    """Return the plans of a study with their files, oldest first."""
    found = []
    for document in (yield from ask(get_request("studies", name, "plans"), retries)).document[
        "plans"
    ]:
        found.append((yield from _with_files(retries, document)))
    return found


def ask_trial(
    retries: RetryPolicy, name: str, *, key: str, holder: str, lease_seconds: float
) -> Steps[Asked]:
    """Ask for a trial; retries are safe, because requests with the same key count as one request."""
    body = {"key": key, "holder": holder, "lease_seconds": lease_seconds}
    request = ClientRequest(
        "POST", join_url_path("studies", name, "trials"), body=body, repeatable=True
    )
    plain = (yield from ask(request, retries)).document
    return Asked(
        number=None if plain["trial"] is None else plain["trial"]["number"],
        job=None if plain["job"] is None else TrainingJob.from_dict(plain["job"]),
        ended=plain["ended"],
        wait_seconds=plain["wait_seconds"],
        message=plain["message"],
    )


def report_trial(
    retries: RetryPolicy,
    name: str,
    number: int,
    *,
    key: str,
    points: Sequence[ConvergencePoint],
    lease_seconds: float,
) -> Steps[ReportVerdict]:
    """Report evaluations, or send a heartbeat."""
    body = {
        "key": key,
        "points": [_finite(dataclasses.asdict(point)) for point in points],
        "lease_seconds": lease_seconds,
    }
    plain = (yield from ask(_about_trial(name, number, "points", body), retries)).document
    return ReportVerdict(plain["state"], plain["reason"])


def end_trial(
    retries: RetryPolicy,
    name: str,
    number: int,
    *,
    key: str,
    points: Sequence[ConvergencePoint],
    outcome: TrainingOutcome | None,
    state: str | None,
    reason: str,
) -> Steps[str]:
    """End a trial; return its state on the server."""
    body = {
        "key": key,
        "points": [_finite(dataclasses.asdict(point)) for point in points],
        "outcome": None if outcome is None else _finite(outcome.to_dict()),
        "state": state,
        "reason": reason[:MOST_REASON],
    }
    plain = (yield from ask(_about_trial(name, number, "end", body), retries)).document
    return str(plain["state"])


def release_trial(retries: RetryPolicy, name: str, number: int, *, key: str) -> Steps[None]:
    """Give a trial back to the study."""
    yield from ask(_about_trial(name, number, "release", {"key": key}), retries)


def _about_trial(name: str, number: int, call: str, body: dict[str, Any]) -> ClientRequest:
    path = join_url_path("studies", name, "trials", str(number), call)
    return ClientRequest("POST", path, body=body, repeatable=True)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace non-finite values with None, as JSON has no NaN or infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def document(retries: RetryPolicy, *path: str) -> Steps[Any]:
    """Return the JSON at a path below the API's root."""
    return (yield from ask(get_request(*path), retries)).document


def _with_files(retries: RetryPolicy, document: Any) -> Steps[RemotePlan]:
    files = {}
    for name in PLAN_FILES:
        answer = yield from ask(get_request("plans", document["plan"]["id"], name), retries)
        files[_file_name(answer, name)] = answer.content.decode()
    return RemotePlan.of(document, files)


def _file_name(answer: ServerResponse, name: str) -> str:
    """Return the file name in ``Content-Disposition: attachment; filename="launch.sh"`` (RFC 6266)."""
    _, _, given = answer.headers.get("content-disposition", "").partition("filename=")
    return given.split(";")[0].strip().strip('"') or name


def _pages(
    retries: RetryPolicy, path: tuple[str, ...], key: str, filters: Mapping[str, Any]
) -> Steps[list[Any]]:
    rows: list[Any] = []
    after = filters.get("after")
    while True:
        request = get_request(*path, **{**filters, "after": after, "limit": PAGE})
        page = (yield from ask(request, retries)).document
        rows += page[key]
        after = page["next"]
        if after is None:
            return rows


def _within(retries: RetryPolicy, policy: WaitPolicy, until: float | None) -> RetryPolicy:
    """Return a policy with enough attempts for an outage or the remaining time, whichever is shorter."""
    return retrying_for(
        retries,
        policy.outage_seconds
        if until is None
        else min(policy.outage_seconds, until - time.monotonic()),
    )


def retrying_for(retries: RetryPolicy, seconds: float) -> RetryPolicy:
    """Return a policy with enough attempts for an outage of ``seconds``."""
    return replace(
        retries,
        attempts=max(1, int(seconds / (0.75 * retries.most_seconds)) + 4) if seconds > 0 else 1,
    )
