"""Plug-ins that are faulty, missing or uninstalled since: one line where they are used, and nothing elsewhere."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

import trainers.optimizers
from hpo.cli.commands import doctor_checks
from hpo.cli.commands.init import study_beginnings
from hpo.cli.main import main
from hpo.errors import ExportError, SpecError
from hpo.planning.request import PlanRequest
from hpo.runs.checks import check_workload
from hpo.runs.exports.tracking import make_tracker
from hpo.runs.repository import enter_study, stored_spec
from hpo.runs.study_plan import choose_plan
from hpo.study.jobs import training_job, workload_data
from hpo.study.spec import StudySpec, parse_study
from hpo.study.trackers import TrackerChoice, trackers_allowed_here
from hpo.testing import other_value
from hpo.tuning.generation.samplers import make_sampler
from search_spaces.own_settings import OwnSetting, Range
from search_spaces.settings import TrainingSettings
from storage.store import Store
from tests.fake_package import install_package
from trainers.optimizers.torch_optimizers import optimizer_class

Install = Callable[[Mapping[str, Mapping[str, str]], str], None]
STUDY = """
name: plugged
workload: noisy_quadratic
data: {modes: 10, train_samples: 64}
target: {metric: loss, at_most: 0.1}
ladder: [16, 32]
search: {learning_rate: {log_uniform: [0.001, 0.1], role: scaled}}
budget: {trials: 4, epochs_per_trial: 4, race: 0}
"""
GROWN = """
name: grown
workload: growing
target: {metric: loss, at_most: 0.1}
ladder: {global_batch_size: [16, 32], width: [1, 2]}
full_scale: {global_batch_size: 64, width: 8}
search: {learning_rate: {log_uniform: [0.001, 0.1], role: scaled}, normalization_batch_size: 1}
budget: {trials: 8, epochs_per_trial: 4, race: 0}
"""
WORKLOAD = """
from trainers.workloads.described import WorkloadDescription
GROWING = WorkloadDescription(
    rule="trainers.workloads.resnet.task:ResNetWorkload", about="grows", source="nowhere", grows=("width",)
)
"""
_numbers = itertools.count()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """A function that installs a package; ``@`` in its entry points is the module with the given text."""

    def put(entries: Mapping[str, Mapping[str, str]], text: str) -> None:
        module = f"plugged_module_{next(_numbers)}"
        install_package(
            monkeypatch,
            tmp_path,
            f"some-{module.replace('_', '-')}",
            {
                f"largebatch.{kind}": {k: v.replace("@", module) for k, v in named.items()}
                for kind, named in entries.items()
            },
            {f"{module}.py": text.replace("@", module)},
        )

    return put


def _broken(install: Install, *kinds: str) -> None:
    install({kind: {"aardvark": "no_such_module_anywhere:X"} for kind in kinds}, "")


def test_a_study_with_a_faulty_workload_is_refused_in_one_line(install: Install) -> None:
    _broken(install, "workloads")
    for text in (
        STUDY.replace("noisy_quadratic", "aardvark"),
        GROWN.replace("growing", "aardvark"),
    ):
        with pytest.raises(SpecError, match=r"'aardvark' cannot be used: the plug-in aardvark .*"):
            check_workload(parse_study(text))


def test_a_faulty_workload_does_not_hide_what_another_study_lacks(install: Install) -> None:
    _broken(install, "workloads")
    text = GROWN.replace("growing", "noisy_quadratic")
    with pytest.raises(SpecError, match="has no option width") as caught:
        parse_study(text)
    assert "aardvark" not in str(caught.value) and "resnet" in str(caught.value)


def test_no_plan_is_made_without_the_sizes_of_its_model(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_study(GROWN)
    with monkeypatch.context() as without:
        without.setattr("hpo.runs.study_plan.forecast_at", lambda *_: None)
        made = _Made(spec)
        with pytest.raises(SpecError, match="'growing', whose sizes the ladder varies"):
            choose_plan(made, PlanRequest.of(machine="local"))  # type: ignore[arg-type]
    install({"workloads": {"growing": "@:GROWING"}}, WORKLOAD)
    assert workload_data(spec)["width"] == 8
    job = training_job(spec, TrainingSettings.from_record({"own": {"width": 2}}), 16, 0)
    assert job.data["width"] == 2


@dataclasses.dataclass
class _Made:
    spec: StudySpec
    global_batch_size: int = 64


def test_a_faulty_optimizer_hides_no_other_class(install: Install) -> None:
    optimizer_class.cache_clear()
    _broken(install, "optimizers")
    tiger = """
