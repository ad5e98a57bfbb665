"""A service accepts the plug-ins of packages that its operator names, and imports no others."""

from pathlib import Path

import pytest
from api_server import served, spec_of
from click.testing import CliRunner

from hpo.cli.commands.server import serve
from hpo.errors import SpecError
from hpo.runs.repository import enter_study
from hpo.service.checking import CheckerPool
from hpo.service.config import ServerConfig, load_server_config
from hpo.study.spec import parse_study
from tests.fake_package import install_package

MODULE = """
from pathlib import Path
from search_spaces.own_settings import OwnSetting, Range
from search_spaces.techniques.optimizers import OptimizerDescription
Path(__file__).with_name("imported").touch()
TIGER = OptimizerDescription(
    title="Tiger", rule="trainers.optimizers.sgd:SGDRule", about="a tiger", source="nowhere", state_bytes=4,
    settings={"tiger_stripes": OwnSetting(what="stripes", default=3, range=Range(1), whole=True)},
)
"""
STUDY = """
name: tigers
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.9}
ladder: [32, 64]
search: {optimizer: tiger, learning_rate: {log_uniform: [0.01, 1], role: scaled}, tiger_stripes: STRIPES}
budget: {trials: 4, epochs_per_trial: 2}
"""


@pytest.mark.parametrize(
    ("taken", "stripes", "fault"),
    [
        ((), "4", "package some-tigers 1.0 is not among the plug-ins that this service accepts"),
        (("other",), "4", "the operator can add some-tigers to plugins"),
        (("Some_Tigers",), "4", None),
        (("some-tigers",), "0", r"tiger_stripes must lie in \[1, inf\], but got 0"),
    ],
)
def test_a_submission_names_plug_ins_of_listed_packages_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    taken: tuple[str, ...],
    stripes: str,
    fault: str | None,
) -> None:
    site = install_package(
        monkeypatch,
        tmp_path,
        "some-tigers",
        {"largebatch.optimizers": {"tiger": "tigers_of_a_test:TIGER"}},
        {"tigers_of_a_test.py": MODULE},
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    checker = CheckerPool(ServerConfig.model_validate({"plugins": taken}))
    try:
        if fault is None:
            assert checker.check(STUDY.replace("STRIPES", stripes)).name == "tigers"
        else:
            with pytest.raises(SpecError, match=fault):
                checker.check(STUDY.replace("STRIPES", stripes))
    finally:
        checker.close()
    imported = (site / "imported").exists()
    assert imported == any("tigers" in each.lower() for each in taken)


WORKLOAD = """
from pathlib import Path
from trainers.workloads.described import WorkloadDescription
Path(__file__).with_name("imported").touch()
OVALS = WorkloadDescription(
    rule="trainers.workloads.noisy_quadratic.task:NoisyQuadratic", about="ovals", source="nowhere", needs_torch=False,
)
"""


@pytest.mark.parametrize(
    ("taken", "named", "fault"),
    [
        ((), True, "package some-ovals 1.0 is not among the plug-ins that this service accepts"),
        (("some-ovals",), False, "workload must be one that this server allows"),
        (("some-ovals",), True, None),
    ],
)
def test_a_submission_trains_a_plug_in_s_workload_where_both_are_listed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    taken: tuple[str, ...],
    named: bool,
    fault: str | None,
) -> None:
    site = install_package(
        monkeypatch,
        tmp_path,
        "some-ovals",
        {"largebatch.workloads": {"ovals": "ovals_of_a_test:OVALS"}},
        {"ovals_of_a_test.py": WORKLOAD},
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    study = (
        STUDY.replace("resnet", "ovals")
        .replace("{source: digits}", "{modes: 20}")
        .replace("metric: top1, at_least: 0.9", "metric: loss, at_most: 0.9")
        .replace("optimizer: tiger", "optimizer: sgd")
        .replace(", tiger_stripes: STRIPES", "")
    )
    workloads = ("noisy_quadratic", *(("ovals",) if named else ()))
    checker = CheckerPool(ServerConfig.model_validate({"plugins": taken, "workloads": workloads}))
    try:
        if fault is None:
            assert checker.check(study).workload == "ovals"
        else:
            with pytest.raises(SpecError, match=fault):
                checker.check(study)
    finally:
        checker.close()
    assert (site / "imported").exists() == bool(taken)


def test_packages_are_named_by_options_and_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the error of a study says: ``hpo serve --plugin PACKAGE``, or HPO_PLUGINS."""
    said: list[ServerConfig] = []
    monkeypatch.setattr(
        "hpo.service.serving.serve_until_stopped", lambda config, **_: said.append(config)
    )
    for words, variables, taken in (
        ((), {}, ()),
        (("--plugin", "one", "--plugin", "two"), {}, ("one", "two")),
        ((), {"HPO_PLUGINS": "one,two"}, ("one", "two")),
        ((), {"HPO_PLUGINS": "one", "HPO_SERVE_PLUGINS": "two"}, ("two",)),
        (("--plugin", "three"), {"HPO_PLUGINS": "one"}, ("three",)),
    ):
        done = CliRunner().invoke(serve, words, env={"HPO_PLUGINS": None, **variables})
        assert done.exit_code == 0, done.output
        assert said.pop().plugins == taken
    assert load_server_config(None, {"HPO_PLUGINS": ""}).plugins == ()


def test_a_forecast_says_why_a_study_with_another_plug_in_cannot_be_read(tmp_path: Path) -> None:
    with served(tmp_path) as api:
        spec = parse_study(spec_of())
        text = spec.text.replace("sampler:", "#").rstrip() + "\nsampler: dice\n"
        api.store.update_spec(enter_study(api.store, spec).id, text)
        for path in ("forecast", "designs"):
            answer = api.call("GET", f"/studies/{spec.name}/{path}")
            assert answer.status_code == 422 and "got 'dice'" in answer.text, answer.text
