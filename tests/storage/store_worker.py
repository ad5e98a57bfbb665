"""A process that sweeps: adds, records and finishes trials, and prints each number once it is stored.

Usage: store_worker.py URL STUDY COUNT POINTS
"""

from __future__ import annotations

import os
import sys

from store_samples import SETTINGS, make_points

from storage.records import NewTrial, TrialResult, TrialState
from storage.store import Store


def main(url: str, study: str, count: int, points: int) -> None:
    with Store.open(url) as store:
        study_id = store.study(study).id
        for number in range(count):
            seed = os.getpid() * 1_000_000 + number  # several processes sweep one study
            (trial,) = store.add_trials(
                study_id, [NewTrial(global_batch_size=32, seed=seed, settings=SETTINGS)]
            )
            store.start_trials([trial.id])
            store.record({trial.id: make_points(points)})
            result = TrialResult(state=TrialState.REACHED, epochs_to_target=trial.number + 1.0)
            store.finish_trial(trial.id, result, make_points(1, first_step=points))
            print(trial.number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
