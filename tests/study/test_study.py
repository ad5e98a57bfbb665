import pickle
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo import errors
from hpo.errors import SpecError
from hpo.study.samplers import SAMPLERS
from hpo.study.spec import StudySpec, check_study_target, load_study, parse_study
from hpo.study.yaml_text import MAX_BYTES, read, write
from search_spaces import Float, Role

EXAMPLE = """\
name: digits
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.96}
ladder: [16, 32, 64, 128]
full_scale: {global_batch_size: 512, machine: local, workers: 2, validate: true}
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.01, 1.28], role: scaled}
  warmup_epochs: {uniform: [0, 5], role: scaled}
  momentum: 0.9
budget: {trials: 48, epochs_per_trial: 40}
seeds: 2
"""
SMALLEST = "\n".join(
    line for line in EXAMPLE.splitlines() if not line.startswith(("data", "full", "seeds"))
)


def test_the_example_is_read() -> None:
    spec = parse_study(EXAMPLE, "studies/digits.yaml")
    assert (spec.name, spec.workload, spec.data) == ("digits", "resnet", {"source": "digits"})
    assert (spec.target.metric, spec.target.threshold, spec.target.higher_is_better) == (
        "top1",
        0.96,
        True,
    )
    assert spec.ladder == (16, 32, 64, 128)
    scale = spec.full_scale
    assert scale is not None
    assert (scale.global_batch_size, scale.machine, scale.workers, scale.nodes) == (
        512,
        "local",
        2,
        None,
    )
    assert scale.validate_plan is True
    assert spec.search.domains["learning_rate"] == Float(0.01, 1.28, log=True, role=Role.SCALED)
    assert spec.search.fixed == {"optimizer": "sgd", "momentum": 0.9}
    budget = spec.budget
    assert (budget.trials, budget.epochs_per_trial, budget.evaluations_per_epoch) == (48, 40, 4)
    assert (spec.seeds, spec.sampler, spec.text) == (2, "forecast", EXAMPLE)
    assert spec.search_path == Path.cwd() / "studies"


def test_what_may_be_left_out() -> None:
    spec = parse_study(SMALLEST)
    assert (spec.data, spec.full_scale, spec.seeds, spec.search_path) == ({}, None, 1, None)
    assert parse_study(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    "sizes", ["{int_uniform: [1, 2000000000]}", f"{{choice: {[997 + 2 * i for i in range(2000)]}}}"]
)
def test_many_normalization_batch_sizes_and_several_workers_are_one_fault(sizes: str) -> None:
    """Their least common multiple has thousands of digits; a list of them would fill the memory."""
    began = time.process_time()
    text = SMALLEST.replace("search:", f"search:\n  normalization_batch_size: {sizes}")
    # the second rule, of the sizes themselves, is broken too
    with pytest.raises(SpecError, match="every rung of the ladder must be a multiple of"):
        parse_study(f"{text}\nresources: {{workers_per_node: 2}}\n")
    assert time.process_time() - began < 5


def test_a_study_is_equal_to_its_own_yaml_and_pickle() -> None:
    spec = parse_study(EXAMPLE)
    for again in (
        parse_study(spec.to_yaml()),
        pickle.loads(pickle.dumps(spec)),
        StudySpec.from_dict(spec.to_dict()),
    ):
        assert again == spec
        assert hash(again) == hash(spec)
    assert parse_study(EXAMPLE.replace("seeds: 2", "seeds: 3")) != spec
    assert StudySpec.from_dict(spec.to_dict()).text == spec.to_yaml()


