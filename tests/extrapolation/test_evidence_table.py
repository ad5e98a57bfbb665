"""Reading tables: what is accepted, the error for each broken table, and cautious forecasts from odd ones."""

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.evidence.table import read_table
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit

pytestmark = pytest.mark.medium

GOOD = (
    "global_batch_size,epochs_to_target,runs,sd,learning_rate,warmup_epochs,optimizer,samples_per_epoch\n"
    "256,8,5,0.5,0.1,1,sgd,1000\n512,9,,,0.2,,sgd,\n"
)
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
    assert (first.global_batch_size, first.epochs_to_target, first.runs, first.sd) == (
        256,
        8.0,
        5,
        0.5,
    )
    assert first.settings == {"learning_rate": 0.1, "warmup_epochs": 1.0, "optimizer": "sgd"}
    assert (second.runs, second.sd) == (None, None) and "warmup_epochs" not in second.settings
    assert [(one.name, one.scale) for one in evidence.tuned] == [
        ("learning_rate", "log"),
        ("warmup_epochs", "linear"),
    ]
    assert evidence.samples_per_epoch == 1000


def test_reads_a_byte_order_mark_and_blank_lines(write):
    assert (
        len(read_table(write("\ufeffglobal_batch_size,epochs_to_target\n\n8,1\n\n")).aggregates)
        == 1
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty", "global_batch_size"]),
        ("global_batch_size,epochs_to_target\n", ["no rows"]),
        ("global_batch_size\n8\n", ["line 1", "'epochs_to_target' is missing"]),
        ("global_batch_size,epochs_to_target,runs,runs\n8,1,1,1\n", ["line 1", "'runs'", "twice"]),
        (
            "global_batch_size,epochs_to_traget\n8,1\n",
            ["'epochs_to_traget'", "did you mean 'epochs_to_target'"],
        ),
        (
            "global_batch_size,epochs_to_target,learning_rat\n8,1,1\n",
            ["'learning_rat'", "did you mean 'learning_rate'"],
        ),
        (
            "global_batch_size,epochs_to_target\n8,1\n16,many\n",
            ["line 3", "'epochs_to_target'", "'many' is not a number"],
        ),
        (
            "global_batch_size,epochs_to_target\n8,nan\n",
            ["line 2", "'epochs_to_target'", "finite", "'nan'"],
        ),
        ("global_batch_size,epochs_to_target\n8,-3\n", ["line 2", "above 0", "'-3'"]),
        (
            "global_batch_size,epochs_to_target\n8.5,3\n",
            ["line 2", "'global_batch_size'", "whole", "'8.5'"],
        ),
        (
            "global_batch_size,epochs_to_target\n0,3\n",
            ["line 2", "'global_batch_size'", "1 or more", "'0'"],
        ),
        (
            "global_batch_size,epochs_to_target,runs\n8,3,0\n",
            ["line 2", "'runs'", "1 or more", "'0'"],
        ),
        (
            "global_batch_size,epochs_to_target,sd\n8,3,-1\n",
            ["line 2", "'sd'", "0 or more", "'-1'"],
        ),
        ("global_batch_size,epochs_to_target\n8\n", ["line 2", "2 cells", "got 1"]),
        ("global_batch_size,epochs_to_target\n8,\n", ["line 2", "'epochs_to_target' is empty"]),
        (
            "global_batch_size,epochs_to_target,momentum\n8,3,1.5\n",
            ["line 2", "'momentum'", "[0, 1)", "'1.5'"],
        ),
        (
            "global_batch_size,epochs_to_target,state\n8,3,reached\n8,3,exploded\n",
            ["line 3", "'state'", "reached, censored, diverged, pruned", "'exploded'"],
        ),
        (
            "global_batch_size,epochs_to_target,state\n8,3,Diverged\n",
            ["line 2", "did you mean 'diverged'"],
        ),
        (
            "global_batch_size,epochs_to_target,state\n8,0,diverged\n8,0,reached\n",
            ["line 3", "above 0", "'0'"],
        ),
        (
            "global_batch_size,epochs_to_target,state\n8,-1,censored\n",
            ["line 2", "0 or more", "'-1'"],
        ),
        (
            "global_batch_size,epochs_to_target,optimizer\n8,3,adamm\n",
            ["line 2", "'optimizer'", "did you mean 'adam'"],
        ),
        (
            "global_batch_size,epochs_to_target,nesterov\n8,3,maybe\n",
            ["line 2", "'nesterov'", "true or false", "'maybe'"],
        ),
        (
            "global_batch_size,epochs_to_target,states\n8,3,reached\n",
            ["'states'", "did you mean 'state'"],
        ),
        (
            "global_batch_size,epochs_to_target,dropout\n8,3,inf\n",
            ["line 2", "'dropout'", "finite", "'inf'"],
        ),
        ("global_batch_size,epochs_to_target,\n8,3,1\n", ["line 1", "column 3 has no name"]),
        (
            "global_batch_size,epochs_to_target,samples_per_epoch\n8,3,10\n16,3,20\n",
            ["samples_per_epoch", "10.0, 20.0"],
        ),
    ],
)
def test_a_broken_table_is_told_where_and_what(write, text, words):
    with pytest.raises(EvidenceError) as caught:
        read_table(write(text))
    for word in words:
        assert word in str(caught.value)


