"""The scripts of every launcher for every machine: valid for bash, valid directives, readable."""

import dataclasses
import itertools
import re
import shutil
import subprocess

import pytest

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.launchers import launch_script_of_plan
from hpo.planning.launchers.launch import choose_launch_backend, write_plan
from hpo.planning.launchers.run import clock, format_duration, possible_nodes, run_of_plan
from hpo.planning.machines import load_machine, machine_names, machine_text
from hpo.planning.schedulers import SCHEDULERS, SchedulerDescription
from hpo.testing import SchedulerContract
from tests.planning.launch_samples import (
    SUBMISSIONS,
    fake,
    fake_path,
    small_job,
    small_plan,
)

pytestmark = pytest.mark.processes

BACKENDS = ("horovod", "torch")


def plan_for(name, launcher=None, nodes=2, **changes):
    machine = load_machine(name)
    ranks = min(4, machine.accelerators_per_node)
    nodes = min(nodes, machine.nodes)
    job = small_job("/tmp", batch=nodes * ranks * 8, path="/shared/data of all")
    return small_plan(
        job,
        machine=name,
        launcher=launcher or machine.scheduler,
        nodes=nodes,
        ranks=ranks,
        **changes,
    )


def scripts(names, launchers):
    for name, launcher, backend in itertools.product(names, launchers, BACKENDS):
        if (launcher, backend) != ("ray", "horovod"):
            yield plan_for(name, launcher), backend


@pytest.mark.parametrize("launcher", ["pbs", "grid_engine"])
def test_a_further_slot_is_requested_with_every_variable_but_secrets(tmp_path, launcher):
    plan = plan_for("superpod", launcher)
    _, text = launch_script_of_plan(plan, load_machine("superpod"), backend="torch")
    functions = text[text.index("handed() {") : text.index("start() {")]
    given = {"HPO_SLOT": "2", "HPO_CONTAINER": "a, b.sif", "HPO_MODULES": "cuda", "HPO_TOKEN": "x"}
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'{functions}account= partition=\nqsub() {{ printf "%s\\n" "$@"; }}\nresubmit',
        ],
        env={"PATH": "/usr/bin:/bin", "PBS_JOBID": "1", "JOB_ID": "1", **given},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("-v") + 1] == "HPO_CONTAINER,HPO_MODULES,HPO_SLOT"


def test_the_header_of_a_study_called_flux_is_no_directive():
    plan = dataclasses.replace(plan_for("superpod", "flux"), study="flux")
    _, text = launch_script_of_plan(plan, load_machine("superpod"), backend="torch")
    header = text[: text.index("# flux: --job-name")]
    assert "# Study flux: global batch size" in header and "\n# flux:" not in header


def test_the_trainer_saves_after_the_minutes_that_the_plan_assumes():
    plan = plan_for("superpod", details={"failures": {"save_after_minutes": 12.345}})
    for each, said in ((plan, "12.35"), (plan_for("superpod"), "0")):
        _, text = launch_script_of_plan(each, load_machine("superpod"), backend="torch")
        assert f"checkpoint_minutes=${{HPO_CHECKPOINT_MINUTES:-{said}}}" in text


def test_a_run_goes_on_only_on_nodes_over_which_every_size_of_its_batch_splits():
    plan = plan_for("superpod", nodes=4)
    growing = dataclasses.replace(
        plan.job.settings,
        batch_control="piecewise",
        batch_milestones=(1.0,),
        batch_factors=(1.5,),
    )
    grown = dataclasses.replace(
        plan, job=dataclasses.replace(plan.job, settings=growing, global_batch_size=32)
    )
    assert possible_nodes(grown) == (4, 2, 1)
    small = dataclasses.replace(grown, job=dataclasses.replace(grown.job, global_batch_size=16))
    assert possible_nodes(small) == (2, 1)