def test_target_at_most() -> None:
    target = parse_study(EXAMPLE.replace("at_least: 0.96", "at_most: 0")).target
    assert (target.threshold, target.higher_is_better) == (0.0, False)
    assert target.reached(-0.1) and target.reached(0.0) and not target.reached(0.1)
    rising = parse_study(EXAMPLE).target
    assert rising.reached(0.96) and not rising.reached(0.959) and not rising.reached(float("nan"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("budget:", "budgets:", "line 12: unknown key 'budgets'; did you mean 'budget'?"),
        ("trials:", "trails:", "line 12: unknown key 'trails' in budget; did you mean 'trials'?"),
        (
            "workers:",
            "workes:",
            "line 6: unknown key 'workes' in full_scale; did you mean 'workers'?",
        ),
        (
            "validate:",
            "validate_plan:",
            "line 6: unknown key 'validate_plan' in full_scale; did you mean 'validate'?",
        ),
        ("metric:", "metrik:", "line 4: unknown key 'metrik' in target; did you mean 'metric'?"),
        (
            "momentum:",
            "momentun:",
            "line 11: there is no setting 'momentun'; did you mean 'momentum'?",
        ),
        (
            "log_uniform:",
            "log_unifrm:",
            "line 9: learning_rate: unknown key 'log_unifrm'; did you mean 'log_uniform'?",
        ),
        ("name: digits\n", "", "study.yaml: name is missing; write name: ..."),
        ("trials: 48, ", "", "line 12: budget.trials is missing"),
        (
            "64, 128",
            "64, 64",
            "line 5: ladder must increase, but got 64 after 64 in [16, 32, 64, 64]",
        ),
        (
            "[16, 32, 64, 128]",
            "[]",
            "line 5: ladder must be a list of at least one value, but got []",
        ),
        ("[16, 32, 64, 128]", "16", "line 5: ladder must be a list, but got 16"),
        ("16, 32", "0, 32", "line 5: ladder[0] must be above 0, but got 0"),
        ("16, 32", "16.0, 32", "line 5: ladder[0] must be a whole number, but got 16.0"),
        ("64, 128", "64, 9999999999999", "line 5: ladder[3] must be at most 2,147,483,647"),
        (
            "16, 32",
            "16, 24",
            "line 5: normalization_batch_size must divide every rung of the ladder, but 16 (the "
            "default) does not divide 24; the nearest that divides all is 8",
        ),
        (
            "momentum: 0.9",
            "normalization_batch_size: 5",
            "line 11: normalization_batch_size must divide every "
            "rung of the ladder, but 5 does not divide 16; the nearest that divides all is 4",
        ),
        (
            "momentum: 0.9",
            "normalization_batch_size: {choice: [8, 24]}",
            "but 24 does not divide 16",
        ),
        (
            "momentum: 0.9",
            "normalization_batch_size: {int_uniform: [1, 10000000000000]}",
            "3 does not divide 16",
        ),
        (
            "size: 512",
            "size: 500",
            "line 6: full_scale.global_batch_size must be a multiple of "
            "normalization_batch_size 16 (the default), but got 500; the nearest is 496",
        ),
        ("size: 512", "size: 0", "line 6: full_scale.global_batch_size must be above 0, but got 0"),
        (
            "trials: 48",
            "trials: 3",
            "line 12: budget.trials must be at least 4, one for each rung of the ladder",
        ),
        ("seeds: 2", "seeds: two", "line 13: seeds must be a whole number, but got 'two'"),
        ("seeds: 2", "seeds: true", "line 13: seeds must be a whole number, but got True"),
        ("seeds: 2", "seeds: 0", "line 13: seeds must be above 0, but got 0"),
        (
            "seeds: 2",
            "sampler: tpee",
            f"line 13: sampler must be one of {', '.join([*SAMPLERS][:-1])} or {[*SAMPLERS][-1]}, but got "
            "'tpee'; did you mean 'tpe'?",
        ),
        (
            "seeds: 2",
            "seeds: 2\nseeds: 3",
            "line 14: a key must be unique, but got 'seeds' a second time, after line 13",
        ),
        (
            "momentum: 0.9",
            "momentum: 0.9\n  momentum: 0.8",
            "line 12: a key must be unique, but got 'momentum'",
        ),
        (
            "at_least: 0.96",
            "at_least: 0.9, at_most: 1",
            "line 4: target must have exactly one of at_least and at_most",
        ),
        (
            ", at_least: 0.96",
            "",
            "line 4: target must have exactly one of at_least and at_most, but got neither",
        ),
        ("0.96", ".nan", "line 4: target.at_least must be a finite number, but got nan"),
        ("0.96", "high", "line 4: target.at_least must be a number, but got 'high'"),
        (
            "name: digits",
            "name: 42",
            'line 1: name must be text, but got 42; put it in quotes, "42"',
        ),
        ("name: digits", "name:", "line 1: name must be text, but got nothing"),
        ("name: digits", 'name: "a\\tb"', "line 1: name must be 1 to 100 printable characters"),
        ("name: digits", 'name: ""', "line 1: name must be 1 to 100 printable characters"),
        (
            "name: digits",
            f"name: {'x' * 101}",
            "line 1: name must be 1 to 100 printable characters",
        ),
        (
            "workload: resnet",
            "workload: ../evil.py",
            "line 2: workload must be the name of a workload, or",
        ),
        (
            "data: {source: digits}",
            "data: digits",
            "line 3: data must be a mapping, but got 'digits'",
        ),
        (
            "source: digits",
            "sizes: [1, {a: .inf}]",
            "line 3: data.sizes must be a finite number, but got inf",
        ),
        (
            "validate: true",
            "validate: yes",
            "line 6: full_scale.validate must be true or false, but got 'yes'",
        ),
        (
            "epochs_per_trial: 40",
            "epochs_per_trial: 0",
            "line 12: budget.epochs_per_trial must be above 0, but got 0",
        ),
        (
            "  optimizer: sgd",
            "  optimizer: adm",
            "line 8: optimizer must be one of sgd, lars, larc, ",
        ),
    ],
)
def test_each_fault_has_its_line_rule_and_value(old: str, new: str, expected: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(SpecError) as caught:
        parse_study(EXAMPLE.replace(old, new, 1), "study.yaml")
    message = str(caught.value)
    assert expected in message
    assert message.startswith("study.yaml") and message.count("\n") == 0
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "workload", ["resnet", "noisy_quadratic", "my_module:MyWorkload", "a.b.c:D"]
)
def test_workloads_that_may_be_named(workload: str) -> None:
    assert parse_study(EXAMPLE.replace("resnet", workload)).workload == workload