def test_states_make_trials_and_means_over_many_runs_stay_rows(write):
    table = "global_batch_size,epochs_to_target,state,runs,learning_rate\n"
    evidence = read_table(
        write(
            table + "64,10,reached,,0.1\n64,0,diverged,,3\n64,40,censored,,0.01\n"
            "64,5,pruned,,0.02\n128,11,,10,0.2\n"
        )
    )
    assert [(one.state, one.epochs) for one in evidence.observations] == [
        ("reached", 10.0),
        ("diverged", 0.0),
        ("censored", 40.0),
        ("pruned", 5.0),
    ]
    assert [(one.global_batch_size, one.runs) for one in evidence.aggregates] == [(128, 10)]
    alike = read_table(write(table + "64,10,reached,,0.1\n128,11,,10,0.2\n"))
    assert not alike.observations and len(alike.aggregates) == 2


def test_other_columns_are_free_settings_and_strict_refuses_them(write):
    table = (
        "global_batch_size,epochs_to_target,dropout,stages,cluster,nesterov\n"
        "64,10,0.1,1,east,true\n128,11,0.2,30,west,False\n"
    )
    evidence = read_table(write(table))
    assert [(one.name, one.scale) for one in evidence.tuned] == [
        ("dropout", "linear"),
        ("stages", "log"),
    ]
    assert evidence.aggregates[1].settings == {
        "dropout": 0.2,
        "stages": 30.0,
        "cluster": "west",
        "nesterov": False,
    }
    with pytest.raises(
        EvidenceError, match="line 1: column 'dropout' is neither a setting nor one of"
    ) as caught:
        read_table(write(table), strict=True)
    assert "without --strict" in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(EvidenceError, match="cannot read the table"):
        read_table(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (Evidence, "at least one trial"),
        (lambda: TrainingObservation(0, "reached", 1.0), "global_batch_size"),
        (lambda: TrainingObservation(8, "finished", 1.0), "'finished'"),
        (lambda: TrainingObservation(8, "reached", 0.0), "above 0"),
        (lambda: TrainingObservation(8, "censored", float("nan")), "0 or more"),
        (lambda: ScaledSetting("learning_rate", "log", 0.0), "above 0"),
        (lambda: ScaledSetting("learning_rate", "log", 2.0, 1.0), "low <= high"),
        (
            lambda: Evidence(
                observations=[TrainingObservation(8, "reached", 1.0)],
                tuned=[ScaledSetting("a"), ScaledSetting("a")],
            ),
            "must be named only once",
        ),
    ],
)
def test_evidence_checks_itself(make, word):
    with pytest.raises(EvidenceError, match=word):
        make()


@pytest.fixture
def ahead(write):
    def forecasted(lines, columns="", batch=2048):
        header = f"global_batch_size,epochs_to_target{columns and ','}{columns}"
        return forecast(
            fit(read_table(write("\n".join([header, *lines]))), rng=np.random.default_rng(0)), batch
        )

    return forecasted


def _lines(pairs, *cells):
    return [
        ",".join([f"{batch},{epochs!r}", *more])
        for (batch, epochs), *more in zip(pairs, *cells, strict=True)
    ]


def test_order_and_units_do_not_matter(ahead):
    plain = ahead(_lines(PLAIN)).epochs_to_target
    assert ahead(_lines(PLAIN)[::-1]).epochs_to_target == plain
    samples = ahead(_lines([(batch, 1e9 * epochs) for batch, epochs in PLAIN])).epochs_to_target
    assert samples.to_dict() == pytest.approx(
        {end: 1e9 * value for end, value in plain.to_dict().items()}
    )
    larger = ahead(
        _lines([(1000 * batch, epochs) for batch, epochs in PLAIN]), batch=2_048_000
    ).epochs_to_target
    assert larger.to_dict() == pytest.approx(plain.to_dict())


def test_rows_that_stand_twice_are_two_witnesses(ahead):
    once, twice = (ahead(_lines(rows)).epochs_to_target for rows in (PLAIN, PLAIN + PLAIN))
    assert twice.median == pytest.approx(once.median, rel=0.05)
    assert 0.75 < np.log(twice.high / twice.low) / np.log(once.high / once.low) < 1


def test_gaps_and_words_among_the_settings_leave_the_epochs_alone(ahead):
    plain = ahead(_lines(PLAIN)).epochs_to_target
    found = ahead(
        _lines(
            PLAIN,
            ("lars", "sgd", "", ""),
            ("0.1", "", "0.4", ""),
            ("", "1", "", "3"),
            ("", "", "", ""),
        ),
        "optimizer,learning_rate,warmup_epochs,momentum",
    )
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


