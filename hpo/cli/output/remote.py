"""Prints a server's studies and their events in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hpo.cli.output.style import new_console, new_table
from hpo.runs.formatting import format_target
from trainers.json_text import json_text

if TYPE_CHECKING:
    from hpo.client.records import RemoteEvent, StudyStatus

_UNFINISHED = ("queued", "running")


def show_studies(studies: Sequence[StudyStatus]) -> None:
    """Print a table of studies."""
    console = new_console()
    if not studies:
        console.print("no studies; `hpo submit STUDY.yaml` queues one")
        return
    table = new_table(
        "studies",
        "study",
        "state",
        "owner",
        "priority",
        "trials",
        "reached",
        "best",
        "worker",
        "changed (UTC)",
        "message",
    )
    for each in studies:
        table.add_row(
            Text(each.name),
            _state(each),
            Text(each.owner),
            str(each.priority),
            _done(each.trials),
            str(each.trials.get("reached", 0)),
            _best(each),
            Text(each.worker or ""),
            f"{each.updated_at:%Y-%m-%d %H:%M}",
            Text(_short(each.message)),
        )
    console.print(table)


def show_status(study: StudyStatus) -> None:
    """Print one study: its state and its rungs."""
    console = new_console()
    goal = study.document["target"]
    headline = f"{study.name} is {_state(study)}" + (f" on {study.worker}" if study.worker else "")
    goal_text = format_target(goal["metric"], goal["threshold"], goal["higher_is_better"])
    console.print(
        f"{headline}: {study.workload}, {goal_text}; "
        f"owner {study.owner or 'nobody'}, priority {study.priority}",
        markup=False,
    )
    if study.message:
        console.print(study.message, markup=False)
    used = study.document.get("usage")
    if used and used["samples"]:
        console.print(
            f"used {used['samples']:,} samples{_of(study.document['max_samples'], ',')}, "
            f"{used['accelerator_seconds'] / 3600:.3g} accelerator hours"
            f"{_of(study.document['max_accelerator_hours'], 'g')}",
            markup=False,
        )
    rungs = [rung for rung in study.document.get("rungs") or () if rung["trials"]]
    if rungs:
        states = list(dict.fromkeys(state for rung in rungs for state in rung["trials"]))
        sizes = list(study.document.get("sizes") or ())
        table = new_table("rungs", "batch size", *sizes, "trials", *states)
        for rung in rungs:
            for each in rung.get("by_sizes") or [rung]:
                table.add_row(
                    str(rung["global_batch_size"]),
                    *(str(each.get("sizes", {}).get(name, "")) for name in sizes),
                    str(sum(each["trials"].values())),
                    *(str(each["trials"].get(state, 0)) for state in states),
                )
        console.print(table)
    if study.best_metric is not None:
        console.print(f"best {goal['metric']}: {study.best_metric:.4g}", markup=False)
    elif study.best_epochs_to_target is not None:
        console.print(f"fewest epochs to target: {study.best_epochs_to_target:.4g}", markup=False)


def _best(study: StudyStatus) -> str:
    """Return the best result of a study's trials: ``8.5 epochs``, ``loss 2.31``; "" before there is one."""
    if study.best_metric is not None:
        return f"{study.document['target']['metric']} {study.best_metric:.4g}"
    best = study.best_epochs_to_target
    return "" if best is None else f"{best:.4g} epochs"


def event_line(event: RemoteEvent) -> str:
    """Return an event as text: one line, or several if its message has several lines."""
    at = f"{event.at:%Y-%m-%d %H:%M:%S}  " if event.at else ""
    return f"{at}{event.kind:<12} {event.message}".rstrip()


def event_json(event: RemoteEvent) -> str:
    """Return an event as a line of JSON."""
    return json_text(
        {
            "id": event.id,
            "study": event.study,
            "at": event.at.isoformat() if event.at else None,
            "kind": event.kind,
            "message": event.message,
            "data": event.data,
        }
    )


def tell_event(event: RemoteEvent) -> None:
    """Print an event on stderr, where progress goes."""
    sys.stderr.write(event_line(event) + "\n")
    sys.stderr.flush()


def _state(study: StudyStatus) -> str:
    return "cancelling" if study.cancel_requested and not study.ended else study.state


def _done(trials: Mapping[str, int]) -> str:
    total = sum(trials.values())
    done = total - sum(trials.get(state, 0) for state in _UNFINISHED)
    return str(total) if done == total else f"{done}/{total}"


def _of(limit: float | None, form: str) -> str:
    return "" if limit is None else f" of {limit:{form}}"


def _short(message: str, most: int = 60) -> str:
    line = message.split("\n", 1)[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"
