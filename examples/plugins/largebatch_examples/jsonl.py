"""Read runs from a JSON Lines file: lists of numbers are curves by epoch, numbers and strings are single values."""

import json
from pathlib import Path

from hpo.errors import EvidenceError
from hpo.past_runs.past_run import PastRun, Reading


def read_jsonl(path: Path, name: str | None = None) -> list[PastRun]:
    """Read one run per line; ``name`` is the key whose value names the run."""
    if not path.is_file():
        raise EvidenceError(f"there is no file {path}")
    runs = []
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            said = dict(json.loads(text))
        except ValueError as error:
            raise EvidenceError(f"{path}, line {line} must be a JSON object: {error}") from error
        curves = {key: said.pop(key) for key in [*said] if isinstance(said[key], list)}
        runs.append(
            PastRun(
                label=f"jsonl {path.name} {said.pop(name, line) if name else line}",
                values=said,
                curves={
                    key: [Reading(epoch, value) for epoch, value in enumerate(values, 1)]
                    for key, values in curves.items()
                },
            )
        )
    return runs
