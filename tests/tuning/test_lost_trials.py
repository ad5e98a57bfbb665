"""What a study says and does about failed or diverged trials, and how a study that they ended is continued."""

import sys
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, text

import hpo
from hpo.errors import TuningError
from hpo.runs.losses import is_lost_study, losses_in_words, trial_ends_in_words
from hpo.runs.progress import Progress
from hpo.runs.study_changes import starts_otherwise
from storage.records import StudyState, TrialState
from storage.store import Store

WORKLOAD = """\
from dataclasses import replace

from trainers.errors import DataError
from trainers.workloads.noisy_quadratic.task import NoisyQuadratic

RATES = {"reached": 1.0, "diverged": 1e6, "censored": 1e-9}


class Bowl(NoisyQuadratic):
    own_settings = ("ends",)

    def begin(self, job, communicator):
        ends = job.settings.own["ends"].split()
        end = ends[job.seed % len(ends)]
        if end == "failed":
            raise DataError(f"there is no file /data/{job.seed}.h5")
        rate = RATES[end]
        return super().begin(replace(job, settings=job.settings.replace(learning_rate=rate)), communicator)
"""
STUDY = """\
name: bowls
workload: lost_bowl:Bowl
data: {{modes: 20, noise_scale: 0.1, train_samples: 512}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16]
{more}
search:
  learning_rate: {{log_uniform: [0.01, 2.0], role: scaled}}
  momentum: 0
  normalization_batch_size: 1
  ends: {ends}
budget: {{trials: {trials}, epochs_per_trial: 20, race: 0}}
"""
FULL = "full_scale: {global_batch_size: 64}"


class Told(Progress):
    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


@pytest.fixture
def run(tmp_path):
    """Run a study whose trials end one after the other as they are told to; what it said."""
    (tmp_path / "lost_bowl.py").write_text(WORKLOAD)

    def run_study(ends, *, more=FULL, **options):
        words = ends.split()
        (tmp_path / "study.yaml").write_text(STUDY.format(ends=ends, trials=len(words), more=more))
        told = Told()
        result = hpo.run_study(
            hpo.load_study(tmp_path / "study.yaml"),
            f"sqlite:///{tmp_path}/hpo.db",
            folder=tmp_path / ".hpo",
            progress=told,
            **options,
        )
        assert [str(trial.state) for trial in result.trials] == words
        return result, told.lines

    return run_study


@pytest.fixture
def stored(tmp_path):
    def read():
        with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
            study = store.study("bowls")
            return study, store.trials(study.id), store.events(study_id=study.id)

    return read


@pytest.mark.parametrize("more", [FULL, ""])
def test_where_failures_are_why_no_trial_reached_the_target_the_study_fails(run, stored, more):
    with pytest.raises(TuningError) as raised:
        run("failed diverged failed censored censored", more=more)
    said = str(raised.value)
    assert said.startswith(
        "no trial reached the target: 3 of 5 trials failed or diverged: 2 failed"
    )
    assert "most often: DataError: there is no file /data/0.h5" in said and "1 diverged" in said
    assert "--retry-failed" in said and "hpo delete bowls" in said
    assert raised.value.exit_code == 1
    study, trials, events = stored()
    assert study.state is StudyState.FAILED and study.message == said
    assert len(trials) == 5 and [each.kind for each in events][-1] == "failed"


def test_one_pruned_trial_does_not_hide_that_all_others_failed(run, stored, tmp_path):
    with pytest.raises(TuningError, match="all 3 trials failed"):
        run("failed failed failed")
    with create_engine(f"sqlite:///{tmp_path}/hpo.db").begin() as connection:
        connection.execute(text("UPDATE trials SET state = 'pruned', epochs = 3 WHERE number = 1"))
    with pytest.raises(TuningError, match=r"no trial reached the target: 2 of 3 trials failed"):
        run("failed failed failed")
    assert stored()[0].state is StudyState.FAILED


def test_where_most_used_up_their_epochs_the_study_ends_and_says_how_many_failed(run):
    result, _ = run("failed censored censored censored")
    assert result.complete
    assert "no trial reached the target" in result.study.message
    assert "3 of 4 trials used up their epochs" in result.study.message
    assert "1 of 4 trials failed: DataError: there is no file /data/0.h5" in result.study.message
    assert "raise budget.epochs_per_trial" in result.study.message


def test_losses_are_told_where_the_target_was_reached(run, stored):
    result, told = run("reached failed reached failed diverged", more="")
    assert result.complete
    said = [line for line in told if "failed or diverged" in line]
    assert len(said) == 1
    assert (
        "3 of 5 trials failed or diverged: 2 failed, most often: DataError: there is no file"
        in said[0]
    )
    assert said[0] in [event.message for event in stored()[2]]


