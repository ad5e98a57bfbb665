"""Figures hold the numbers of the study: its points, its law, its forecast, its outcomes."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dashboard_samples import (
    FULL_SCALE,
    LADDER,
    OUTCOMES,
    RATES,
    add_trial,
    ended,
    epochs_at,
    full_view,
    make_study,
    reached,
    url_of,
)

from hpo.dashboard import figures, style
from hpo.dashboard.view import StudyView, load_study_view
from hpo.errors import EvidenceError
from hpo.extrapolation.forecast import epochs_band, setting_band
from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.formatting import format_interval, format_number, setting_with_unit
from hpo.runs.results import StudyResult
from hpo.runs.study_forecast import with_forecast
from storage.records import CalibrationRow, PlanKind, TrialState, Trust
from storage.store import Store

pytestmark = pytest.mark.fit


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    return full_view(tmp_path_factory.mktemp("study"))


def named(figure: Any, name: str) -> Any:
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == 1, [trace.name for trace in figure.data]
    return found[0]


def named_state(figure: Any, state: TrialState) -> Any:
    return named(figure, style.STATES[state].name)


def nearest_rung(x: float) -> int:
    return min(LADDER, key=lambda batch: abs(math.log(x / batch)))


@pytest.fixture(scope="module")
def ladder(view: StudyView) -> Any:
    return figures.ladder(view.result, view.posterior)


@pytest.fixture(scope="module")
def rates(view: StudyView) -> Any:
    return figures.setting_against_batch(view.result, "learning_rate", view.posterior)


class TestLadder:
    def test_every_reached_trial_stands_at_its_rung_with_its_epochs(
        self, view: StudyView, ladder: Any
    ) -> None:
        points = named_state(ladder, TrialState.REACHED)
        expected = [
            (batch, epochs_at(batch, rate, seed))
            for batch in LADDER
            for rate in RATES
            for seed in (0, 1)
        ]
        assert [nearest_rung(x) for x in points.x] == [batch for batch, _ in expected]
        assert list(points.y) == pytest.approx([epochs for _, epochs in expected])
        trials = {trial.number: trial for trial in view.result.trials}
        assert [trials[each].epochs_to_target for each in points.customdata] == pytest.approx(
            list(points.y)
        )

    @pytest.mark.parametrize(
        ("state", "batch", "epochs", "symbol"),
        [
            (TrialState.CENSORED, 16, 40.0, "triangle-up"),
            (TrialState.PRUNED, 32, 4.0, "triangle-up-open"),
            (TrialState.DIVERGED, 64, 1.5, "x"),
            (TrialState.FAILED, 128, 3.0, "hash-open"),
        ],
    )
    def test_other_endings_stand_where_they_were_stopped(
        self, ladder: Any, state: TrialState, batch: int, epochs: float, symbol: str
    ) -> None:
        points = named_state(ladder, state)
        assert points.y[0] == epochs
        assert nearest_rung(points.x[0]) == batch
        assert points.marker.symbol == symbol

    def test_a_trial_that_diverged_at_once_is_not_lost(self, ladder: Any) -> None:
        low, high = (10**end for end in ladder.layout.yaxis.range)
        points = named_state(ladder, TrialState.DIVERGED)
        assert len(points.y) == 2
        assert low < points.y[1] < 1.1 * low < high
        assert "before its first evaluation" in points.hovertext[1]

    def test_points_of_a_rung_keep_clear_of_the_next(self, ladder: Any) -> None:
        x = np.array(named_state(ladder, TrialState.REACHED).x)
        rungs = np.array([nearest_rung(each) for each in x])
        assert len(set(x)) == len(x)
        assert np.all(np.abs(np.log(x / rungs)) < math.log(2) / 4)

    def test_best_settings_of_each_rung(self, ladder: Any) -> None:
        best = named(ladder, "best settings of a rung")
        expected = [
            min(math.sqrt(epochs_at(batch, rate, 0) * epochs_at(batch, rate, 1)) for rate in RATES)
            for batch in LADDER
        ]
        assert list(best.x) == list(LADDER)
        assert list(best.y) == pytest.approx(expected)

    def test_the_law_is_the_posterior_s_and_rises(self, view: StudyView, ladder: Any) -> None:
        fitted, beyond = named(ladder, "law with 90 % band"), named(ladder, "law beyond the ladder")
        assert fitted.x[0] == LADDER[0]
        assert fitted.x[-1] == beyond.x[0] == LADDER[-1]
        assert beyond.x[-1] == pytest.approx(FULL_SCALE)
        assert np.all(np.diff([*fitted.y, *beyond.y[1:]]) > 0)
        assert (fitted.line.dash, beyond.line.dash) == ("solid", "dash")
        assert view.posterior is not None
        assert beyond.y[-1] == pytest.approx(epochs_band(view.posterior, [FULL_SCALE]).median[0])

    def test_the_band_covers_the_law_and_the_best_points(self, ladder: Any) -> None:
        band, law = named(ladder, "90 % band"), named(ladder, "law with 90 % band")
        half = len(band.x) // 2
        batches, high, low = (
            np.array(band.x[:half]),
            np.array(band.y[:half]),
            np.array(band.y[half:])[::-1],
        )
        inside = batches <= LADDER[-1]
        assert np.all(low < high)
        assert np.all((low[inside] <= law.y) & (law.y <= high[inside]))
        best = named(ladder, "best settings of a rung")
        for batch, epochs in zip(best.x, best.y, strict=True):
            assert np.interp(batch, batches, low) < epochs < np.interp(batch, batches, high)

    @pytest.mark.parametrize("made", [lambda result, _: result, with_forecast])
    def test_how_earlier_forecasts_held_spreads_the_band_as_the_forecast(
        self, view: StudyView, ladder: Any, made: Callable[..., StudyResult]
    ) -> None:
        two_sds = (
            2 * math.log(1.25) / 1.6448536
        )  # the rows' intervals are from 10 / 1.25 to 10 * 1.25
        past = tuple(
            calibration_row(plan_id, 10.0, 10 * math.exp(two_sds), False) for plan_id in range(6)
        )
        told = dataclasses.replace(view.result, past=(*view.result.past, *past), forecast=None)
        drawn = figures.ladder(made(told, view.posterior), view.posterior)
        band, forecast = named(drawn, "90 % band"), named(drawn, "forecast, 90 % interval")
        half = len(band.x) // 2
        high, low = (
            band.y[half - 1],
            band.y[half],
        )  # at the largest batch, where the band turns back
        assert band.x[half - 1] == band.x[half] == pytest.approx(forecast.x[0])
        assert (low, high) == pytest.approx(
            (
                forecast.y[0] - forecast.error_y.arrayminus[0],
                forecast.y[0] + forecast.error_y.array[0],
            )
        )
        before = named(ladder, "90 % band")
        scale = math.log(high / low) / math.log(before.y[half - 1] / before.y[half])
        assert scale == pytest.approx(
            math.sqrt((6 + 6 * 2**2) / (6 + 6))
        )  # a start belief counts as six

    def test_the_forecast_is_the_result_s(self, view: StudyView, ladder: Any) -> None:
        forecast = named(ladder, "forecast, 90 % interval")
        assert view.result.forecast is not None
        ends = view.result.forecast.epochs_to_target
        assert (forecast.x[0], forecast.y[0]) == (FULL_SCALE, ends.median)
        assert forecast.y[0] + forecast.error_y.array[0] == pytest.approx(ends.high)
        assert forecast.y[0] - forecast.error_y.arrayminus[0] == pytest.approx(ends.low)

    def test_the_critical_batch_size_is_marked(self, view: StudyView, ladder: Any) -> None:
        assert view.posterior is not None
        critical = float(np.median(np.exp(view.posterior.values["log_critical"])))
        assert list(named(ladder, "critical batch size").x) == pytest.approx([critical, critical])
        label = next(each for each in ladder.layout.annotations if "critical" in each.text)
        assert str(round(critical)) in label.text
        low, high = ladder.layout.xaxis.range
        assert label.x == pytest.approx((math.log10(critical) - low) / (high - low))

    @pytest.mark.parametrize("kind", list(OUTCOMES))
    def test_outcomes_of_the_plans(self, ladder: Any, kind: PlanKind) -> None:
        launches = named(ladder, style.KINDS[kind].name)
        assert list(launches.y) == [epochs or 60.0 for epochs in OUTCOMES[kind]]
        missed = [symbol.endswith("-open") for symbol in launches.marker.symbol]
        assert missed == [epochs is None for epochs in OUTCOMES[kind]]
        assert all(FULL_SCALE < x < 10 ** ladder.layout.xaxis.range[1] for x in launches.x)

    def test_ticks_stand_at_the_rungs(self, ladder: Any) -> None:
        assert list(ladder.layout.xaxis.tickvals) == [*LADDER, FULL_SCALE]
        assert ladder.layout.xaxis.type == ladder.layout.yaxis.type == "log"

    def test_without_a_posterior_there_is_no_law(self, view: StudyView) -> None:
        names = [trace.name for trace in figures.ladder(view.result).data]
        assert "law with 90 % band" not in names
        assert "forecast, 90 % interval" in names


class TestSettingAgainstBatch:
    def test_points_are_values_coloured_by_epochs(self, rates: Any) -> None:
        points = named_state(rates, TrialState.REACHED)
        assert list(points.y) == [rate for _ in LADDER for rate in RATES for _ in (0, 1)]
        epochs = [
            epochs_at(batch, rate, seed) for batch in LADDER for rate in RATES for seed in (0, 1)
        ]
        assert 10 ** np.array(points.marker.color) == pytest.approx(epochs)

    def test_law_and_forecast(self, view: StudyView, rates: Any) -> None:
        assert view.posterior is not None
        assert view.result.forecast is not None
        law, forecast = (
            named(rates, "law beyond the ladder"),
            named(rates, "forecast, 90 % interval"),
        )
        at_full_scale = setting_band(view.posterior, "learning_rate", [FULL_SCALE]).median[0]
        assert law.y[-1] == pytest.approx(at_full_scale)
        assert forecast.y[0] == view.result.forecast.numbers.settings["learning_rate"].median
        assert list(named(rates, style.KINDS[PlanKind.FORECAST].name).y) == [0.7, 0.7]

    def test_a_choice_has_categories_and_no_law(self, view: StudyView) -> None:
        figure = figures.setting_against_batch(view.result, "nesterov", view.posterior)
        assert figure.layout.yaxis.type == "category"
        assert set(named_state(figure, TrialState.REACHED).y) == {"False"}
        assert "90 % band" not in [trace.name for trace in figure.data]

    @pytest.mark.parametrize("draw", [figures.setting_against_batch, figures.response])
    def test_a_setting_that_is_not_tuned(self, view: StudyView, draw: Any) -> None:
        with pytest.raises(
            EvidenceError, match=r"tunes \(learning_rate, nesterov\), but got 'momentum'"
        ):
            draw(view.result, "momentum")


class TestLearningCurves:
    def test_a_line_for_each_trial_that_was_evaluated(self, view: StudyView) -> None:
        figure = figures.learning_curves(view.result, view.convergence)
        curves = {trace.meta: trace for trace in figure.data if trace.meta is not None}
        numbers = {trial.number for trial in view.result.trials if trial.epochs}
        assert curves.keys() == numbers
        assert curves[0].x.tolist() == pytest.approx(
            [(epochs_at(16, 0.05, 0) + 0.5) * part / 3 for part in (1, 2, 3)]
        )
        assert curves[0].y.tolist() == pytest.approx([0.3, 0.6, 0.9])
        pruned = next(trial for trial in view.result.trials if trial.state is TrialState.PRUNED)
        assert curves[pruned.number].opacity < 0.5 < curves[0].opacity
        assert len({curve.line.color for curve in curves.values()}) == len(LADDER)
        assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 0.9

    def test_one_rung(self, view: StudyView) -> None:
        figure = figures.learning_curves(view.result, view.convergence, 32)
        assert {trace.name for trace in figure.data} == {"32"}
        with pytest.raises(EvidenceError, match="16, 32, 64, 128"):
            figures.learning_curves(view.result, view.convergence, 33)


def test_response_has_every_ended_trial_once(view: StudyView) -> None:
    figure = figures.response(view.result, "learning_rate")
    shown = Counter(
        each for trace in figure.data if trace.customdata is not None for each in trace.customdata
    )
    assert shown == Counter(trial.number for trial in view.result.trials if trial.state.finished)
    trials = {trial.number: trial for trial in view.result.trials}
    first = next(trace for trace in figure.data if trace.customdata is not None)
    assert list(first.x) == [trials[each].settings["learning_rate"] for each in first.customdata]


def test_what_was_stopped_long_before_the_target_stands_at_the_foot(tmp_path: Path) -> None:
    results = (reached(40.0), ended(TrialState.PRUNED, 20.0), ended(TrialState.DIVERGED, 0.1))
    with Store.open(url_of(tmp_path)) as store:
        study_id = make_study(store)
        for seed, result in enumerate(results):
            add_trial(store, study_id, 16, 0.1, seed, result)
    result = load_study_view("small", url_of(tmp_path)).result
    figure = figures.ladder(result)
    assert 10 ** figure.layout.yaxis.range[0] == pytest.approx(10.0)
    assert named_state(figure, TrialState.PRUNED).y[0] == 20.0
    assert named_state(figure, TrialState.DIVERGED).y[0] == pytest.approx(10.5)
    assert "diverged after 0.1 epochs" in named_state(figure, TrialState.DIVERGED).hovertext[0]
    assert sorted(figures.response(result, "learning_rate").data[0].y) == pytest.approx(
        [10.5, 20.0, 40.0]
    )


def test_validation_shows_the_interval_and_each_launch(view: StudyView) -> None:
    figure = figures.validation(view.result)
    assert list(named(figure, "90 % interval forecast").x) == [15.0, 22.0]
    assert list(named(figure, "median forecast").x) == [18.0]
    launches = named(figure, style.KINDS[PlanKind.LINEAR_SCALING].name)
    assert list(launches.x) == [25.0, 60.0]
    assert set(launches.y) == {"linear scaling"}


def calibration_row(
    plan_id: int, predicted: float | None, observed: float | None, inside: bool | None
) -> CalibrationRow:
    ends = (predicted, predicted and predicted * 0.8, predicted and predicted * 1.25)
    return CalibrationRow(
        plan_id=plan_id,
        study="a",
        kind=PlanKind.FORECAST,
        trust=Trust.HIGH,
        machine="local",
        global_batch_size=256,
        predicted_epochs_median=ends[0],
        predicted_epochs_low=ends[1],
        predicted_epochs_high=ends[2],
        observed_epochs_mean=observed,
        runs=2,
        reached=2,
        inside=inside,
        predicted_seconds_median=None,
        predicted_seconds_low=None,
        predicted_seconds_high=None,
        observed_seconds_mean=None,
    )


def test_calibration_places_plans_by_verdict() -> None:
    figure = figures.calibration(
        [
            calibration_row(1, 10.0, 11.0, True),
            calibration_row(2, 10.0, 20.0, False),
            calibration_row(3, None, 20.0, None),
            calibration_row(4, 10.0, None, None),
        ]
    )
    inside, outside = named(figure, "inside the interval"), named(figure, "outside")
    assert (list(inside.x), list(inside.y), list(inside.customdata)) == ([10.0], [11.0], [1])
    assert (list(outside.x), list(outside.y)) == ([10.0], [20.0])
    assert inside.error_x.array[0] == pytest.approx(2.5)
    assert {trace.name for trace in figure.data} == {
        "observed as predicted",
        "inside the interval",
        "outside",
    }
    diagonal = named(figure, "observed as predicted")
    assert list(diagonal.x) == list(diagonal.y)


def test_calibration_without_rows_says_so() -> None:
    assert "yet" in figures.calibration([]).layout.annotations[0].text


def test_markup_in_names_and_reasons_is_shown_as_text(tmp_path: Path, view: StudyView) -> None:
    diverged = named_state(figures.ladder(view.result), TrialState.DIVERGED)
    assert "&lt;b&gt;blew up&lt;/b&gt;" in diverged.hovertext[0]
    assert "<b>" not in diverged.hovertext[0]
    with Store.open(url_of(tmp_path)) as store:
        make_study(store, name="<b>bold</b> & <a href='x'>link</a>")
    result = load_study_view("<b>bold</b> & <a href='x'>link</a>", url_of(tmp_path)).result
    title = figures.ladder(result).layout.title.text
    assert title.startswith("&lt;b&gt;bold&lt;/b&gt; &amp; &lt;a href")
    assert "<" not in title


def test_hover_texts_tell_number_settings_seed_and_reason(view: StudyView) -> None:
    text = named_state(figures.ladder(view.result), TrialState.PRUNED).hovertext[0]
    for part in (
        "trial 41",
        "pruned after 4 epochs",
        "global batch size 32",
        "seed 0",
        "learning rate 0.012",
        "half did better",
    ):
        assert part in text


def degenerate(tmp_path: Path) -> Iterator[StudyView]:
    for name, results in (
        ("none", []),
        ("queued", [None]),
        ("diverged", [ended(TrialState.DIVERGED, None)] * 3),
        ("failed", [ended(TrialState.FAILED, 0.0)]),
        ("one", [reached(4.0)]),
    ):
        with Store.open(url_of(tmp_path)) as store:
            study_id = make_study(store, name=name)
            for seed, result in enumerate(results):
                add_trial(store, study_id, 16, 0.1, seed, result)
        yield load_study_view(name, url_of(tmp_path))


def test_degenerate_studies_have_figures(tmp_path: Path) -> None:
    for view in degenerate(tmp_path):
        law = view.posterior
        drawn = [
            figures.ladder(view.result, law),
            figures.setting_against_batch(view.result, "learning_rate", law),
            figures.learning_curves(view.result, view.convergence),
            figures.response(view.result, "learning_rate"),
            figures.response(view.result, "nesterov"),
            figures.validation(view.result),
        ]
        for figure in drawn:
            assert figure.to_json()
        says = [each.text for each in drawn[0].layout.annotations]
        assert (view.result.study.name == "one") != any("no trial" in text for text in says)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 1100, [1, 10, 100, 1000]),
        (4, 120, [5, 10, 20, 50, 100]),
        (8, 17, [8, 10, 12, 14, 16]),
        (0.02, 1.5, [0.02, 0.05, 0.1, 0.2, 0.5, 1]),
        (10.1, 10.9, [10.2, 10.4, 10.6, 10.8]),
        (30, 36, [30, 32, 34, 36]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, expected: list[float]) -> None:
    assert style.log_ticks(low, high) == pytest.approx(expected)


def test_words() -> None:
    assert [format_number(value) for value in (None, 7, 123456, 0.12345, 99.96, 12345.6, True)] == [
        "",
        "7",
        "123,456",
        "0.123",
        "100",
        "12,346",
        "True",
    ]
    assert format_interval(Interval(36.24, 22.63, 152.0)) == "36.2 (22.6 to 152)"
    assert (
        setting_with_unit("learning_rate"),
        setting_with_unit("warmup_epochs"),
        setting_with_unit("momentum"),
    ) == (
        "learning rate (per update)",
        "warmup epochs",
        "momentum",
    )
