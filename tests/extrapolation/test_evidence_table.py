"""Reading tables: what is taken, what each broken table is told, and that odd ones get a sober forecast."""

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.evidence.table import read_table
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit

GOOD = "global_batch_size,epochs_to_target,runs,sd,learning_rate,warmup_epochs,optimizer,samples_per_epoch\n" \
       "256,8,5,0.5,0.1,1,sgd,1000\n512,9,,,0.2,,sgd,\n"
PLAIN = ((64, 10.0), (128, 11.0), (256, 13.0), (512, 17.0))


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


@pytest.fixture
def ahead(write):
    def forecasted(lines, columns="", batch=2048):
        header = f"global_batch_size,epochs_to_target{columns and ','}{columns}"
        return forecast(fit(read_table(write("\n".join([header, *lines]))), rng=np.random.default_rng(0)), batch)
    return forecasted


def _lines(pairs, *cells):
    return [",".join([f"{batch},{epochs!r}", *more]) for (batch, epochs), *more in zip(pairs, *cells, strict=True)]


def test_order_and_units_do_not_matter(ahead):
    plain = ahead(_lines(PLAIN)).epochs_to_target
    assert ahead(_lines(PLAIN)[::-1]).epochs_to_target == plain
    samples = ahead(_lines([(batch, 1e9 * epochs) for batch, epochs in PLAIN])).epochs_to_target
    assert samples.to_dict() == pytest.approx({end: 1e9 * value for end, value in plain.to_dict().items()})
    larger = ahead(_lines([(1000 * batch, epochs) for batch, epochs in PLAIN]), batch=2_048_000).epochs_to_target
    assert larger.to_dict() == pytest.approx(plain.to_dict())


def test_rows_that_stand_twice_are_two_witnesses(ahead):
    once, twice = (ahead(_lines(rows)).epochs_to_target for rows in (PLAIN, PLAIN + PLAIN))
    assert twice.median == pytest.approx(once.median, rel=0.05)
    assert 0.75 < np.log(twice.high / twice.low) / np.log(once.high / once.low) < 1


def test_gaps_and_words_among_the_settings_leave_the_epochs_alone(ahead):
    plain = ahead(_lines(PLAIN)).epochs_to_target
    found = ahead(_lines(PLAIN, ("lars", "sgd", "", ""), ("0.1", "", "0.4", ""), ("", "1", "", "3"), ("", "", "", "")),
                  "optimizer,learning_rate,warmup_epochs,momentum")
    assert found.epochs_to_target.median == pytest.approx(plain.median, rel=0.05)
    assert set(found.settings) == {"learning_rate", "warmup_epochs"}
    assert 0.4 < found.settings["learning_rate"].median < 2.0


def test_the_less_a_table_tells_the_wider_is_the_interval(ahead):
    def width(columns, *cells):
        found = ahead(_lines(PLAIN, *cells), columns).epochs_to_target
        return found.high / found.low

    sharp, untold, wild = (width("runs,sd", ["10"] * 4, [sd] * 4) for sd in ("0.1", "", "8"))
    single = width("runs", ["1"] * 4)
    assert sharp < untold < single < wild
    assert width("") == pytest.approx(single)
    assert wild > 2.5


def test_nearly_constant_epochs_below_one_stay_near_what_was_seen(ahead):
    flat = _lines(((16384, 0.70), (32768, 0.72), (65536, 0.71), (131072, 0.73)))
    found = ahead(flat, batch=262144)
    assert found.epochs_to_target.low < 0.75 < found.epochs_to_target.median < 0.9


def test_falling_epochs_are_no_promise_of_fewer_still(ahead):
    falling = _lines(((64, 12.0), (128, 10.0), (256, 9.0), (512, 8.5)), ["5"] * 4, ["0.2"] * 4)
    found = ahead(falling, "runs,sd")
    assert found.epochs_to_target.median > 8.5
    assert found.trust != "high"
    steep = ahead(_lines(((64, 40.0), (128, 20.0), (256, 10.0), (512, 5.0))))
    assert steep.trust == "low" and steep.epochs_to_target.high / steep.epochs_to_target.low > 3


def test_epochs_all_over_the_place_get_low_trust(ahead):
    found = ahead(_lines(((64, 10.0), (128, 30.0), (256, 5.0), (512, 40.0))))
    assert found.trust == "low" and found.epochs_to_target.high / found.epochs_to_target.low > 4
