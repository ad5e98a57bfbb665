"""Start, watch and stop the parameter server and the replicas as Ray actors."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.asynchronous import ray_session
from trainers.asynchronous.messages import (
    ActorSetup,
    EpochResult,
    EpochUpdates,
    GradientPush,
    ServerWeights,
    copy_into,
)
from trainers.asynchronous.server import ParameterServer
from trainers.asynchronous.worker import AsynchronousReplica
from trainers.errors import CommunicationError, TrainerError

_LOOK_SECONDS = 0.5
_SERVER = "the parameter server"


class AsynchronousActors:
    """One server and its replicas; they stop on :meth:`close`, on a failure, or when this object is garbage-collected.

    No actor reserves a CPU, because a trial that has one CPU from Ray Tune would wait forever for a second one. If a
    Ray instance is running, the actors use it; otherwise one is started, and stopped together with the actors.
    """

    def __init__(self, setup: ActorSetup, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        own_ray = _start_ray()
        import ray

        self._ray = ray
        self._server = ray.remote(ParameterServer).options(num_cpus=0).remote(setup)
        replica = ray.remote(AsynchronousReplica).options(num_cpus=0)
        self._replicas = [
            replica.remote(setup, number, _Link(self._server)) for number in range(setup.workers)
        ]
        self.close = weakref.finalize(self, _end, [self._server, *self._replicas], own_ray)
        self._running: dict[Any, int] = {}
        self._wait_until_built()

    def run(self, epoch: EpochUpdates) -> EpochResult:
        """Train an epoch; raise :class:`~trainers.errors.CommunicationError` that names a dead or silent replica."""
        self._get(self._server.begin.remote(epoch), _SERVER)
        self._running |= {
            replica.train.remote(epoch): number for number, replica in enumerate(self._replicas)
        }
        result = self._server.result.remote()
        while True:
            ready, _ = self._ray.wait([result, *self._running], timeout=_LOOK_SECONDS)
            for done in ready:
                if done != result:
                    self._get(done, self._name(self._running.pop(done)))
            if result in ready:
                answer: EpochResult = self._get(result, _SERVER)
                return answer
            self._check_silence()

    def copy_weights(self, parameters: Sequence[Any], statistics: Sequence[Any]) -> None:
        """Copy the server's parameters and normalization statistics into these tensors."""
        weights = self._get(self._server.weights.remote(), _SERVER)
        copy_into(parameters, weights.parameters)
        copy_into(statistics, weights.statistics)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`ParameterServer.state_dict`."""
        state: dict[str, Any] = self._get(self._server.state_dict.remote(), _SERVER)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`ParameterServer.load_state_dict`."""
        self._get(self._server.load_state_dict.remote(state), _SERVER)

    def process_ids(self) -> list[int]:
        """Return the process ID of each replica, in order."""
        pids: list[int] = self._ray.get([replica.process_id.remote() for replica in self._replicas])
        return pids

    def _wait_until_built(self) -> None:
        deadline = time.monotonic() + self._timeout
        for number, replica in enumerate(self._replicas):
            self._get(
                replica.process_id.remote(),
                self._name(number),
                max(0.0, deadline - time.monotonic()),
            )

    def _check_silence(self) -> None:
        for number, seconds in self._get(self._server.silences.remote(), _SERVER).items():
            if seconds > self._timeout:
                raise CommunicationError(
                    f"{self._name(number)} has been silent for {seconds:.0f} s, more than the "
                    f"{self._timeout:g} s allowed; if an update takes that long, allow more "
                    f"time, otherwise check what its process is doing"
                )

    def _get(self, future: Any, who: str, timeout: float | None = None) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(future, timeout=self._timeout if timeout is None else timeout)
        except errors.GetTimeoutError as error:
            raise CommunicationError(f"{who} did not answer within {self._timeout:g} s") from error
        except errors.RayActorError as error:
            raise CommunicationError(_died(who, error)) from error
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, errors.RayActorError):
                raise CommunicationError(_died(_SERVER, cause)) from error
            if isinstance(cause, TrainerError):
                raise type(cause)(f"{who}: {cause}") from error
            raise

    def _name(self, number: int) -> str:
        return f"replica {number} of {len(self._replicas)}"


class _Link:
    """The server as seen by a replica; each call blocks until the server answers."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def pull(self, epoch: int, worker: int) -> ServerWeights | None:
        import ray

        weights: ServerWeights | None = ray.get(self._server.pull.remote(epoch, worker))
        return weights

    def push(self, push: GradientPush) -> bool:
        import ray

        return bool(ray.get(self._server.push.remote(push)))


def _died(who: str, error: BaseException) -> str:
    reason = next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
    return (
        f"{who} died during asynchronous training ({reason}); the run stops, and resumes "
        f"from its last checkpoint when it is started again"
    )


def _start_ray() -> bool:
    """Make sure that Ray is running; return True if this call started it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # the actors share the visible GPUs
    try:
        import ray
    except ImportError as error:
        raise CommunicationError(
            f"asynchronous training needs Ray, which is not installed here ({error}); install it, "
            "or set update_mode synchronous"
        ) from error
    if ray.is_initialized():
        ray_session.check_running()
        return False
    try:
        ray_session.start_ray(
            include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    except CommunicationError:
        raise
    except Exception as error:
        raise CommunicationError(
            f"could not start Ray for asynchronous training: {error}"
        ) from error
    return True


def _end(actors: Sequence[Any], own_ray: bool) -> None:
    import ray

    if not ray.is_initialized():
        return
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)
    if own_ray:
        ray_session.stop_ray()
