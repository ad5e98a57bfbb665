"""Past runs in a storage: each once, with reasons for what is left out; then a forecast, or a sweep from there."""

import dataclasses
import json
import math
import re

import optuna
import pytest
from click.testing import CliRunner
from past_run_samples import STUDY, mlflow_database, mlflow_folder, run, spec

import hpo
from hpo.cli.main import main
from hpo.errors import EvidenceError
from hpo.past_runs.conversion import ImportOptions
from hpo.past_runs.importing import import_runs
from hpo.past_runs.past_run import PastRun, Reading
from hpo.runs.repository import enter_study
from storage.records import StudyState, TrialState
from storage.store import Store

pytestmark = pytest.mark.medium

OPTIONS = ImportOptions(train_samples=320)


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        yield store


def test_each_run_is_a_trial_once(store):
    study = enter_study(store, spec())
    runs = [
        run([0.5, 0.97], label="a"),
        run([0.5, 0.6], label="b"),
        run([0.5], status="crashed", label="c"),
    ]
    assert import_runs(store, study, spec(), runs, OPTIONS, dry_run=True).trials == 2
    assert store.trials(study.id) == []
    done = import_runs(store, study, spec(), runs, OPTIONS)
    assert done.states == {"reached": 1, "censored": 1} and done.known == 0
    assert done.assumed == ["momentum", "optimizer"]
    assert done.skipped == [
        ("c", "it ended as 'crashed'; --state crashed=censored uses its curve up to then")
    ]
    first, second = store.trials(study.id)
    assert (first.state, first.epochs_to_target) == (TrialState.REACHED, 2.0)
    assert (first.seed, second.seed) == (0, 1)  # repetitions of one setting
    assert first.samples == 640 and len(store.points(first.id)) == 2
    assert store.study("images").state is StudyState.INTERRUPTED
    again = import_runs(store, study, spec(), [*runs, run([0.99], label="d")], OPTIONS)
    assert again.trials == 1 and again.known == 2
    assert len(store.trials(study.id)) == 3


def test_runs_of_one_label_are_told_apart_by_their_content(store):
    study = enter_study(store, spec())

    def gained(*runs):
        return import_runs(store, study, spec(), runs, OPTIONS).trials

    def table_row(epochs):
        return PastRun(
            "csv runs.csv 2",
            {"learning_rate": 0.1, "global_batch_size": 32, "epochs_to_target": epochs},
        )

    label = "tensorboard lightning_logs/version_0"
    first, lost = run([0.5, 0.6], label=label), run([0.1, math.nan], lr=0.9, label=label)
    others = [
        run([0.5, 0.6], lr=0.2, label=label),
        run([0.5, 0.6], batch=64, label=label),
        run([0.4, 0.97], label=label),
        lost,
    ]
    assert gained(first) == 1
    assert [gained(other) for other in others] == [1, 1, 1, 1]
    assert gained(first, *others) == 0 and gained(*others, first) == 0
    assert gained(run([0.5, 0.6, 0.97], label=label)) == 0  # the first run, grown since
    assert [gained(table_row(3)), gained(table_row(3)), gained(table_row(4))] == [1, 0, 1]
    reasons = [trial.reason for trial in store.trials(study.id)]
    assert reasons[0] == f"imported: {label}" and len(set(reasons)) == len(reasons) == 7
    assert all(reason.startswith(f"{reasons[0]}, content ") for reason in reasons[1:5])


def test_a_run_that_changed_since_is_not_imported_again(store):
    study = enter_study(store, spec())

    def gained(*runs):
        return import_runs(store, study, spec(), runs, OPTIONS).trials

    def with_loss(*values, top1=(0.5, 0.6)):
        curve = [Reading(10 * epoch, value) for epoch, value in enumerate(values, 1)]
        past = run(top1, label="with loss")
        return dataclasses.replace(past, curves={**past.curves, "loss": curve})

    def row(state):
        values = {"epochs": 3, "metric": 0.5, "learning_rate": 0.1, "global_batch_size": 32}
        return PastRun("csv runs.csv 2", {**values, "state": state})

    def known(*top1, lr=0.1):
        return dataclasses.replace(run(top1, lr=lr, label="mlflow 7"), has_id=True)

    assert [gained(run([0.5, 0.6])), gained(run([0.5, 0.55, 0.97]))] == [1, 0]  # it was resumed
    assert [gained(row("pruned")), gained(row("censored"))] == [1, 0]
    assert [gained(known(0.5)), gained(known(0.4, 0.97)), gained(known(0.5, lr=0.2))] == [1, 0, 0]
    assert gained(with_loss(2.0, 1.0)) == 1
    assert gained(run([0.5, 0.6], label="with loss")) == 0
    assert [gained(with_loss(2.0, 1.5)), gained(with_loss(2.1, 1.0))] == [0, 1]


