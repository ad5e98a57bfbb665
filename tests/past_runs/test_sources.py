"""Each source, written by its own library or service, gives the runs that were put into it."""

import math

import optuna
import pytest
from past_run_samples import mlflow_database, mlflow_folder

from hpo.errors import EvidenceError
from hpo.past_runs.csv_tables import read_csv, read_wandb
from hpo.past_runs.mlflow_store import read_mlflow
from hpo.past_runs.optuna_database import read_optuna
from hpo.past_runs.tensorboard_folder import read_tensorboard

# MLflow: stores that write_mlflow_stores.py wrote with MLflow 3.17


@pytest.mark.parametrize("store", [mlflow_folder, mlflow_database])
@pytest.mark.parametrize("as_uri", [False, True])
def test_both_stores_of_mlflow_hold_the_same_runs(store, as_uri, tmp_path):
    source = str(store(tmp_path))
    if as_uri:
        source = f"{'sqlite:///' if source.endswith('.db') else 'file://'}{source}"
    runs = sorted(read_mlflow(source), key=lambda run: run.values["run_name"])
    assert [run.values["run_name"] for run in runs] == [f"run {number}" for number in range(6)]
    assert [float(run.values["optim/lr"]) for run in runs] == [0.1, 0.2, 0.4, 0.01, 0.3, 9.0]
    assert [run.status for run in runs] == ["finished"] * 4 + ["failed", "finished"]
    curve = runs[0].curves["val_top1"]
    assert [(each.step, each.value, each.seconds) for each in curve] == [
        (1, 0.5, 60.0),
        (2, 0.9, 120.0),
        (3, 0.97, 180.0),
    ]
    assert runs[0].seconds == 180.0 and runs[0].values["batch"] == "32"
    assert math.isnan(runs[5].curves["val_top1"][1].value)
    assert len({run.label for run in runs}) == 6
    assert all(run.has_id for run in runs)


def test_the_later_of_two_values_of_a_step_counts_not_the_larger(tmp_path):
    metrics = mlflow_folder(tmp_path).rglob("metrics")
    path = next(metrics) / "resumed"
    path.write_text("2000 0.5 1\n3000 0.91 2\n4000 0.6 2\n")
    (run,) = (run for run in read_mlflow(str(tmp_path / "mlruns")) if "resumed" in run.curves)
    assert [(each.step, each.value) for each in run.curves["resumed"]][-1] == (2, 0.6)
    assert run.values["resumed"] == 0.6


def test_an_experiment_of_mlflow_is_chosen_by_name_or_refused(tmp_path):
    source = str(mlflow_database(tmp_path))
    assert len(read_mlflow(source, "images")) == 6
    with pytest.raises(EvidenceError, match="it has images"):
        read_mlflow(source, "texts")


def test_what_is_no_store_of_mlflow_is_refused(tmp_path):
    (tmp_path / "mlflow.db").write_text(
        "nothing of the kind, but long enough to be read as a header"
    )
    with pytest.raises(EvidenceError, match="not an MLflow SQLite database"):
        read_mlflow(str(tmp_path / "mlflow.db"))
    with pytest.raises(EvidenceError, match="no experiment folder"):
        read_mlflow(str(tmp_path))
    with pytest.raises(EvidenceError, match="there is no MLflow store"):
        read_mlflow(str(tmp_path / "mlruns"))


# TensorBoard


def test_event_files_give_scalars_and_hyperparameters(tmp_path):
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    for number, rate in enumerate((0.1, 0.2)):
        with writers.SummaryWriter(str(tmp_path / "logs" / f"run{number}")) as writer:
            for step in range(3):
                writer.add_scalar("val/top1", 0.5 + 0.1 * step, step * 10, walltime=100.0 + step)
            writer.add_scalar("loss", math.nan, 5, walltime=103.0)
            writer.add_text("notes", "not a scalar", 0)
            writer.add_hparams(
                {"lr": rate, "batch": 32, "opt": "sgd", "nesterov": True},
                {"final": 0.7},
                name="hparams",
            )
    runs = read_tensorboard(tmp_path / "logs")
    assert [run.label for run in runs] == ["tensorboard logs/run0", "tensorboard logs/run1"]
    run = runs[1]
    assert {name: run.values[name] for name in ("lr", "batch", "opt", "nesterov")} == {
        "lr": 0.2,
        "batch": 32.0,
        "opt": "sgd",
        "nesterov": True,
    }
    assert run.values["final"] == pytest.approx(0.7)
    curve = run.curves["val/top1"]
    assert [each.step for each in curve] == [0, 10, 20]
    assert [each.value for each in curve] == pytest.approx([0.5, 0.6, 0.7])
    assert [each.seconds for each in curve] == [0.0, 1.0, 2.0]
    assert math.isnan(run.curves["loss"][0].value)


