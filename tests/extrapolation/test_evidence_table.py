"""Reading tables: what is taken, and what each broken table is told."""

import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.table import read_table

GOOD = "global_batch_size,epochs_to_target,runs,sd,learning_rate,warmup_epochs,optimizer,samples_per_epoch\n" \
       "256,8,5,0.5,0.1,1,sgd,1000\n512,9,,,0.2,,sgd,\n"


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path
    return written


def test_reads_rows_settings_and_scales(write):
    evidence = read_table(write(GOOD))
    first, second = evidence.aggregates
    assert (first.global_batch_size, first.epochs_to_target, first.runs, first.sd) == (256, 8.0, 5, 0.5)
    assert first.settings == {"learning_rate": 0.1, "warmup_epochs": 1.0, "optimizer": "sgd"}
    assert (second.runs, second.sd) == (None, None) and "warmup_epochs" not in second.settings
    assert [(one.name, one.scale) for one in evidence.tuned] == [("learning_rate", "log"), ("warmup_epochs", "linear")]
    assert evidence.samples_per_epoch == 1000


def test_reads_a_byte_order_mark_and_blank_lines(write):
    assert len(read_table(write("\ufeffglobal_batch_size,epochs_to_target\n\n8,1\n\n")).aggregates) == 1


@pytest.mark.parametrize(("text", "words"), [
    ("", ["is empty", "global_batch_size"]),
    ("global_batch_size,epochs_to_target\n", ["no rows"]),
    ("global_batch_size\n8\n", ["line 1", "'epochs_to_target' is missing"]),
    ("global_batch_size,epochs_to_target,runs,runs\n8,1,1,1\n", ["line 1", "'runs'", "twice"]),
    ("global_batch_size,epochs_to_traget\n8,1\n", ["'epochs_to_traget'", "did you mean 'epochs_to_target'"]),
    ("global_batch_size,epochs_to_target,learning_rat\n8,1,1\n", ["'learning_rat'", "did you mean 'learning_rate'"]),
    ("global_batch_size,epochs_to_target\n8,1\n16,many\n", ["line 3", "'epochs_to_target'", "'many' is not a number"]),
    ("global_batch_size,epochs_to_target\n8,nan\n", ["line 2", "'epochs_to_target'", "finite", "'nan'"]),
    ("global_batch_size,epochs_to_target\n8,-3\n", ["line 2", "above 0", "'-3'"]),
    ("global_batch_size,epochs_to_target\n8.5,3\n", ["line 2", "'global_batch_size'", "whole", "'8.5'"]),
    ("global_batch_size,epochs_to_target\n0,3\n", ["line 2", "'global_batch_size'", "1 or more", "'0'"]),
    ("global_batch_size,epochs_to_target,runs\n8,3,0\n", ["line 2", "'runs'", "1 or more", "'0'"]),
    ("global_batch_size,epochs_to_target,sd\n8,3,-1\n", ["line 2", "'sd'", "0 or more", "'-1'"]),
    ("global_batch_size,epochs_to_target\n8\n", ["line 2", "2 cells", "got 1"]),
    ("global_batch_size,epochs_to_target\n8,\n", ["line 2", "'epochs_to_target' is empty"]),
    ("global_batch_size,epochs_to_target,momentum\n8,3,1.5\n", ["line 2", "'momentum'", "[0, 1)", "'1.5'"]),
    ("global_batch_size,epochs_to_target,samples_per_epoch\n8,3,10\n16,3,20\n", ["samples_per_epoch", "10.0, 20.0"]),
])
def test_a_broken_table_is_told_where_and_what(write, text, words):
    with pytest.raises(EvidenceError) as caught:
        read_table(write(text))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(EvidenceError, match="cannot read the table"):
        read_table(tmp_path / "none.csv")


@pytest.mark.parametrize(("make", "word"), [
    (Evidence, "at least one trial"),
    (lambda: Observation(0, "reached", 1.0), "global_batch_size"),
    (lambda: Observation(8, "finished", 1.0), "'finished'"),
    (lambda: Observation(8, "reached", 0.0), "above 0"),
    (lambda: Observation(8, "censored", float("nan")), "0 or more"),
    (lambda: ScaledSetting("learning_rate", "log", 0.0), "above 0"),
    (lambda: ScaledSetting("learning_rate", "log", 2.0, 1.0), "low <= high"),
    (lambda: Evidence(observations=[Observation(8, "reached", 1.0)], tuned=[ScaledSetting("a"), ScaledSetting("a")]),
     "named once"),
])
def test_evidence_checks_itself(make, word):
    with pytest.raises(EvidenceError, match=word):
        make()