def test_bash_takes_the_script_of_every_machine(tmp_path):
    written = []
    for number, (plan, backend) in enumerate(
        [*scripts(machine_names(), [None]), *scripts(["superpod"], SCHEDULERS)]
    ):
        name, text = launch_script_of_plan(plan, load_machine(plan.machine), backend=backend)
        file = tmp_path / f"{number}-{name}"
        file.write_text(text)
        if name.endswith(".py"):
            compile(text, name, "exec")
        else:
            written.append(file)
            checked = subprocess.run(
                ["bash", "-n", file], capture_output=True, text=True, check=False
            )
            assert checked.returncode == 0, (plan.machine, plan.launcher, backend, checked.stderr)
        assert max(map(len, text.splitlines())) <= 140
    assert len(written) > 2 * len(machine_names())
    if shutil.which("shellcheck"):
        checked = subprocess.run(
            ["shellcheck", *written[-2 * len(SCHEDULERS) :]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout


def test_the_head_tells_a_person_what_the_run_is():
    plan = plan_for("summit", chance_in_slot=0.87, slot_seconds=7200.0)
    _, text = launch_script_of_plan(plan, load_machine("summit"), backend="horovod")
    head = " ".join(
        line[2:]
        for line in itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    )
    for said in (
        "small: global batch size 64 on 2 nodes of Summit",
        "Target accuracy >= 0.95, expected after 4 epochs",
        "7 min (3 min to 15 min) of training",
        "Trust medium: two of three rungs reached the target",
        "within a slot of 2 h 00 min: 87%",
        "limited by the network",
        "bsub < launch.sh",
        "hpo record 7",
    ):
        assert said in head, head


def test_a_name_of_a_study_cannot_break_out_of_the_comment_or_the_directives():
    plan = dataclasses.replace(
        plan_for("superpod"), study="a\nrm -rf /\n#SBATCH --uid=0 $(reboot)", reason="x\ny"
    )
    _, text = launch_script_of_plan(plan, load_machine("superpod"), backend="torch")
    assert "\nrm -rf" not in text and "\ny" not in text and "\n#SBATCH --uid" not in text
    assert re.search(r"^#SBATCH --job-name=[A-Za-z][\w.-]*$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("seconds", "slot", "limit", "notice"),
    [
        (
            Interval(400.0, 200.0, 900.0),
            None,
            900 + 300,
            600,
        ),  # the upper end, and what is around; 2 x 900 / 2 + 60
        (Interval(400.0, 200.0, 900.0), 7200.0, 7200, 960),
        (
            Interval(3600.0, 3000.0, 5000.0),
            7230.0,
            7200,
            3600,
        ),  # whole minutes, and at most half of the slot
        (None, None, 3600 + 300, 120),
    ],
)
def test_the_time_limit_is_the_slot_or_the_upper_end(seconds, slot, limit, notice):
    plan = plan_for("superpod", seconds=seconds, slot_seconds=slot)
    plan = dataclasses.replace(
        plan, job=small_job("/tmp", batch=plan.global_batch_size)
    )  # nothing to be staged
    run = run_of_plan(plan, load_machine("superpod"), "torch")
    assert (run.slot_seconds, run.notice_seconds) == (limit, notice)


def test_nodes_over_which_the_batch_splits():
    plan = small_plan(small_job("/tmp", batch=96), nodes=12, ranks=2)
    assert possible_nodes(plan) == tuple(
        nodes for nodes in range(12, 0, -1) if 96 % (2 * nodes) == 0
    )


def test_durations_and_clocks():
    assert [format_duration(seconds) for seconds in (45.0, 119.6, 600.0, 7260.0)] == [
        "45 s",
        "120 s",
        "10 min",
        "2 h 01 min",
    ]
    assert clock(100 * 3600 + 62) == "100:01:02"


def test_environment_variables_follow_the_options_of_the_plan():
    hierarchical = plan_for(
        "summit", details={"options": {"all_reduce": "hierarchical", "fusion_bytes": 32 * 2**20}}
    )
    _, text = launch_script_of_plan(hierarchical, load_machine("summit"), backend="horovod")
    assert "export HOROVOD_FUSION_THRESHOLD=33554432  #" in text
    assert "export HOROVOD_HIERARCHICAL_ALLREDUCE=1  #" in text
    assert (
        "--all-reduce hierarchical"
        in launch_script_of_plan(hierarchical, load_machine("summit"), backend="torch")[1]
    )
    ring = plan_for("superpod", details={"options": {"all_reduce": "ring", "fusion_bytes": 2**26}})
    _, text = launch_script_of_plan(ring, load_machine("superpod"), backend="torch")
    assert (
        "export NCCL_ALGO=allreduce:ring  #" in text
        and "HOROVOD" not in text
        and "--all-reduce" not in text
    )


def test_a_users_own_machine_is_known_to_the_script(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(machine_text("superpod").replace("name: superpod", "name: cellar", 1))
    plan = plan_for("superpod", details={"machine_file": str(own)})
    write_plan(dataclasses.replace(plan, machine="cellar"), tmp_path / "plan", backend="torch")
    assert "#SBATCH --gpus-per-node=8\n" in (tmp_path / "plan" / "launch.sh").read_text()


def test_ranks_on_processor_cores_have_no_variables_of_nccl():
    _, text = launch_script_of_plan(
        plan_for("local", "local", nodes=1), load_machine("local"), backend="torch"
    )
    assert "NCCL" not in text and "gpus" not in text


def test_what_cannot_be_launched_is_told():
    with pytest.raises(
        PlanError, match="there is no launcher 'slurms'; the choices are slurm, lsf"
    ):
        launch_script_of_plan(plan_for("superpod", "slurms"), None, backend="torch")
    with pytest.raises(PlanError, match="use --backend torch, not horovod"):
        launch_script_of_plan(plan_for("superpod", "ray"), None, backend="horovod")


@pytest.mark.parametrize("launcher", SCHEDULERS)
def test_every_launcher_has_a_usual_backend(launcher):
    assert (
        choose_launch_backend(None, launcher) in BACKENDS
        and choose_launch_backend("torch", launcher) == "torch"
    )


@pytest.mark.parametrize("launcher", SUBMISSIONS)
def test_the_fakes_refuse_what_schedulers_would(tmp_path, launcher):
    write_plan(
        small_plan(small_job(tmp_path), machine="superpod", launcher=launcher),
        tmp_path / "plan",
        backend="torch",
    )
    script = tmp_path / "plan" / "launch.sh"
    good = script.read_text()
    for right, wrong, said in fake(launcher).FAULTS:
        assert right in good, right
        script.write_text(good.replace(right, wrong, 1))
        done = subprocess.run(
            SUBMISSIONS[launcher],
            cwd=tmp_path / "plan",
            capture_output=True,
            text=True,
            check=False,
            env=fake_path(tmp_path / "bin", launcher),
            timeout=60,
        )
        assert done.returncode == 1 and said in done.stderr, (wrong, done.stderr)
        assert not (tmp_path / "bin" / "spool" / "jobs.jsonl").exists()


WITHOUT = {"grid_engine"}
"""Schedulers for whose commands there is no fake."""


def test_every_scheduler_that_is_submitted_to_has_a_fake():
    assert {name for name, its in SCHEDULERS.items() if its.program} - WITHOUT == {*SUBMISSIONS}


class TestSchedulersOfTheProject(SchedulerContract):
    @pytest.fixture(autouse=True, params=[*SCHEDULERS])
    def _named(self, request, monkeypatch):
        monkeypatch.setattr(type(self), "name", request.param, raising=False)


def test_a_scheduler_of_another_package_that_breaks_is_one_line(monkeypatch):
    said = {"about": "-", "source": "-"}
    broken = SchedulerDescription(rule="os.path:basename", **said)
    missing = SchedulerDescription(rule="no_such_module:scheduler", **said)
    monkeypatch.setattr(
        SCHEDULERS, "built_in", {**SCHEDULERS.built_in, "broken": broken, "missing": missing}
    )
    with pytest.raises(
        PlanError, match="'missing' cannot be used: no_such_module:scheduler cannot"
    ):
        launch_script_of_plan(plan_for("superpod", "missing"), None, backend="torch")
    with pytest.raises(PlanError, match=r"'broken' cannot be used: os\.path:basename failed: "):
        launch_script_of_plan(plan_for("superpod", "broken"), None, backend="torch")
    with pytest.raises(
        ValueError, match=r"rule must be 'package\.module:attribute', but got 'here'"
    ):
        SchedulerDescription(rule="here", **said)