from search_spaces.techniques.optimizers import OptimizerDescription
TIGER = OptimizerDescription(
    title="Tiger", rule="trainers.optimizers.sgd:SGDRule", about="a tiger", source="nowhere", state_bytes=4
)
"""
    install({"optimizers": {"tiger": "@:TIGER"}}, tiger)
    assert not hasattr(trainers.optimizers, "Wolf")
    assert trainers.optimizers.Tiger.rule == "tiger"
    optimizer_class.cache_clear()


def test_hpo_init_names_no_faulty_optimizer(install: Install, tmp_path: Path) -> None:
    _broken(install, "optimizers")
    assert "digits" in study_beginnings()
    path = tmp_path / "new.yaml"
    done = CliRunner().invoke(main, ["init", "--defaults", "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert "lars" in path.read_text() and "aardvark" not in path.read_text()


def test_the_doctor_finds_trackers_misplaced_names_and_rules_that_do_not_import(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(install, "trackers")
    described = """
from hpo.study.trackers import TrackerDescription
from hpo.study.samplers import SamplerDescription
BOOK = TrackerDescription(rule="@:Book", about="a book", source="nowhere")
DICE = SamplerDescription(rule="@:nothing_here", about="dice", source="nowhere")
class Book: ...
"""
    install(
        {
            "trackers": {"book": "@:BOOK"},
            "samplers": {"dice": "@:DICE"},
            "schedules": {"sawtooth": "@:X", "decays.sawtooth": "@:X"},
        },
        described,
    )
    found = [(each.level, each.message) for each in doctor_checks.plugins(quick=True)]
    assert ("ok", True) in [(level, "book (largebatch.trackers)" in text) for level, text in found]
    failed = [text for level, text in found if level == "fail"]
    assert len(failed) == 3, found
    assert "aardvark (largebatch.trackers)" in failed[0]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    every = [each.message for each in doctor_checks.plugins(quick=False) if each.level == "fail"]
    assert every[:3] == failed and len(every) == 4
    assert "nothing_here, which cannot be imported: AttributeError" in every[3]
    for text in failed[1:]:
        assert (
            "it must be batch_control.sawtooth or decay.sawtooth or warmup_shape.sawtooth" in text
        )


def test_a_study_goes_on_without_a_tracker_or_sampler_that_was_uninstalled(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'hpo.db'}"
    with monkeypatch.context(), Store.open(url) as store:
        before = STUDY + "trackers: [{book: {page: one}}]\nsampler: dice\n"
        described = """
from hpo.study.trackers import TrackerDescription
from hpo.study.samplers import SamplerDescription
BOOK = TrackerDescription(rule="@:Book", about="a book", source="nowhere", settings={"page": "which"})
DICE = SamplerDescription(rule="hpo.tuning.generation.samplers:random", about="dice", source="nowhere")
"""
        install({"trackers": {"book": "@:BOOK"}, "samplers": {"dice": "@:DICE"}}, described)
        enter_study(store, parse_study(before))
        enter_study(store, parse_study(before.replace("plugged", "tracked").replace("dice", "tpe")))
    monkeypatch.setenv("HPO_PLUGINS", "")
    with Store.open(url) as store:
        tracked = stored_spec(store.study("tracked"))
        assert tracked.trackers == (TrackerChoice("book", {"page": "one"}),)
        assert tracked.renamed("read").trackers == tracked.trackers
        allowed, refused = trackers_allowed_here(tracked.trackers, ["book"])
        assert not allowed and "not among the plug-ins" in refused[0]
        with pytest.raises(ExportError, match="there is no tracker 'book'"):
            make_tracker(tracked.trackers[0], store.study("tracked"), tracked, tmp_path)
        with pytest.raises(SpecError, match="'dice'"):
            stored_spec(store.study("plugged"))
        assert enter_study(store, parse_study(STUDY)).name == "plugged"
        other = parse_study(STUDY.replace("0.001", "0.002"))
        with pytest.raises(SpecError, match="with another search"):
            enter_study(store, other)
    with pytest.raises(SpecError, match="trackers must name one of"):
        parse_study(before)


def test_a_tracker_that_fails_ends_its_export_in_one_line(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = """
from hpo.study.trackers import TrackerDescription
BOOK = TrackerDescription(rule="@:Book", about="a book", source="nowhere")
class Book:
    def __init__(self, study, spec, folder):
        raise RuntimeError("no paper")
