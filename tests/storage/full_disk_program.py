"""A process that fills the disk it is on with points, makes room, and goes on; prints what happened as JSON.

Usage: full_disk_program.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from store_samples import make_points, make_study, make_trials

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
