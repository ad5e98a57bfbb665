"""Pruning removes old curves and expired records, and keeps every result and all recent or running work."""

from datetime import UTC, datetime, timedelta

import pytest
from store_samples import SETTINGS, make_points, make_study, make_trials

from storage.maintenance import maintenance
from storage.records import NewStudy, NewToken, NewTrial, StudyState, TrialResult, TrialState
from storage.store import Store

POINTS = 50


@pytest.fixture
def url(new_url):
    """One finished study of two rungs and three trials each, one that was interrupted, tokens, an event."""
    url = new_url()
    with Store.open(url) as store:
        for name in ("done", "stopped"):
            study = make_study(store, name)
            for number, trial in enumerate(make_trials(store, study, 16, 16, 16, 32, 32, 32)):
                reached = number % 3 < 2
                store.finish_trial(
                    trial.id,
                    TrialResult(
                        state=TrialState.REACHED if reached else TrialState.CENSORED,
                        epochs_to_target=9.0 - number if reached else None,
                        epochs=9.0,
                    ),
                    make_points(POINTS),
                )
            store.add_event(study.id, "submitted", "submitted")
        store.set_study_state(store.study("done").id, StudyState.FINISHED)
        store.set_study_state(store.study("stopped").id, StudyState.INTERRUPTED)
        for name, ends in {
            "old": datetime(2020, 1, 1, tzinfo=UTC),
            "new": datetime(2999, 1, 1, tzinfo=UTC),
            "endless": None,
        }.items():
            store.add_token(
                NewToken(
                    name=name, owner="ann", digest=name, scopes=frozenset({"read"}), expires_at=ends
                )
            )
    return url


def points_left(url, name):
    with Store.open(url) as store:
        trials = store.trials(store.study(name).id)
        return [len(store.points(trial.id)) for trial in trials], [
            store.points(trial.id)[-1].step for trial in trials
        ]


def trials_of(url):
    with Store.open(url) as store:
        return store.trials(store.study("done").id)


def test_old_curves_go_and_their_last_points_stay(url):
    before = trials_of(url)
    pruned = maintenance.prune(url, timedelta(0), keep_best=False, dry_run=False)
    assert (pruned.trials, pruned.points, pruned.events, pruned.tokens) == (
        6,
        6 * (POINTS - 1),
        2,
        1,
    )
    assert points_left(url, "done") == ([1] * 6, [POINTS - 1] * 6)
    assert points_left(url, "stopped") == ([POINTS] * 6, [POINTS - 1] * 6)  # it may go on
    assert trials_of(url) == before
    with Store.open(url) as store:
        assert [token.name for token in store.tokens()] == ["new", "endless"]
    again = maintenance.prune(url, timedelta(0), keep_best=False, dry_run=False)
    assert (again.trials, again.points, again.events, again.tokens) == (0, 0, 0, 0)


def test_the_best_of_each_rung_are_spared(url):
    pruned = maintenance.prune(url, timedelta(0), keep_best=True, dry_run=False)
    assert pruned.trials == 4
    assert points_left(url, "done")[0] == [
        1,
        POINTS,
        1,
        1,
        POINTS,
        1,
    ]  # fewest epochs: 9 - 1, and 9 - 4


def test_the_best_at_every_size_are_spared(new_url):
    """Also where no threshold ends a training run: there, the best metric counts, in the direction of the study."""
    url, sizes = new_url(), [{"width": 8}, {"width": 64}, {"width": 8, "training_samples": 99}]
    with Store.open(url) as store:
        for name, higher in (("up", True), ("down", False)):
            study = store.create_study(
                NewStudy(
                    name=name,
                    workload="resnet",
                    metric="score",
                    threshold=1e300 if higher else -1e300,
                    higher_is_better=higher,
                    spec=f"name: {name}",
                )
            )
            new = [
                NewTrial(global_batch_size=16, seed=seed, settings={**SETTINGS, "own": own})
                for own in sizes
                for seed in range(3)
            ]
            for trial in store.add_trials(study.id, new):
                ended = TrialResult(
                    state=TrialState.CENSORED if trial.seed else TrialState.FAILED,
                    epochs=9.0,
                    best_metric=trial.seed / 10,
                )
                store.finish_trial(trial.id, ended, make_points(POINTS))
            store.set_study_state(study.id, StudyState.FINISHED)
    pruned = maintenance.prune(url, timedelta(0), keep_best=True, dry_run=False)
    assert pruned.trials == 12
    assert points_left(url, "up")[0] == [1, 1, POINTS] * 3
    assert points_left(url, "down")[0] == [1, POINTS, 1] * 3


def test_a_dry_run_counts_the_same_and_removes_nothing(url):
    dry = maintenance.prune(url, timedelta(0), keep_best=False, dry_run=True)
    assert dry.dry_run
    assert points_left(url, "done")[0] == [POINTS] * 6
    real = maintenance.prune(url, timedelta(0), keep_best=False, dry_run=False)
    assert {**vars(dry), "dry_run": False} == vars(real)


def test_what_is_young_stays(url):
    pruned = maintenance.prune(url, timedelta(days=1), keep_best=False, dry_run=False)
    assert (pruned.trials, pruned.points, pruned.events) == (0, 0, 0)
    assert points_left(url, "done")[0] == [POINTS] * 6


def test_checkpoints_of_ended_trials(url, tmp_path):
    with Store.open(url) as store:
        study = store.study("stopped")
        (queued,) = make_trials(store, study, 64)
    folder = tmp_path / "checkpoints" / str(study.id)
    folder.mkdir(parents=True)
    for number in (0, queued.number):
        (folder / f"{number}.pt").write_text("")
    assert (
        maintenance.prune(
            url, timedelta(days=1), keep_best=False, dry_run=False, folder=tmp_path
        ).checkpoints
        == 0
    )
    assert (
        maintenance.prune(
            url, timedelta(0), keep_best=False, dry_run=True, folder=tmp_path
        ).checkpoints
        == 1
    )
    assert (
        maintenance.prune(
            url, timedelta(0), keep_best=False, dry_run=False, folder=tmp_path
        ).checkpoints
        == 1
    )
    assert [path.name for path in folder.iterdir()] == [f"{queued.number}.pt"]