def test_the_file_of_hyperparameters_that_lightning_writes(tmp_path):
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    with writers.SummaryWriter(str(tmp_path / "version_0")) as writer:
        writer.add_scalar("acc", 0.5, 1)
    (tmp_path / "version_0" / "hparams.yaml").write_text("lr: 0.3\nbatch_size: 16\n")
    (run,) = read_tensorboard(tmp_path)
    assert run.values["lr"] == 0.3 and run.values["batch_size"] == 16


def test_python_objects_in_the_file_of_lightning_stop_no_folder(tmp_path):
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    for version in ("version_0", "version_1"):
        with writers.SummaryWriter(str(tmp_path / version)) as writer:
            writer.add_scalar("acc", 0.5, 1)
    (tmp_path / "version_0" / "hparams.yaml").write_text(
        "lr: 0.3\nbetas: !!python/tuple\n- 0.9\n- 0.999\n"
        "act: !!python/name:torch.nn.ReLU ''\nout: !!python/object/apply:os.getcwd []\n"
    )
    first, second = read_tensorboard(tmp_path)
    assert {name: first.values[name] for name in ("lr", "betas", "act", "out")} == {
        "lr": 0.3,
        "betas": [0.9, 0.999],
        "act": None,
        "out": None,
    }
    assert second.values == {"acc": 0.5}


@pytest.mark.parametrize("from_file", [True, False])
def test_runs_below_a_folder_with_events_of_its_own_keep_their_curves(tmp_path, from_file):
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    with writers.SummaryWriter(str(tmp_path / "logs")) as writer:
        writer.add_scalar("gpu", 0.5, 1)
    folder = tmp_path / "logs" / "run"
    with writers.SummaryWriter(str(folder)) as writer:
        for step in range(1, 2 if from_file else 3):
            writer.add_scalar("acc", 0.1 * step, step)
        if not from_file:
            writer.file_writer.add_summary(writers.summary.hparams({"lr": 0.3}, {})[1])
    if from_file:
        (folder / "hparams.yaml").write_text("lr: 0.3\n")
    above, run = read_tensorboard(tmp_path / "logs")
    assert (set(above.curves), above.values) == ({"gpu"}, {"gpu": 0.5})
    assert set(run.curves) == {"acc"} and run.values["lr"] == 0.3


@pytest.mark.parametrize("tag", ["hparam/acc", "best"])
def test_hyperparameters_that_are_written_at_every_epoch_are_those_of_the_run_above(tmp_path, tag):
    """As by ``add_hparams`` with a ``run_name`` and a ``global_step``, which adds a file at each call."""
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    with writers.SummaryWriter(str(tmp_path / "run")) as writer:
        for epoch in range(1, 4):
            writer.add_scalar("acc", 0.1 * epoch, epoch)
            with writers.SummaryWriter(
                str(tmp_path / "run" / "hp"), filename_suffix=f".{epoch}"
            ) as child:
                for summary in writers.summary.hparams({"lr": 0.3}, {tag: 0.0}):
                    child.file_writer.add_summary(summary)
                child.add_scalar(tag, 0.2 * epoch, epoch)
    (found,) = read_tensorboard(tmp_path)
    assert len(found.curves["acc"]) == 3 and set(found.curves) == {"acc"}
    assert found.values["lr"] == 0.3 and found.values[tag] == pytest.approx(0.6)


