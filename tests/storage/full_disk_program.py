"""A process that fills its disk with points, makes room, and continues; prints what happened as JSON.

Usage: full_disk_program.py FOLDER [spare | none]; with the second, the study is deleted on the full disk.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from store_samples import make_points, make_study, make_trials

from storage import database
from storage.errors import StoreUnavailable
from storage.records import TrialResult, TrialState
from storage.store import Store

POINTS = 500


def main(folder: Path) -> None:
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(9_000_000))
    with Store.open(str(folder / "hpo.db")) as store:
        study = make_study(store)
        (trial, other) = make_trials(store, study, 16, 16)
        written, message = 0, ""
        while not message:
            try:
                store.record({trial.id: make_points(POINTS, first_step=POINTS * written)})
                written += 1
            except StoreUnavailable as error:
                message = str(error)
        kept = store.points(trial.id) == make_points(POINTS * written)
        ballast.unlink()
        store.record({trial.id: make_points(POINTS, first_step=POINTS * written)})
        store.finish_trial(other.id, TrialResult(state=TrialState.CENSORED), make_points(3))
    with Store.open(str(folder / "hpo.db")) as store:
        after = store.points(trial.id) == make_points(POINTS * (written + 1))
        ended = str(store.trial(study.id, 1).state)
    found = {"written": written, "message": message, "kept": kept, "after": after, "ended": ended}
    print(json.dumps(found))  # noqa: T201


def delete(folder: Path, *, spare: bool) -> None:
    """Fill the disk, and delete the study that did so."""
    database.SPARE_BYTES = 4_000_000
    with Store.open(str(folder / "hpo.db")) as store:
        if spare:
            store.keep_spare()
        study = make_study(store)
        (trial,) = make_trials(store, study, 16)
        said = ""
        for written in range(10_000):
            try:
                points = make_points(POINTS, first_step=POINTS * written)
                store.record({trial.id: points})
            except StoreUnavailable:
                break
        with contextlib.suppress(OSError), (folder / "rest").open("wb") as rest:
            while True:
                rest.write(bytes(4096))
                rest.flush()
        try:
            store.delete_study(study.id)
        except StoreUnavailable as error:
            said = str(error)
        else:
            (trial,) = make_trials(store, make_study(store), 16)
            store.record({trial.id: make_points(POINTS)})
        print(json.dumps({"said": said, "studies": len(store.studies())}))  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 2:
        delete(Path(sys.argv[1]), spare=sys.argv[2] == "spare")
    else:
        main(Path(sys.argv[1]))