def test_diverged_runs_of_a_table_bound_the_rate_and_tell_the_risk(ahead):
    lines = [
        f"{batch},{epochs * (1 + 0.5 * abs(np.log(rate * 12.8 / batch))):.4g},{rate:.4g},reached"
        for batch, epochs in PLAIN[:3]
        for rate in batch / 12.8 * np.array([0.4, 0.7, 1.0, 1.4])
    ]
    without = ahead(lines, "learning_rate,state", batch=1024)
    exploded = ahead(
        [
            *lines,
            *(f"{batch},0.5,{rate},diverged" for batch in (64, 128, 256) for rate in (34, 40)),
        ],
        "learning_rate,state",
        batch=1024,
    )
    assert without.divergence is None or exploded.divergence is not None
    assert exploded.settings["learning_rate"].median < 34
    assert exploded.laws["learning_rate"]["stable_below"].high < 45


def test_one_lost_run_leaves_the_forecast_of_tuned_means_as_it_is(ahead):
    pairs = (*PLAIN, (1024, 25.0))
    means = _lines(pairs, ["10"] * 5, ["0.1", "0.2", "0.4", "0.8", "1.6"], ["reached"] * 5)
    alone, beside = (
        ahead(lines, "runs,learning_rate,state", batch=1024)
        for lines in (means, [*means, "1024,1,,12,diverged"])
    )
    assert beside.epochs_to_target.median == pytest.approx(alone.epochs_to_target.median, rel=0.1)
    assert beside.epochs_to_target.high / beside.epochs_to_target.low < 1.6
    assert 0.8 < beside.settings["learning_rate"].median < 1.8


def test_the_chance_of_one_run_follows_its_own_spread_however_many_runs_a_row_has(ahead):
    for runs in ("5", "100"):
        spread = [repr(0.3 * epochs) for _, epochs in PLAIN]
        found = ahead(_lines(PLAIN, [runs] * 4, spread), "runs,sd", batch=512)
        longer = next(
            one for one in found.chances if one.epochs > 1.2 * found.epochs_to_target.median
        )
        # one run within 1.25 times the median: the normal distribution has 0.77 below log(1.25) / 0.3
        assert longer.probability == pytest.approx(0.76, abs=0.03)


def test_settings_below_zero_stay_near_what_was_tried(ahead):
    rows = _lines(PLAIN, ["-4", "-3.9", "-4.1", "-4"])
    for batch in (512, 8192):
        found = ahead(rows, "log10_decay", batch=batch).settings["log10_decay"]
        assert -5 < found.median < -3.5 and found.low < found.median < found.high


def test_a_warmup_without_a_rate_may_be_any_that_was_tried(ahead):
    lines = [
        f"{batch},{epochs * (1 + 0.3 * abs(np.log(warmup / 8))):.4g},{warmup}"
        for batch, epochs in PLAIN
        for warmup in (0.5, 1, 2, 8)
    ]
    found = ahead(lines, "warmup_epochs").settings["warmup_epochs"]
    assert (found.low, found.median, found.high) == (0.5, 1.5, 8)


def test_the_optimizer_of_a_table_chooses_what_is_believed_of_its_rate(ahead):
    rates = ["0.001", "0.0014", "0.002", "0.0028"]
    found = {
        optimizer: ahead(
            _lines(PLAIN, [optimizer] * 4, rates), "optimizer,learning_rate", batch=4096
        )
        for optimizer in ("sgd", "lars", "adamw")
    }
    exponents = {
        optimizer: one.laws["learning_rate"]["exponent"].median for optimizer, one in found.items()
    }
    assert exponents["sgd"] > 0.8 > exponents["lars"] > 0.4


def test_a_rate_that_stays_the_same_says_nothing_of_the_epochs_where_adam_trained(ahead):
    """As published for AdamW (arXiv:2410.21676): one rate at all batches, a critical batch of thousands."""
    critical = [(batch, 3 * (1 + batch / 4000)) for batch in (64, 128, 256, 512, 1024)]
    told = {
        optimizer: ahead(
            _lines(critical, [optimizer] * 5, ["0.00316"] * 5),
            "optimizer,learning_rate",
            batch=8192,
        ).epochs_to_target
        for optimizer in ("sgd", "adamw")
    }
    assert told["adamw"].low < 3 * (1 + 8192 / 4000) < told["adamw"].high
    assert told["adamw"].median == pytest.approx(3 * (1 + 8192 / 4000), rel=0.25)
    assert told["sgd"].median > told["adamw"].median


def test_a_free_setting_is_forecast_with_the_others(ahead):
    found = ahead(
        _lines(PLAIN, ["0.1", "0.1", "0.12", "0.11"], ["a", "b", "a", "b"]), "dropout,cluster"
    )
    assert set(found.settings) == {"dropout"} and 0.05 < found.settings["dropout"].median < 0.2


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{GOOD}1024,{'1' * 131_073}\n", 4),
        (f"global_batch_size,{'a' * 131_073}\n256,8\n", 1),
    ],
)
def test_a_cell_longer_than_the_reader_takes_names_its_line_and_the_rule(write, text, line):
    said = rf"table\.csv, line {line}: a cell must have at most 131072 characters"
    with pytest.raises(EvidenceError, match=said):
        read_table(write(text))