def test_a_file_that_a_crash_cut_short_is_read_to_there_and_a_damaged_one_refused(tmp_path):
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        for step in range(20):
            writer.add_scalar("acc", step, step)
    (path,) = tmp_path.glob("*tfevents*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert len(read_tensorboard(tmp_path)[0].curves["acc"]) == 19
    path.write_bytes(whole[:24] + b"\x00" + whole[24:])
    with pytest.raises(EvidenceError, match="damaged"):
        read_tensorboard(tmp_path)
    path.write_text("this is a text file whose name has tfevents in it")
    with pytest.raises(EvidenceError, match="not a TensorBoard event file"):
        read_tensorboard(tmp_path)
    path.unlink()
    with pytest.raises(EvidenceError, match="no TensorBoard event files"):
        read_tensorboard(tmp_path)


# Optuna


def optuna_study(url, name="tuning"):
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        rate = trial.suggest_float("lr", 0.01, 1, log=True)
        trial.set_user_attr("seed", 5)
        for epoch in range(1, 4):
            trial.report(0.3 * epoch, epoch)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise RuntimeError("out of memory")
        return 0.9 + 0.0 * rate

    study = optuna.create_study(study_name=name, storage=url, direction="maximize")
    study.optimize(objective, n_trials=3, catch=RuntimeError)
    return study


@pytest.mark.medium
def test_a_database_of_optuna(tmp_path):
    url = f"sqlite:///{tmp_path}/optuna.db"
    made = optuna_study(url)
    for source in (url, str(tmp_path / "optuna.db")):
        runs = read_optuna(source)
        assert [run.status for run in runs] == ["complete", "pruned", "fail"]
        assert runs[0].values["lr"] == made.trials[0].params["lr"]
        assert runs[0].values["value"] == 0.9 and runs[0].values["seed"] == 5
        reported = [(each.step, each.value) for each in runs[1].curves["intermediate_value"]]
        assert reported == [(1, 0.3), (2, 0.6), (3, pytest.approx(0.9))]
    optuna_study(url, "other")
    with pytest.raises(
        EvidenceError, match="2 Optuna studies, and give one with --name: other, tuning"
    ):
        read_optuna(url)
    assert len(read_optuna(url, "other")) == 3


def test_what_is_no_database_of_optuna_is_refused_and_none_is_made(tmp_path):
    with pytest.raises(EvidenceError, match="there is no"):
        read_optuna(f"sqlite:///{tmp_path}/optuna.db")
    with pytest.raises(EvidenceError, match="there is no"):
        read_optuna(str(tmp_path / "optuna.db"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "text").write_text("nothing of the kind\n")
    with pytest.raises(EvidenceError, match="has no Optuna study"):
        read_optuna(str(tmp_path / "text"))
    url = f"sqlite:///{mlflow_database(tmp_path)}"
    with pytest.raises(EvidenceError, match=r"has no Optuna study|cannot be read"):
        read_optuna(url)


# CSV and Weights & Biases


def test_a_table_and_its_curves(tmp_path):
    (tmp_path / "runs.csv").write_text("run,lr,bs,state\na,0.1,32,finished\nb,0.2,64,KILLED\n")
    (tmp_path / "curves.csv").write_text("run,step,acc,epoch\na,10,0.5,1\na,20,NaN,2\nb,5,0.6,1\n")
    first, second = read_csv(tmp_path / "runs.csv", tmp_path / "curves.csv")
    assert first.values["lr"] == "0.1" and second.status == "killed"
    assert [each.step for each in first.curves["acc"]] == [10, 20]
    assert math.isnan(first.curves["acc"][1].value)
    assert first.curves["epoch"][1].value == 2.0
    (tmp_path / "curves.csv").write_text("run,step,acc\nc,10,0.5\n")
    with pytest.raises(EvidenceError, match="'c' is not in the table"):
        read_csv(tmp_path / "runs.csv", tmp_path / "curves.csv")


WANDB_RUNS = """"Name","State","Notes","User","Tags","Created","Runtime","Sweep","batch_size","lr","epoch","val_acc"
"fancy-sun-2","finished","-","ada","","2024-05-01T10:00:00.000Z","120","","64","0.2","2","0.97"
"dry-sky-1","crashed","-","ada","","2024-05-01T09:00:00.000Z","60","","32","0.1","1","0.4"
"""
WANDB_CHART = """"epoch","fancy-sun-2 - val_acc","fancy-sun-2 - val_acc__MIN","fancy-sun-2 - val_acc__MAX","dry-sky-1 - val_acc","dry-sky-1 - val_acc__MIN","dry-sky-1 - val_acc__MAX"
"1","0.8","0.8","0.8","0.4","0.4","0.4"
"2","0.97","0.97","0.97","","",""
"""  # noqa: E501


def test_the_exports_of_weights_and_biases(tmp_path):
    (tmp_path / "runs.csv").write_text(WANDB_RUNS)
    (tmp_path / "chart.csv").write_text(WANDB_CHART)
    first, second = read_wandb(tmp_path / "runs.csv", [tmp_path / "chart.csv"])
    assert (first.status, second.status) == ("finished", "crashed")
    assert first.seconds == 120.0 and first.values["lr"] == "0.2"
    assert [(each.step, each.value) for each in first.curves["val_acc"]] == [(1, 0.8), (2, 0.97)]
    assert [each.value for each in second.curves["epoch"]] == [1.0]
    assert read_wandb(tmp_path / "runs.csv")[0].curves == {}
    twice = WANDB_RUNS.replace("dry-sky-1", "fancy-sun-2")
    (tmp_path / "runs.csv").write_text(twice)
    assert len({run.label for run in read_wandb(tmp_path / "runs.csv")}) == 2
    with pytest.raises(EvidenceError, match="appears 2 times"):
        read_wandb(tmp_path / "runs.csv", [tmp_path / "chart.csv"])
    (tmp_path / "runs.csv").write_text(WANDB_RUNS)
    (tmp_path / "chart.csv").write_text("Step,loss\n1,2\n")
    with pytest.raises(EvidenceError, match="'RUN - METRIC'"):
        read_wandb(tmp_path / "runs.csv", [tmp_path / "chart.csv"])
    (tmp_path / "chart.csv").write_text(WANDB_CHART.replace("dry-sky", "wet").replace("fancy", "a"))
    with pytest.raises(EvidenceError, match="none of its runs, such as 'a-sun-2'"):
        read_wandb(tmp_path / "runs.csv", [tmp_path / "chart.csv"])
