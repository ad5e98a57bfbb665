"""Ray Jobs: a Python script that places one agent on each node of a Ray cluster, and its submission as a job.

A placement group with one bundle per node (STRICT_SPREAD) holds the accelerators. An agent in each bundle runs torchrun
(:mod:`trainers.agents`), and all agents rendezvous at the node of the first. The loss of a node makes its agent fail;
the script then places the agents again, on as many nodes as are left. See the manuals of ``ray job submit`` and of
placement groups. Ray is only imported when :func:`submit` or the script runs.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from hpo.errors import LaunchError, PlanError
from hpo.planning.launchers.environment import all_reduce_argument
from hpo.planning.launchers.job_setup import JobSetup
from hpo.planning.launchers.run import FILES, Run
from hpo.planning.launchers.script import script_header
from hpo.study.restart_limits import RUN_RESTARTS

SCRIPT = "launch.py"
ADDRESS = "http://127.0.0.1:8265"

BODY = '''\
"""Trains job.json on a Ray cluster; see the comment above."""

import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

FOLDER = Path(os.environ.get("HPO_FOLDER", Path(__file__).parent)).absolute()  # a folder shared by all nodes
SECRET = FOLDER / "secret"  # with which the agents authenticate each other
RANKS_PER_NODE = @ranks@
RESOURCES = @resources@  # resources of each node
POSSIBLE_NODES = @possible@  # numbers of nodes over which the batch can be split, largest first
MAX_RESTARTS = int(os.environ.get("HPO_MAX_RESTARTS", "@restarts@"))  # restarts after a lost rank or node
SECONDS_FOR_NODES = float(os.environ.get("HPO_SECONDS_FOR_NODES", "600"))  # how long to wait for the nodes at the start
ENVIRONMENT = {
@environment@
}


@ray.remote
class Agent:
    """Runs torchrun on its node."""

    def address(self):
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def train(self, nodes, index, meeting_point, attempt):
        trainer = [str(FOLDER / "@job@"), "--report", str(FOLDER / "@report@"), "--checkpoint",
                   str(FOLDER / "@checkpoint@"), "--stop-file", str(FOLDER / "@stop@"),
                   @all_reduce@"--backend", "torch"]
        return subprocess.call(
            [sys.executable, "-m", "trainers.agents", str(SECRET), f"--nnodes={nodes}",
             f"--nproc-per-node={RANKS_PER_NODE}", f"--max-restarts={MAX_RESTARTS}", f"--rdzv-id={attempt}",
             f"--rdzv-endpoint={meeting_point}", f"--rdzv-conf=is_host={index == 0}",
             "-m", "trainers", *trainer], env={**ENVIRONMENT, **os.environ})


def count(kind):
    """Return the number of report lines of a kind."""
    report = FOLDER / "@report@"
    lines = report.read_text().splitlines() if report.exists() else []
    return sum(line.startswith(f'{{"{kind}"') for line in lines)


def place():
    """Reserve as many nodes as the cluster can provide and the batch can be split over."""
    for nodes in POSSIBLE_NODES:
        group = placement_group([RESOURCES] * nodes, strategy="STRICT_SPREAD")
        wanted = SECONDS_FOR_NODES if nodes == POSSIBLE_NODES[0] and not count("started") else 30
        if group.wait(wanted):
            return group, nodes
        remove_placement_group(group)
    sys.exit(f"the cluster has fewer than {POSSIBLE_NODES[-1]} nodes with {RESOURCES}")


def attempt_once(attempt):
    """Run the agents once; return whether every agent finished."""
    group, nodes = place()
    agents = [Agent.options(num_cpus=RESOURCES.get("CPU", 0), num_gpus=RESOURCES.get("GPU", 0),
                            scheduling_strategy=PlacementGroupSchedulingStrategy(
                                group, placement_group_bundle_index=index)).remote() for index in range(nodes)]
    try:
        meeting_point = ray.get(agents[0].address.remote())
        running = [agent.train.remote(nodes, index, meeting_point, attempt) for index, agent in enumerate(agents)]
        while running:  # the first failed agent ends all, as the others would wait for it
            (done,), running = ray.wait(running)
            if ray.get(done):
                return False
        return True
    except ray.exceptions.RayError as error:
        print(f"an agent was lost: {error}", file=sys.stderr)
        return False
    finally:
        for agent in agents:
            ray.kill(agent)
        remove_placement_group(group)


def main():
    os.umask(0o077)
    if not SECRET.exists():
        SECRET.write_text(secrets.token_hex(32))
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"))
    (FOLDER / "@stop@").unlink(missing_ok=True)
    for attempt in range(MAX_RESTARTS + 1):
        started = count("started")
        if attempt_once(attempt) or count("outcome"):
            sys.exit(0 if count("outcome") else 75)  # 75: stopped by the stop file; run this again to continue
        if count("started") == started:
            sys.exit("the training did not start: see the output of the ranks above")
        print(f"a rank or a node was lost; restart {attempt + 1} of {MAX_RESTARTS} from @checkpoint@", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
'''


def script(run: Run) -> str:
    """Return a plan's ``launch.py``, which a Ray job runs; raise :class:`PlanError` unless the backend is torch."""
    if run.backend != "torch":
        raise PlanError(
            f"with Ray Jobs, torchrun starts the ranks; use --backend torch, not {run.backend} "
            f"(for a program, use another launcher)"
        )
    if JobSetup.of_plan(run.plan) != JobSetup():
        raise PlanError(
            "Ray starts the ranks in the environment of its own nodes: start Ray inside the container, with the "
            "modules loaded, and leave both out of the plan"
        )
    resources = {"GPU": run.accelerators} if run.accelerators else {"CPU": run.ranks}
    way = all_reduce_argument(run.plan, run.backend)
    values = {
        "ranks": str(run.ranks),
        "restarts": str(RUN_RESTARTS),
        "resources": repr(resources),
        "possible": repr(list(run.possible_nodes[:24])),
        "all_reduce": f'"--all-reduce", "{way}", ' if way != "default" else "",
        "environment": "\n".join(
            f"    {variable.name!r}: {_value(variable.value)!r},  # {variable.why}"
            for variable in run.environment
        ),
        "job": FILES.job,
        "report": FILES.report,
        "checkpoint": FILES.checkpoint,
        "stop": FILES.stop,
    }
    text = BODY
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    submit = f"ray job submit --address {ADDRESS} -- python $PWD/{SCRIPT}, with the folder shared by all nodes"
    return (
        script_header(run, submit).replace("#!/usr/bin/env bash", "#!/usr/bin/env python3")
        + "\n"
        + text
    )


def submit(folder: Path, address: str | None = None) -> str:
    """Submit the ``launch.py`` in a folder shared by all nodes to a Ray cluster; return the job's number."""
    try:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(address)
        return str(
            client.submit_job(
                entrypoint=shlex.join(["python", str(folder.absolute() / SCRIPT)]),
                runtime_env={"env_vars": {"HPO_FOLDER": str(folder.absolute())}},
            )
        )
    except (ImportError, RuntimeError, ConnectionError, ValueError) as error:
        raise LaunchError(
            f"cannot submit a job to Ray at {address or 'RAY_ADDRESS'}: {error}; ray[default] must be "
            f"installed and the cluster's dashboard reachable; or run "
            f"{shlex.join(['python', str(folder / SCRIPT)])} on the head node"
        ) from error


def _value(value: str) -> str:
    """Return a variable's value outside bash: the default in ``${NAME:-default}``, as os.environ takes precedence."""
    return value.rpartition(":-")[2].rstrip("}") if value.startswith("${") else value
