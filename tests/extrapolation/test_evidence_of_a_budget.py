"""Tables of the best metric within a fixed budget: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.table import read_table
from hpo.extrapolation.inference.posterior import fit
from trainers.job import Question, Target

TOP1 = Question(Target.best("top1", higher_is_better=True), 30.0)
LOSS = Question(Target.best("loss", higher_is_better=False), 30.0)


def table(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_means_are_read_as_what_is_lacking_with_their_spread(tmp_path: Path) -> None:
    path = table(tmp_path, "global_batch_size,top1,runs,sd\n64,0.8,5,0.01\n128,0.5,5,0.02\n")
    rows = read_table(path, question=TOP1)
    assert rows.question == TOP1
    assert [row.epochs_to_target for row in rows.aggregates] == pytest.approx([0.25, 1.0])
    # the odds (1 - m) / m fall by 1 / m^2
    assert [row.sd for row in rows.aggregates] == pytest.approx([0.01 / 0.64, 0.02 / 0.25])


def test_a_loss_is_what_is_lacking(tmp_path: Path) -> None:
    path = table(tmp_path, "global_batch_size,loss,sd\n64,2.5,0.1\n128,2.6,0.1\n")
    assert [row.epochs_to_target for row in read_table(path, question=LOSS).aggregates] == [
        2.5,
        2.6,
    ]


def test_runs_that_did_not_come_to_the_end_say_that_they_were_no_better(tmp_path: Path) -> None:
    text = "global_batch_size,loss,state\n64,2.5,\n64,2.7,\n64,,pruned\n64,,diverged\n"
    found = read_table(table(tmp_path, text), question=LOSS).observations
    assert [(each.state, each.epochs) for each in found[2:]] == [("pruned", 2.5), ("diverged", 2.5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("global_batch_size,loss\n64,2.5\n", "line 1: column 'top1' is missing"),
        ("global_batch_size,top1\n64,\n", "line 2, column 'top1' is empty; fill it, drop the row"),
        ("global_batch_size,top1\n64,76.1\n", "must be a share of at most 1, but got '76.1'"),
        ("global_batch_size,top1,epochs_to_target\n64,0.5,3\n", "but has both; drop one"),
        (
            "global_batch_size,top1,state\n64,0.5,\n64,0.7,censored\n",
            "line 3, column 'state' must be reached for a run that trained to the end of the budget",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        read_table(table(tmp_path, text), question=TOP1)
    assert message in str(caught.value)


@pytest.mark.parametrize("state", ["diverged", "pruned", "censored"])
def test_where_no_run_came_to_the_end_nothing_is_told_of_the_metric(
    tmp_path: Path, state: str
) -> None:
    rows = "".join(f"{batch},,{state}\n" for batch in (64, 128, 256))
    evidence = read_table(table(tmp_path, f"global_batch_size,top1,state\n{rows}"), question=TOP1)
    with pytest.raises(EvidenceError, match="none of 3 did, so nothing is known of top1"):
        fit(evidence, rng=np.random.default_rng(0))


@pytest.mark.slow
def test_the_command_tells_the_metric(tmp_path: Path) -> None:
    rows = "".join(f"{64 * 2**n},{0.9 - 0.01 * n},5\n" for n in range(4))
    path = table(tmp_path, f"global_batch_size,top1,runs\n{rows}")
    asked = ["extrapolate", str(path), "--at", "1024"]
    done = CliRunner().invoke(main, [*asked, "--best", "top1", "--within", "30", "--json"])
    assert done.exit_code == 0
    [found] = json.loads(done.stdout)
    assert found["epochs_to_target"] is None
    assert found["best"]["low"] < found["best"]["median"] < found["best"]["high"] < 1
    assert abs(found["best"]["median"] - 0.86) < 0.03
    alone = CliRunner().invoke(main, [*asked, "--best", "top1"])
    assert alone.exit_code == 2 and "must be given together" in alone.stderr
