"""What a script does when its slot ends, when ranks and nodes are lost, and when it gives up: with a fake trainer."""

import json
import subprocess
import sys

import pytest

from hpo.planning.launchers.launch import write_plan
from tests.planning.launch_samples import SUBMISSIONS, fake_path, small_job, small_plan

pytestmark = pytest.mark.processes


@pytest.fixture
def slot(tmp_path):
    """Runs the script of a small plan under the fake of a scheduler, by a trainer that behaves as told."""

    def run(*behaviour, launcher="slurm", data=None, **variables):
        plan = small_plan(
            small_job(tmp_path, **(data or {})), machine="superpod", launcher=launcher
        )
        write_plan(plan, tmp_path / "plan", backend="torch")
        (tmp_path / "plan" / "behaviour").write_text("\n".join(behaviour))
        environment = fake_path(
            tmp_path / "bin",
            launcher,
            python=f'shift 3; exec "{sys.executable}" -m tests.planning.fakes.trainer "$@"',
        )
        done = subprocess.run(
            SUBMISSIONS[launcher],
            cwd=tmp_path / "plan",
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return Slot(tmp_path)

    return run


class Slot:
    def __init__(self, folder):
        self.jobs = [
            json.loads(line) for line in (folder / "bin/spool/jobs.jsonl").read_text().splitlines()
        ]
        self.calls = [json.loads(line) for line in (folder / "plan/calls").read_text().splitlines()]
        self.log = "".join(
            path.read_text() for path in sorted((folder / "plan").glob("launch-*.log"))
        )

    @property
    def statuses(self):
        return [job["status"] for job in self.jobs]


def test_a_run_that_reaches_its_end_takes_one_slot(slot):
    done = slot("reach")
    assert done.statuses == [0] and len(done.calls) == 1
    assert "--nnodes=2" in done.calls[0] and "--nproc-per-node=2" in done.calls[0]


def test_a_lost_rank_is_followed_by_a_restart_on_all_hosts(slot):
    done = slot("lose", "lose", "reach")
    assert done.statuses == [0] and len(done.calls) == 3
    assert "restart 2 of 3" in done.log
    assert all("--nnodes=2" in call for call in done.calls)
    assert (
        len({call[3] for call in done.calls}) == 3
    )  # torchrun's agents of an earlier start are not met again


@pytest.mark.slow
def test_after_a_lost_node_the_run_goes_on_on_those_that_answer(slot):
    done = slot("lose-host 127.0.0.1", "reach")
    assert done.statuses == [0]
    assert "--nnodes=1" in done.calls[1] and "--rdzv-endpoint=localhost:29500" in done.calls[1]


@pytest.mark.slow
def test_where_no_host_is_left_another_slot_is_asked_for(slot):
    done = slot("lose-host localhost", "lose-host localhost 127.0.0.1")
    assert "0 hosts respond" in done.log and "requesting slot 2" in done.log
    assert done.statuses == [0, 1]  # where again no host answered: such a slot asks for no other


def test_what_does_not_begin_is_not_repeated(slot):
    done = slot("break", "reach")
    assert done.statuses == [1] and len(done.calls) == 1
    assert "the training did not start" in done.log


def test_the_end_of_the_slot_stops_the_training_and_asks_for_another(slot):
    done = slot("wait", "reach", FAKE_NOTICE_POINTS="1", HPO_ACCOUNT="physics")
    assert done.statuses == [0, 0]
    assert done.jobs[1]["options"]["--dependency"] == "afterany:1"
    assert done.jobs[1]["options"]["--account"] == "physics"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "option", "value"),
    [("pbs", "-W", "depend=afterany:1"), ("flux", "--dependency", "afterany:1")],
)
def test_where_nobody_gives_notice_the_script_keeps_the_time(slot, launcher, option, value):
    done = slot(
        "wait", "reach", launcher=launcher, HPO_SLOT_SECONDS="601", HPO_PARTITION="large"
    )  # notice: 600 s
    assert done.statuses == [0, 0] and done.jobs[1]["options"][option] == value
    assert "large" in done.jobs[1]["options"].values()


@pytest.mark.slow
def test_lsf_gives_notice_by_a_signal(slot):
    done = slot("wait", "reach", launcher="lsf", FAKE_NOTICE_POINTS="1")
    assert done.statuses == [0, 0] and done.jobs[1]["options"]["-w"] == "ended(1)"


def test_the_slots_are_bounded(slot):
    done = slot("wait", "reach", FAKE_NOTICE_POINTS="1", HPO_MAX_SLOTS="1")
    assert done.statuses == [1] and "slot 1 of 1 is over" in done.log


def test_restarts_are_bounded_and_then_another_slot_takes_over(slot):
    done = slot("lose", "lose", "lose", "reach", HPO_MAX_RESTARTS="1")
    assert done.statuses == [0, 0] and len(done.calls) == 4


@pytest.mark.slow
def test_data_are_staged_once_in_a_slot_and_read_from_the_nodes_disk(slot):
    done = slot("lose", "reach", data={"path": "/shared/climate data"})
    staging, first, second = done.calls
    assert staging[staging.index("trainers.staging") + 1] == "/shared/climate data"
    assert "--nproc-per-node=1" in staging
    local = staging[staging.index("trainers.staging") + 2]
    assert first[first.index("--data-path") + 1] == second[second.index("--data-path") + 1] == local