def test_runs_of_which_none_compares_are_an_error_with_the_commonest_reasons(store):
    study = enter_study(store, spec())
    runs = [run([0.97], momentum=0.5, label=str(number)) for number in range(3)]
    with pytest.raises(EvidenceError, match=r"3 of them: its momentum is 0\.5"):
        import_runs(store, study, spec(), runs, OPTIONS)
    assert store.trials(study.id) == []
    with pytest.raises(EvidenceError, match="no runs"):
        import_runs(store, study, spec(), [], OPTIONS)


def test_a_seed_that_cannot_be_stored_leaves_only_its_run_out(store):
    study = enter_study(store, spec())
    runs = [run([0.97], label="a", seed=1), run([0.97], label="b", seed=2**64 - 1)]
    done = import_runs(store, study, spec(), runs, ImportOptions(train_samples=320))
    assert done.trials == 1
    ((label, reason),) = done.skipped
    assert (
        label == "b" and "its seed must be a whole number from 0 to 9223372036854775807" in reason
    )


def call(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_STORAGE", f"sqlite:///{tmp_path}/hpo.db")
    (tmp_path / "images.yaml").write_text(STUDY)
    return tmp_path


MLFLOW_MAP = ("--map", "optim/lr=learning_rate", "--map", "batch=global_batch_size")
EPOCHS = ("--axis", "epochs", "--train-samples", "320")


@pytest.mark.parametrize("store_of", [mlflow_folder, mlflow_database])
def test_mlflow_from_the_command_line(store_of, folder):
    source = store_of(folder)
    arguments = ("import", "mlflow", source, "--study", "images.yaml", *MLFLOW_MAP, *EPOCHS)
    result = call(*arguments, "--map", "val_top1=metric", "--json")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert done["states"] == {"reached": 3, "censored": 1, "diverged": 1} and done["assumed"] == [
        "momentum"
    ]
    assert "left out: mlflow" in result.stderr and "ended as 'failed'" in result.stderr
    trials = hpo.read_study("images").trials
    assert sorted(
        (t.global_batch_size, t.epochs_to_target) for t in trials if t.epochs_to_target
    ) == [
        (32, 3.0),
        (64, 4.0),
        (128, 4.0),
    ]
    (forecast,) = json.loads(call("forecast", "images", "--at", "256", "--json").stdout)
    assert 3.0 < forecast["epochs_to_target"]["median"] < forecast["epochs_to_target"]["high"]
    again = call(*arguments, "--map", "top1=metric")
    assert again.exit_code == 2 and "no run has 'top1'" in again.output


def test_bad_options_are_usage_errors(folder):
    mlflow_folder(folder)
    base = ("import", "mlflow", "mlruns", "--study", "images.yaml")
    for bad in (
        ("--map", "lr"),
        ("--map", "a=b", "--map", "a=c"),
        ("--state", "=x"),
        ("--axis", "x"),
    ):
        result = call(*base, *bad)
        assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    result = call("import", "mlflow", "mlruns", "--study", "nothing")
    assert result.exit_code == 2
    result = call("import", "wandb", "no.csv", "--study", "images.yaml")
    assert result.exit_code == 2 and "no.csv" in result.output


def law(batch, factor):
    """Epochs to target: 4 (1 + batch / 256) at the best rate of 0.1 batch / 32, more by the square of the log miss."""
    return 4 * (1 + batch / 256) * math.exp(0.2 * math.log(factor) ** 2)


FACTORS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)


def runs_by_the_law():
    """Rate, batch and epochs to the target of 18 runs."""
    return [
        (0.1 * batch / 32 * factor, batch, law(batch, factor))
        for batch in (32, 64, 128)
        for factor in FACTORS
    ]


def as_csv(folder):
    rows = [
        f"r{n},{batch},{rate},{epochs}" for n, (rate, batch, epochs) in enumerate(runs_by_the_law())
    ]
    (folder / "runs.csv").write_text("\n".join(["run,bs,lr,epochs_to_target", *rows]) + "\n")
    return "csv", "runs.csv"