@pytest.mark.parametrize(
    ("states", "lost"),
    [
        ("failed", True),
        ("failed queued queued", False),  # a budget was spent
        ("failed diverged censored censored", True),
        ("failed censored censored", False),
        ("failed censored pruned", True),
        ("pruned pruned", False),
        ("failed failed reached", False),
        ("", False),
    ],
)
def test_failures_are_why_where_they_ended_at_least_half(states, lost):
    trials = [
        SimpleNamespace(
            state=TrialState(state), epochs_to_target=2.0 if state == "reached" else None
        )
        for state in states.split()
    ]
    assert is_lost_study(trials) is lost


def test_reasons_that_differ_in_numbers_alone_are_one():
    reasons = [
        "the loss was 3.1e+82 at 8",
        "the program failed: exit code 2; the end of /x/1/log.txt:\nstart\nno file a1.h5",
        "the program failed: exit code 2; the end of /x/2/log.txt:\nstart\nno file a2.h5",
    ]
    trials = [SimpleNamespace(state=TrialState.FAILED, reason=reason) for reason in reasons]
    assert losses_in_words(trials) == (
        "all 3 trials failed, most often: the program failed: exit code 2: no file a1.h5"
    )


def test_a_study_that_its_failures_stopped_goes_on_at_the_users_word(run, stored, tmp_path):
    ends = "failed failed failed failed reached reached"
    with pytest.raises(TuningError, match=r"the first 4 trials all failed") as first:
        run(ends)
    assert "/data/0.h5" in str(first.value)
    assert "--retry-failed" in str(first.value) and "hpo delete bowls" in str(first.value)
    with pytest.raises(TuningError, match=r"the first 4 trials all failed"):
        run(ends)  # as before: nothing says that anything was mended
    settings = [(trial.settings_key, trial.seed) for trial in stored()[1]]
    sys.modules.pop("lost_bowl")
    mended = WORKLOAD.replace("RATES[end]", 'RATES["reached"]').replace('"failed"', '"mended"')
    (tmp_path / "lost_bowl.py").write_text(mended)
    result = hpo.run_study(
        hpo.load_study(tmp_path / "study.yaml"),
        f"sqlite:///{tmp_path}/hpo.db",
        folder=tmp_path / ".hpo",
        retry_failed=True,
    )
    assert result.complete and len(result.trials) == 6
    assert {trial.state for trial in result.trials} <= {TrialState.REACHED, TrialState.PRUNED}
    # the very trials that failed, not others beside them
    assert [(trial.settings_key, trial.seed) for trial in result.trials][:4] == settings
    retried = [event.message for event in stored()[2] if event.kind == "retried"]
    assert retried == ["4 trials that failed wait to be trained again"]


def test_what_a_deleted_study_left_behind_is_not_the_next_ones(run, stored, tmp_path):
    """SQLite gives the number of the last study, by which its files are found, to the next one."""
    ends = "reached failed reached"
    run(ends)
    before = stored()[0]
    hpo.delete_study("bowls", f"sqlite:///{tmp_path}/hpo.db")  # as at a server: without the folder
    trials = tmp_path / ".hpo" / "trials" / str(before.id)
    (trials / "0").mkdir(parents=True)
    (trials / "0" / "report.jsonl").write_text('{"epochs": 1, "loss": 0.01}\n')
    checkpoints = tmp_path / ".hpo" / "checkpoints" / str(before.id)
    checkpoints.mkdir(parents=True, exist_ok=True)
    (checkpoints / "0.pt").write_text("a checkpoint of another study")
    result, _ = run(ends)
    assert result.study.id == before.id
    assert not (trials / "0" / "report.jsonl").exists()


def test_only_what_starts_the_program_makes_it_another():
    program = {"command": ["python", "a.py"], "train_samples": 8}
    before = {"name": "one", "program": program, "seeds": 1}
    assert not starts_otherwise(before, {**before, "seeds": 2})
    assert not starts_otherwise(before, {**before, "program": {**program, "cost": {"x": 1.0}}})
    assert starts_otherwise(
        before, {**before, "program": {**program, "command": ["python", "b.py"]}}
    )
    assert starts_otherwise(before, {**before, "program": {**program, "environment": {"A": "1"}}})
    assert not starts_otherwise({"name": "one"}, {"name": "one", "program": None})


def test_a_look_of_the_search_was_not_stopped_because_others_were_better():
    trials = [SimpleNamespace(state=TrialState(state)) for state in ("pruned", "censored")]
    said = trial_ends_in_words(trials)
    assert said == "1 of 2 trials used up their epochs; 1 of 2 trials were stopped early"
