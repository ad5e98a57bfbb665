"""Published trainings: curves become trials, losses become tokens, and the page has what was computed."""

import gzip
import json
import math

import numpy as np
import pytest

from benchmarks import published_trainings as published
from hpo.extrapolation.evidence.evidence import TrainingObservation


def trial(batch, epochs, state="reached", rate=0.1):
    settings = {"optimizer": "sgd", "learning_rate": rate}
    return TrainingObservation(batch, state, epochs, settings)


def test_a_crossing_lies_between_two_evaluations():
    training = {
        "train_batch_size": 32,
        "num_train_epochs": 2,
        "total_model_steps": 8000,
        "learning_rate": 1e-5,
        "warmup_steps": 400,
        "cls_drop_out": 0.1,
        "learning_curves": {"matched": [[1000, 0.8], [2000, 0.84], [3000, 0.88]]},
    }
    found = published._deberta_trial(training, 0.85)
    assert (found.state, found.epochs) == ("reached", pytest.approx(2250 / 4000))
    assert found.settings["warmup_epochs"] == pytest.approx(0.1)
    assert published._deberta_trial(training, 0.9).state == "censored"


def test_a_training_whose_loss_is_no_number_has_diverged():
    training = {
        "batch_size": 256,
        "nan_train_loss": True,
        "epochs": 30,
        "lr": 9.0,
        "lr_peak_epoch": 3,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "label_smoothing": 0.1,
        "learning_curve": [{"top_1": 0.2}, {"top_1": 0.3}],
    }
    assert published._alexnet_trial(training, 0.3).epochs == 2
    assert published._alexnet_trial(training, 0.3).state == "reached"
    assert published._alexnet_trial(training, 0.4).state == "diverged"


def test_a_loss_becomes_the_tokens_whose_best_training_has_it():
    curve = {1.0: 4.0, 4.0: 3.0, 8.0: 2.5}
    assert published._tokens(3.0, curve) == pytest.approx(4.0)
    assert published._tokens(3.5, curve) == pytest.approx(2.0)
    assert published._tokens(4.5, curve) == pytest.approx(0.5)  # beyond the ends: the outer slope


def test_the_plain_rules_are_the_few_quickest_below_and_a_line_through_them():
    at = {100: 8.0, 200: 16.0, 400: 40.0}
    trials = [
        trial(batch, epochs * factor, rate=0.001 * batch)
        for batch, epochs in at.items()
        for factor in (1.0, 1.0, 1.0, 1.0, 1.0, 9.0)
    ]
    trials.append(trial(400, 1.0, state="diverged"))
    found = published._random_search("AlexNet", "a case", trials, 200, (400, 400), 1e5)
    assert (found.epochs, found.best, found.as_below) == pytest.approx((40.0, 40.0, 16.0))
    assert found.line == pytest.approx(32.0)
    assert found.rate == pytest.approx(0.4)
    assert found.rates == pytest.approx({"none": 0.2, "sqrt": 0.2 * math.sqrt(2), "linear": 0.4})
    assert found.trainings == 7
    assert found.held == (
        found.found.epochs_to_target.low <= 40.0 <= found.found.epochs_to_target.high
    )


def test_language_models_are_compared_at_the_settings_that_were_tried_most(tmp_path):
    """Loss falls by 1 with each doubling of tokens; a batch of 2**n * 128 wastes a share that grows with n."""
    lines = ["optimizer,size,chinchilla,train_batch_size,learning_rate,loss"]
    for budget in (1, 2, 4):
        best = 4 - math.log2(budget)
        lines += [f"adamw,130m,{budget},128,{rate},{best}" for rate in (0.001, 0.001)]
    lines += [f"adamw,130m,4,{128 * 2**n},0.001,{2 + 0.1 * n}" for n in (1, 2, 3)]
    lines += ["adamw,130m,4,1024,0.002,2.1", "adamw,130m,4,512,0.001,7.5", "adamw,130m,2,128,0.1,"]
    file = tmp_path / "optimizers.csv"
    file.write_text("\n".join(lines))
    (found,) = published.language_models(file)
    assert found.epochs == pytest.approx(2**0.3)
    assert found.as_below == pytest.approx(2**0.2)


def test_the_page_has_every_forecast_and_names_sources_and_licences(tmp_path, monkeypatch, capsys):
    rates = np.random.default_rng(0).uniform(1e-5, 1e-4, 18)
    rows = [
        {
            "train_batch_size": batch,
            "num_train_epochs": 1,
            "total_model_steps": 390_000 // batch,
            "learning_rate": float(rate),
            "warmup_steps": 100,
            "cls_drop_out": 0.1,
            "learning_curves": {"matched": [[1000 * at, 0.1 * at] for at in range(1, 10)]},
        }
        for batch, rate in zip((16, 32, 64) * 6, rates, strict=True)
    ]
    with gzip.open(tmp_path / "deberta-base_tuning.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    monkeypatch.setattr(published, "DEBERTA_TARGETS", (0.85,))
    monkeypatch.setattr("sys.argv", ["published", str(tmp_path), "--write", str(tmp_path)])
    published.main()
    page = (tmp_path / "published_trainings.md").read_text()
    assert "| DeBERTa | 1 |" in page and page.count("accuracy of 85.0%") == 1
    assert "CC BY-SA 4.0" in page and "Apache-2.0" in page
    assert "<svg" in (tmp_path / "published_trainings.svg").read_text()
    assert "| DeBERTa | 1 |" in capsys.readouterr().out


def test_a_folder_without_any_of_them_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["published", str(tmp_path)])
    with pytest.raises(SystemExit):
        published.main()
    assert "must hold one of the files" in capsys.readouterr().err
