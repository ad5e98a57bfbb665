"""Figures of past runs and of tables, at and beyond every bound: refused in one sentence, or harmless."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from past_run_samples import spec

from hpo.errors import EvidenceError, HpoError
from hpo.extrapolation.evidence.table import read_table
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.past_runs.conversion import ImportOptions
from hpo.past_runs.importing import import_runs
from hpo.past_runs.past_run import PastRun, Reading
from hpo.runs.repository import enter_study
from storage.figures import LEAST, MOST, MOST_SAMPLES, MOST_WHOLE
from storage.maintenance import maintenance
from storage.store import Store

EDGES = [0, 1, -1, LEAST, LEAST / 2, 1e-300, MOST, MOST + 1, MOST_SAMPLES, MOST_SAMPLES + 1]
EDGES += [MOST_WHOLE, MOST_WHOLE + 1, 2**53, 2**63 - 1, 2**63, 1e18, 1e19, 1e308, float("inf")]
EDGES += [float("nan")]
ANY = st.sampled_from(EDGES) | st.floats(0, 40)
READING = st.builds(Reading, st.sampled_from(EDGES[:16]) | st.integers(0, 400), ANY, ANY)
RUN = st.fixed_dictionaries({"learning_rate": ANY, "global_batch_size": ANY})
numbers = itertools.count()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('past')}/hpo.db"


@pytest.mark.medium
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    runs=st.lists(st.tuples(RUN, st.lists(READING, max_size=4)), min_size=1, max_size=3),
    samples=st.sampled_from([320, 1, 10**12]),
)
@example(
    runs=[({"learning_rate": 1, "global_batch_size": 1}, [Reading(1, 2**63, 0), Reading(2, 3, 1)])],
    samples=320,
)
def test_whatever_past_runs_say_what_is_stored_is_sound(url, runs, samples):
    given_runs = [
        PastRun(label=str(next(numbers)), values=values, curves={"top1": curve}, status="finished")
        for values, curve in runs
    ]
    with Store.open(url) as store:
        study = enter_study(store, spec())
        try:
            import_runs(store, study, spec(), given_runs, ImportOptions(train_samples=samples))
        except EvidenceError as error:
            assert str(error)
        assert store.page_studies()[0].study.name == "images"
        store.trials(study.id)
        store.usage(study.id)
    assert [each for each in maintenance.check(url) if each.level == "fail"] == []


CELL = (ANY | st.sampled_from(["", "x", "1e400", "0x10", "1_0"])).map(str)
BATCH = st.sampled_from(["16", "32", "64", "128", str(MOST_WHOLE)])
EPOCHS = st.floats(1, 40).map(str) | st.sampled_from(EDGES[:12]).map(str)


@pytest.mark.fit
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(BATCH, EPOCHS, EPOCHS | CELL), min_size=2, max_size=4),
    odd=st.none() | st.tuples(CELL, CELL, CELL),
)
@example(rows=[("16", "4.0", "0.1"), ("32", "5.0", "0.2"), ("64", "7.0", "0.4")], odd=None)
@example(rows=[("16", "1.0", "1.0"), ("16", "1.0", "1e+308")], odd=None)
def test_whatever_a_table_holds_it_is_refused_or_forecast(tmp_path, rows, odd):
    table = tmp_path / f"{next(numbers)}.csv"
    rows = rows if odd is None else [*rows, odd]
    lines = ["global_batch_size,epochs_to_target,learning_rate", *map(",".join, rows)]
    table.write_text("\n".join(lines) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            evidence = read_table(table)
        except HpoError as error:
            assert str(error)
            return
        try:
            found = forecast(
                fit(evidence, rng=np.random.default_rng(0)),
                4 * max(each.global_batch_size for each in evidence.aggregates),
            )
        except HpoError as error:
            assert str(error)
        else:
            epochs = found.epochs_to_target
            assert 0 < epochs.low <= epochs.median <= epochs.high
