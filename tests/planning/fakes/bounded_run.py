"""A fake of `hpo run --stop-after` that does not depend on the speed of the machine: a slot ends after four trials."""

import os
import sys
from pathlib import Path

import hpo
from hpo.planning.launchers.sweeps import GOES_ON
from hpo.runs.progress import Progress

TRIALS_OF_A_SLOT = 4


class Slot(Progress):
    def __init__(self):
        self.before = None

    def sweep(self, spec, trials, running):
        ended = sum(trial.state.finished for trial in trials)
        self.before = ended if self.before is None else self.before
        if ended - self.before >= TRIALS_OF_A_SLOT:
            raise KeyboardInterrupt


def main(words):
    assert words[0] == "run" and float(words[words.index("--stop-after") + 1]) > 0
    storage, folder = os.environ["HPO_STORAGE"], words[words.index("--folder") + 1]
    result = hpo.run_study(hpo.load_study(Path(words[1])), storage, folder=folder, progress=Slot())
    sys.exit(0 if result.complete else GOES_ON)


if __name__ == "__main__":
    main(sys.argv[1:])