"""
    install({"trackers": {"book": "@:BOOK"}}, described)
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'hpo.db'}"
    with Store.open(url) as store:
        enter_study(store, parse_study(STUDY + "trackers: [book]\n"))
    done = CliRunner().invoke(main, ["export", "trackers", "plugged", "--storage", url])
    assert done.exit_code == 2 and "tracker book: RuntimeError: no paper" in done.output


IMPORTER = """
from hpo.past_runs.importers import ImporterDescription, ImporterOption
NOTES = ImporterDescription(rule="@:read", about="notes", source="nowhere", file=False, options={OPTIONS})
def read(source, **options):
    if source == "list":
        return [1]
    raise RuntimeError("torn page")
"""


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("x", "", "importer 'notes' cannot read x: "),
        ("x", "", "failed: RuntimeError: torn page"),
        ("list", "", "importer 'notes' must return a list of PastRun"),
        (
            "x",
            '"study": ImporterOption(what="?")',
            "its option study is one that all importers have",
        ),
        ("x", '"Big one": ImporterOption(what="?")', "an option must be lowercase letters"),
    ],
)
def test_an_importer_that_fails_does_so_in_one_line(
    install: Install, tmp_path: Path, source: str, options: str, said: str
) -> None:
    install({"importers": {"notes": "@:NOTES"}}, IMPORTER.replace("OPTIONS", options))
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["import", "notes", source, "--study", str(tmp_path / "study.yaml")]
    done = CliRunner().invoke(main, [*words, "--storage", f"sqlite:///{tmp_path / 'hpo.db'}"])
    assert done.exit_code == 2 and said in done.output, done.output


def test_the_names_of_common_options_are_those_of_the_command() -> None:
    from hpo.cli.commands.imports import importing
    from hpo.past_runs.importers import COMMON, IMPORTERS

    command = importing.get_command(None, "csv")  # type: ignore[arg-type]
    assert command is not None
    names = {each.name for each in command.params} | {
        flag.lstrip("-").replace("-", "_") for each in command.params for flag in each.opts
    }
    assert names - set(IMPORTERS["csv"].options) <= COMMON


def test_a_sampler_that_lacks_a_library_is_refused_in_one_line(install: Install) -> None:
    described = """
from hpo.study.samplers import SamplerDescription
DICE = SamplerDescription(rule="@:dice", about="dice", source="nowhere")
def dice(seed):
    import no_such_module_anywhere
"""
    install({"samplers": {"dice": "@:DICE"}}, described)
    spec = parse_study(STUDY + "sampler: dice\n")
    with pytest.raises(SpecError, match=r"sampler 'dice' cannot be used: .* refuses: No module"):
        make_sampler(spec, spec.ladder).suggest(16)


@pytest.mark.parametrize(
    ("default", "low", "high", "whole"),
    [(50, 10, 1000, True), (1e-4, 0, 1e-3, False), (None, 100, 200, True), (-2.0, -5, -1, False)],
)
def test_the_contract_tests_find_another_value_in_any_range(
    default: float | None, low: float, high: float, whole: bool
) -> None:
    found = other_value(OwnSetting(what="?", default=default, range=Range(low, high), whole=whole))
    assert low <= found <= high and found != default
