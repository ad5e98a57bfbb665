"""The figure of a model's sample images: every field, labels and prediction, with a legend of the classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dashboard_samples import add_plans, fill, make_study, url_of
from made_sample_images import CLASSES, make_sample_images

from hpo.cli.output import tables
from hpo.dashboard import figures
from hpo.dashboard.report import write_report
from hpo.dashboard.sample_image_figures import CLASS_COLOURS, class_colour
from hpo.runs import api
from storage.store import Store


def test_every_picture_is_the_array_that_was_given() -> None:
    shown = make_sample_images()
    figure = figures.sample_images(shown)
    heatmaps = [trace for trace in figure.data if trace.type == "heatmap"]
    given = [
        picture
        for panel in shown["panels"]
        for picture in (*panel["fields"].values(), panel["labels"], panel["prediction"])
    ]
    assert len(heatmaps) == len(given) == 8
    for trace, rows in zip(heatmaps, given, strict=True):
        np.testing.assert_array_equal(np.asarray(trace.z), rows)
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["moisture", "pressure", "labels", "prediction"]
    assert [axis.title.text for axis in figure.select_yaxes(col=1)] == ["sample 7", "sample 8"]
    assert all(
        axis.autorange == "reversed" for axis in figure.select_yaxes()
    )  # the first row is the top


def test_each_label_has_the_colour_of_its_class() -> None:
    figure = figures.sample_images(make_sample_images(1))
    labels = next(
        trace
        for trace in figure.data
        if trace.type == "heatmap" and "labels" in trace.hovertemplate
    )
    legend = {trace.name: trace.marker.color for trace in figure.data if trace.type == "scatter"}
    assert list(legend) == CLASSES
    for label, name in enumerate(CLASSES):
        place = (label - labels.zmin) / (labels.zmax - labels.zmin)
        below = [colour for at, colour in labels.colorscale if at <= place]
        above = [colour for at, colour in labels.colorscale if at >= place]
        assert below[-1] == above[0] == legend[name] == class_colour(label)
        assert np.asarray(labels.text)[np.asarray(labels.z) == label][0] == name


def test_many_classes_and_single_pictures() -> None:
    many = [str(number) for number in range(len(CLASS_COLOURS) + 2)]
    wide = figures.sample_images(
        {"classes": many, "panels": [{"prediction": [[len(many) - 1, 0]]}]}
    )
    assert [trace.type for trace in wide.data].count("heatmap") == 1
    bare = figures.sample_images(
        {"panels": [{"name": "<b>", "fields": {"<i>": [[0, 9]]}}, {"fields": {"other": [[1]]}}]}
    )
    assert [note.text for note in bare.layout.annotations] == ["&lt;i&gt;", "other"]
    assert [trace.type for trace in bare.data] == ["heatmap", "heatmap"]
    assert "there is no picture" in figures.sample_images({}).layout.annotations[0].text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    with Store.open(url_of(folder)) as store:
        study_id = make_study(store)
        fill(store, study_id)
        add_plans(store, study_id)
        by_rule = store.plans(1)[1]
        store.add_sample_images(
            store.outcomes(by_rule.id)[0].id, {**make_sample_images(), "title": "of another plan"}
        )
        first, second = store.outcomes(1)
        store.add_sample_images(first.id, {"title": "the earlier run's"})
        store.add_sample_images(second.id, make_sample_images())
    return folder


@pytest.mark.slow
@pytest.mark.fit
def test_the_report_shows_the_newest_run_of_the_forecast(folder: Path) -> None:
    text = write_report("small", url_of(folder), folder / "report.html").read_text("utf-8")
    assert (
        "Settings from forecast, global batch size 256, seed 3: top1 not measured; majority class 0.325; "
        "per-pixel linear classifier 0.413. Fields are shown in grey" in text
    )
    assert (
        "<h2>Weather: fields, labels and prediction</h2>" in text and "of another plan" not in text
    )
    assert text.count('<div id="figure-sample-images"') == 1


def test_the_references_stand_beside_what_was_reached(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = api.read_study("small", url_of(folder))
    outcome = json.loads(json.dumps(result.to_dict()))["outcome"]
    assert [each["references"] for each in outcome["outcomes"]] == [
        None,
        make_sample_images()["references"],
    ]
    tables.show_study(result)
    assert (
        "forecast at 256, seed 3: top1 not measured; majority class 0.325; per-pixel linear classifier 0.413"
        in capsys.readouterr().out
    )
