"""A long fit in a process of its own, so that the server goes on answering: a fit holds the interpreter for seconds.

``python -m hpo.service.fit_process`` reads a pickled study from its standard input, sent by the server that started
it, and writes the pickled laws.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from hpo.errors import EvidenceError
from hpo.runs.forecasts import fit_posterior
from hpo.runs.results import StudyResult
from hpo.service.logs import LOG

if TYPE_CHECKING:
    from hpo.extrapolation.inference.posterior import Posterior

FROM_TRIALS = 1000
"""Fits of fewer trials take about a second, which a process of its own needs to start."""
NICE = 5


def fit(result: StudyResult, left_out: Collection[int]) -> Posterior:
    """The laws of a study, as :func:`hpo.runs.forecasts.fit_posterior` fits them; EvidenceError as there."""
    if len(result.trials) < FROM_TRIALS:
        return fit_posterior(result, left_out)
    command = [sys.executable, "-m", "hpo.service.fit_process"]
    done = subprocess.run(
        command, input=pickle.dumps((result, tuple(left_out))), capture_output=True, check=False
    )
    if done.returncode != 0:
        LOG.warning(
            "the process of a fit ended with %d; the server fits itself: %s",
            done.returncode,
            done.stderr.decode("utf-8", "replace")[-500:],
        )
        return fit_posterior(result, left_out)
    found: Posterior | EvidenceError = pickle.loads(done.stdout)
    if isinstance(found, EvidenceError):
        raise found
    return found


def main() -> None:
    """Fit what the server sent."""
    os.nice(NICE)
    result, left_out = pickle.load(sys.stdin.buffer)
    try:
        answer: Posterior | EvidenceError = fit_posterior(result, left_out)
    except EvidenceError as error:
        answer = EvidenceError(str(error))
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