def as_wandb(folder):
    """The table of runs, with the summary of each."""
    rows = [
        f'"run-{n}","finished","{batch}","{rate}","{epochs}"'
        for n, (rate, batch, epochs) in enumerate(runs_by_the_law())
    ]
    (folder / "runs.csv").write_text(
        "\n".join(['"Name","State","bs","lr","epochs_to_target"', *rows]) + "\n"
    )
    return "wandb", "runs.csv"


def as_tensorboard(folder):
    """Curves that reach the target at their last evaluation."""
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    for n, (rate, batch, epochs) in enumerate(runs_by_the_law()):
        with writers.SummaryWriter(str(folder / "logs" / f"run{n}")) as writer:
            for share, top1 in ((0.5, 0.6), (0.96, 0.9), (1.0, 0.97)):
                updates = round(share * epochs * 32_000 / batch)
                writer.add_scalar("top1", top1, updates, walltime=100.0 + updates)
            writer.add_hparams({"lr": rate, "bs": batch}, {}, name="hparams")
    return "tensorboard", "logs", "--train-samples", "32000", "--axis", "updates"


def as_optuna(folder):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage="sqlite:///optuna.db")
    spaces = {"lr": optuna.distributions.FloatDistribution(1e-3, 1e2, log=True)}
    spaces["bs"] = optuna.distributions.CategoricalDistribution([32, 64, 128])
    for rate, batch, epochs in runs_by_the_law():
        study.add_trial(
            optuna.trial.create_trial(
                params={"lr": rate, "bs": batch}, distributions=spaces, value=epochs
            )
        )
    return "optuna", "optuna.db", "--map", "value=epochs_to_target"


@pytest.mark.parametrize(
    "source",
    [
        as_csv,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (as_wandb, as_tensorboard, as_optuna)
        ),
    ],
)
def test_a_forecast_from_imported_runs(folder, source):
    words = source(folder)
    done = call(
        "import", *words, "--study", "images.yaml", "--map", "bs=global_batch_size", "--map", "lr=learning_rate"
    )  # fmt: skip
    assert done.exit_code == 0 and re.search("images gained 18 trials: 18 reached", done.output)
    (forecast,) = json.loads(call("forecast", "images", "--at", "256", "--json").stdout)
    epochs, rate = forecast["epochs_to_target"], forecast["settings"]["learning_rate"]
    assert epochs["low"] < law(256, 1.0) < epochs["high"]
    assert rate["low"] < 0.8 < rate["high"]


CHART = """\
"Step","a - val_acc","a - val_acc__MIN","a - val_acc__MAX"
"1","0.5","0.5","0.5"
"2","0.97","0.97","0.97"
"""


def wandb_with_a_chart(folder, study):
    (folder / "runs.csv").write_text(
        '"Name","State","batch_size","lr"\n"a","finished","32","0.1"\n'
    )
    (folder / "top1.csv").write_text(CHART)
    return call(
        "import", "wandb", "runs.csv", "--chart", "top1.csv", "--study", study, "--map", "lr=learning_rate",
        "--map", "batch_size=global_batch_size", "--map", "val_acc=metric", "--axis", "epochs",
    )  # fmt: skip


PROGRAM = """\
  command: [python, train.py, --lr, "{learning_rate}", --batch, "{global_batch_size}"]
  train_samples: 500
  report: {metrics: {top1: true}}
"""


@pytest.mark.parametrize(
    ("changed", "samples"),
    [
        ({}, 1437),  # of scikit-learn's 1,797 digits, all but 360
        (
            {
                "workload: resnet\ndata: {source: digits}": f"workload: program\nprogram:\n{PROGRAM}",
                "  optimizer: sgd\n": "",
                "  momentum: 0.9\n": "",
            },
            500,
        ),
    ],
    ids=["counted in its data", "said by its program"],
)
def test_the_training_samples_of_curves_are_those_of_the_study(folder, changed, samples):
    text = STUDY
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "images.yaml").write_text(text)
    done = wandb_with_a_chart(folder, "images.yaml")
    assert done.exit_code == 0, done.output
    (trial,) = hpo.read_study("images").trials
    assert (trial.epochs_to_target, trial.samples) == (2.0, 2 * samples)


SUMMARIES = """\
name: past
workload: noisy_quadratic
data: {train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [256, 512, 1024]
search: {learning_rate: {log_uniform: [0.01, 10], role: scaled}}
budget: {trials: 12, epochs_per_trial: 90}
"""


