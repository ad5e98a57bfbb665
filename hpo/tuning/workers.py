"""The workers of one trial: processes in its placement group, on one or more nodes, that train it together.

The trainable leads the workers: all of them train until the next evaluation, and the first worker's result is the
trial's result. If a worker dies, the others hang in an all-reduce. The group is then restarted, and the trial resumes
from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Sequence
from typing import Any

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hpo.study.restart_limits import TRIAL_RESTARTS
from hpo.tuning.lost_machines import wait_for_notice
from hpo.tuning.resources import TrialResources
from hpo.tuning.trial_run import TrialRun, WorkerPlace

PING_SECONDS = 10.0


class TrialWorker:
    """One worker, in a separate process (a Ray actor)."""

    def __init__(self) -> None:
        self._run = TrialRun()

    def address(self) -> tuple[str, int]:
        """Return the address of this worker's node, and a port that is currently free there."""
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), int(free.getsockname()[1])

    def join(self, place: WorkerPlace, threads: int, *, program: bool) -> None:
        """Connect to the other workers; a program's workers connect by themselves."""
        os.environ["OMP_NUM_THREADS"] = str(threads)
        communicator = None
        if not program:
            from trainers.distributed import connect

            # each process sees only its own GPU, as allocated by Ray
            os.environ |= {
                "RANK": str(place.rank),
                "WORLD_SIZE": str(place.size),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": place.master_address,
                "MASTER_PORT": str(place.master_port),
            }
            communicator = connect("torch")
        self._run = TrialRun(place, communicator, threads)

    def begin(self, config: dict[str, Any]) -> None:
        """Build this worker's part of the training, or resume its checkpoint."""
        self._run.begin(config)

    def advance(self) -> dict[str, Any]:
        """Train until the next evaluation, together with the other workers."""
        return self._run.advance()

    def close(self) -> None:
        """Close the training."""
        self._run.close()

    def ping(self) -> None:
        """Do nothing; the reply shows that this process is alive."""


class WorkerGroup:
    """All workers of a trial, with the interface of a :class:`~hpo.tuning.trial_run.TrialRun`."""

    def __init__(self, resources: TrialResources) -> None:
        self._resources = resources
        self._actors: list[Any] = []
        self._config: dict[str, Any] = {}
        self._restarts = 0

    def begin(self, config: dict[str, Any]) -> None:
        """Start the workers if they are not running yet, and build the training."""
        self._config, self._restarts = config, 0
        self._begin()

    def advance(self) -> dict[str, Any]:
        """Train until the next evaluation, restarting workers that die."""
        while True:
            try:
                leaders = self._actors[:1] if self._resources.program else self._actors
                results = _all([actor.advance.remote() for actor in leaders])
                if all(result["state"] != "failed" for result in results):
                    return dict(results[0])
                _all([actor.ping.remote() for actor in self._actors], timeout=PING_SECONDS)
                self._end()  # the others may be left in the middle of an all-reduce
                return dict(next(result for result in results if result["state"] == "failed"))
            except ray.exceptions.RayError as error:
                self._end()
                if self._restarts == TRIAL_RESTARTS:
                    return {
                        "state": "failed",
                        "reason": f"a worker of the trial died {TRIAL_RESTARTS + 1} times: {_first_line(error)}",
                        "done": True,
                    }
                self._restarts += 1
                wait_for_notice()
                self._begin()

    def close(self) -> None:
        """Close the training; the workers stay alive for the next one."""
        try:
            _all([actor.close.remote() for actor in self._actors])
        except ray.exceptions.RayError:
            self._end()

    def stop(self) -> None:
        """Stop the workers."""
        self.close()
        self._end()

    def _begin(self) -> None:
        try:
            if not self._actors:
                self._start()
            _all([actor.begin.remote(self._config) for actor in self._actors])
        except ray.exceptions.RayError:
            pass  # the next step raises the same error and counts it

    def _start(self) -> None:
        asked, group = self._resources, get_current_placement_group()
        per_node = 1 if asked.program else asked.workers_per_node
        wanted = asked.worker
        actor = ray.remote(TrialWorker)
        self._actors = [
            actor.options(
                num_cpus=wanted.get("CPU", 0),
                num_gpus=wanted.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=node
                ),
            ).remote()
            for node in range(asked.nodes)
            for _ in range(per_node)
        ]
        address, port = ray.get(self._actors[0].address.remote())
        first = WorkerPlace(
            0, len(self._actors), 0, asked.workers_per_node, asked.nodes, address, port
        )
        _all(
            [
                each.join.remote(
                    dataclasses.replace(first, rank=rank, node_rank=rank // per_node),
                    asked.threads,
                    program=asked.program,
                )
                for rank, each in enumerate(self._actors)
            ]
        )

    def _end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


def _all(pending: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """Return the results of all calls, in order; raise an error as soon as one call fails, even if others
    are pending.
    """
    waiting = list(pending)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=timeout)
        if not done:
            raise ray.exceptions.GetTimeoutError("a worker does not respond")
        ray.get(done)
    return list(ray.get(list(pending)))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