def test_several_faults_come_one_per_line_in_the_order_of_the_file() -> None:
    text = EXAMPLE
    for old, new in (
        ("16, 32", "32, 32"),
        ("seeds: 2", "seeds: 0"),
        ("0.9\n", "2\n  nesterov: 1\n"),
    ):
        text = text.replace(old, new)
    with pytest.raises(SpecError) as caught:
        parse_study(text, "study.yaml")
    assert [fault.line for fault in caught.value.faults] == [5, 11, 12, 14]
    assert [fault.key for fault in caught.value.faults] == [
        "ladder",
        "search.momentum",
        "search.nesterov",
        "seeds",
    ]
    assert (caught.value.line, caught.value.key, caught.value.path) == (5, "ladder", "study.yaml")
    assert all(line.startswith("study.yaml, line ") for line in str(caught.value).splitlines())
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.faults) == (str(caught.value), caught.value.faults)


def test_faults_are_sorted_by_line() -> None:
    text = EXAMPLE.replace("name: digits\n", "").replace("16, 32", "32, 32") + "name: 3\n"
    with pytest.raises(SpecError) as caught:
        parse_study(text)
    assert [fault.key for fault in caught.value.faults] == ["ladder", "name"]


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file"),
        ("# nothing\n", "empty file"),
        ("- name\n", "must be a mapping of keys to values, but got ['name']"),
        ("name: [a\n", "line 2: a study file must be YAML"),
        ("name: a\n\tseeds: 1\n", "line 2: a study file must be YAML"),
        ("name: a\n---\nname: b\n", "single document"),
        ("\x00", "a study file must be YAML"),
        ("name: \ud800", "must be UTF-8"),
        (
            "name: !!python/object/apply:os.system [ls]",
            "line 1: a study file must hold plain values, but got",
        ),
        ("name: !!int x", "plain values, but got the tag"),
        ("? [a]\n: b\n", "a key must be text"),
        ("name: *nowhere", "a study file must be YAML"),
        ("a: &a [*a]", "nested at most 20 deep"),
        ("[" * 50_000, "nested at most 20 deep"),
        ("- 1\n" * 200_000, "at most 20,000 values"),
        (BOMB, "at most 20,000 values, aliases expanded"),
        ("x" * (MAX_BYTES + 1), "at most 1,000,000 bytes, but got 1,000,001"),
    ],
    ids=range(17),
)
def test_a_text_that_is_no_study_is_refused(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_study(text, "study.yaml")
    assert expected in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    (tmp_path / "huge.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, expected in {
        "none.yaml": "must exist",
        ".": "Is a directory",
        "latin.yaml": "not UTF-8",
        "huge.yaml": "at most 1,000,000 bytes",
        "a\0b": "null",
    }.items():
        with pytest.raises(SpecError, match=expected):
            load_study(tmp_path / name)


def test_a_file_is_loaded_with_its_text_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("\ufeff" + EXAMPLE, "utf-8")
    spec = load_study(path)
    assert (spec.text, spec.search_path, spec.path) == (EXAMPLE, tmp_path.resolve(), path)
    assert str(spec.error("no such source", "data", "source")) == f"{path}, line 3: no such source"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            {"topp1": True, "loss": False},
            "measures (loss, topp1), but got 'top1'; did you mean 'topp1'?",
        ),
        ({"top1": False}, "target.at_most must be used with top1, which is better when lower"),
    ],
)
def test_a_target_that_the_workload_cannot_reach(metrics: dict[str, bool], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_study_target(parse_study(EXAMPLE, "study.yaml"), metrics)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("study.yaml, line 4: ")


def test_a_rising_metric_needs_at_least() -> None:
    with pytest.raises(
        SpecError, match=r"target\.at_least must be used with top1, which is better when higher"
    ):
        check_study_target(parse_study(EXAMPLE.replace("at_least", "at_most")), {"top1": True})


def test_a_target_that_the_workload_can_reach() -> None:
    check_study_target(parse_study(EXAMPLE), {"top1": True, "loss": False})


def test_plain_python_values_are_checked_like_a_file() -> None:
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict({"name": 1, "data": {1: 2, "x": object()}, "search": {5: 6}})
    assert "study: there is no setting 5" in str(caught.value)
    assert len(caught.value.faults) == 8


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("010", 10),
        ("+1.5e+3", 1500.0),
        ("no", "no"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("~", None),
        ("", None),
        ("True", True),
        ("'1e-4'", "1e-4"),
        ("0x10", "0x10"),
        (".inf", float("inf")),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    got = read(f"key: {text}").value["key"]
    assert got == value and type(got) is type(value)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**200), 10**200)
    | st.floats(-1e308, 1e308)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(
        ["1e-4", "08", "no", "null", "~", "1.", ".5", "+1", "=", "<<", "a: b", "- a", "#"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(value=PLAIN)
def test_yaml_round_trip(value: object) -> None:
    document = read(write({"key": value}))
    assert document.faults == []
    assert document.value == {"key": value}
    assert repr(document.value) == repr({"key": value})  # 1, 1.0 and True are three values


@pytest.mark.medium
@given(
    rungs=st.sets(st.integers(1, 10**6), min_size=1, max_size=6),
    data=PLAIN,
    trials=st.integers(6, 10**6),
    low=st.floats(1e-9, 1e3),
    factor=st.floats(1.01, 1e6),
    threshold=st.floats(-1e9, 1e9),
)
def test_study_round_trip(
    *, rungs: set[int], data: object, trials: int, low: float, factor: float, threshold: float
) -> None:
    spec = StudySpec.from_dict(
        {
            "name": "a study: 1e-4",
            "workload": "m:W",
            "data": {"x": data},
            "ladder": sorted(rungs),
            "target": {"metric": "loss", "at_most": threshold},
            "budget": {"trials": trials, "epochs_per_trial": 0.5},
            "search": {
                "normalization_batch_size": 1,
                "decay_epochs": None,
                "learning_rate": {"log_uniform": [low, low * factor], "role": "scaled"},
            },
        }
    )
    again = parse_study(spec.to_yaml())
    assert again == spec and again.to_yaml() == spec.to_yaml()
    assert again.search.fixed == {"normalization_batch_size": 1, "decay_epochs": None}


def test_every_error_says_how_the_command_line_leaves() -> None:
    codes = {
        kind.__name__: kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HpoError)
    }
    assert codes == {
        "HpoError": 1,
        "SpecError": 2,
        "StudyNotFoundError": 2,
        "StorageUnavailableError": 2,
        "EvidenceError": 2,
        "PlanError": 2,
        "LaunchError": 1,
        "TuningError": 1,
        "ExportError": 2,
        "StudyFailedError": 1,
        "ServiceError": 1,
        "UnreachableError": 1,
        "WaitTimeoutError": 1,
        "AuthenticationError": 2,
        "NotAllowedError": 2,
        "ConflictError": 2,
        "RequestError": 2,
        "TrialLostError": 1,
        "FigureError": 1,
    }