@pytest.mark.fit
@pytest.mark.parametrize("said", [True, False])
def test_a_plan_from_runs_that_give_only_their_epochs(folder, said):
    text = SUMMARIES if said else SUMMARIES.replace("data: {train_samples: 512}\n", "")
    (folder / "past.yaml").write_text(text)
    lines = [
        f"{batch}-{factor},{batch},{factor * batch / 2560},{(20 + batch / 200) * (1.15 if factor != 1 else 1)},reached"
        for batch in (256, 512, 1024)
        for factor in (0.5, 1, 2)
    ]
    header = "run,global_batch_size,learning_rate,epochs_to_target,state"
    (folder / "past.csv").write_text("\n".join([header, *lines]) + "\n")
    done = call("import", "csv", "past.csv", "--study", "past.yaml")
    assert done.exit_code == 0, done.output
    done = call(
        "plan", "past", "--machine", "summit", "--cost", "resnet50", "--global-batch-size", "4096"
    )
    if said:
        assert done.exit_code == 0 and "summit" in done.output, done.output
    else:
        assert done.exit_code in (1, 2), done.output
        assert "needs the number of samples per epoch" in done.output
        assert "run one trial (`hpo run`)" in done.output


def test_where_the_data_of_a_study_are_elsewhere_the_way_out_is_named(folder):
    (folder / "images.yaml").write_text(
        STUDY.replace("{source: digits}", "{source: image_folder, path: elsewhere}")
    )
    done = wandb_with_a_chart(folder, "images.yaml")
    assert done.exit_code == 2 and "give --train-samples" in done.output
    assert "elsewhere" in done.output


BOWL = """\
name: bowl
workload: noisy_quadratic
data: {modes: 50, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [32, 64]
search:
  learning_rate: {log_uniform: [0.002, 2], role: scaled}
  weight_decay: 0
budget: {trials: 8, epochs_per_trial: 40}
"""


@pytest.mark.slow
def test_an_optuna_study_of_ours_comes_back_and_the_sweep_goes_on_from_it(folder):
    (folder / "bowl.yaml").write_text(BOWL)
    (folder / "more.yaml").write_text(BOWL.replace("name: bowl", "name: more"))
    swept = hpo.run_study(hpo.load_study("bowl.yaml"), f"sqlite:///{folder}/hpo.db")
    assert call("export", "optuna", "bowl", "--to", "sqlite:///optuna.db").exit_code == 0
    done = call(
        "import", "optuna", "sqlite:///optuna.db", "--study", "more.yaml",
        "--map", "value=epochs_to_target", "--map", "intermediate_value=metric", "--axis", "updates",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    imported = hpo.read_study("more").imported
    mine = {
        (t.global_batch_size, t.settings["learning_rate"], t.seed): (t.state, t.epochs_to_target)
        for t in swept.trials
    }
    theirs = {
        (t.global_batch_size, t.settings["learning_rate"], t.seed): (t.state, t.epochs_to_target)
        for t in imported
    }
    assert theirs == mine
    result = hpo.run_study(hpo.load_study("more.yaml"), f"sqlite:///{folder}/hpo.db")
    assert result.complete and len(result.trials) == len(imported) + 8
    # the first setting of a sweep without evidence is the middle of the range; this one began where the other ended
    own = [trial for trial in result.trials if trial.purpose == "sweep"]
    assert own[0].settings["learning_rate"] != swept.trials[0].settings["learning_rate"]


def test_optuna_trials_of_anybody(folder):
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        rate = trial.suggest_float("lr", 0.01, 1, log=True)
        batch = trial.suggest_categorical("bs", [32, 64])
        for epoch in range(1, 6):
            trial.report(min(0.99, 0.2 * epoch + 0.1 * rate), epoch)
        return batch

    optuna.create_study(storage="sqlite:///theirs.db", direction="maximize").optimize(objective, 5)
    done = call(
        "import", "optuna", "theirs.db", "--study", "images.yaml", "--map", "lr=learning_rate",
        "--map", "bs=global_batch_size", "--map", "intermediate_value=metric", *EPOCHS,
    )  # fmt: skip
    assert done.exit_code == 0 and "gained 5 trials: 5 reached" in done.output
    assert {trial.epochs_to_target for trial in hpo.read_study("images").trials} == {5.0}
