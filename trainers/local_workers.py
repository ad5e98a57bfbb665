"""Start the workers of one training run on this machine, and stop them together.

    python -m trainers.local_workers 4 torch -m trainers JOB.json --backend torch --report OUT.jsonl

torch workers find each other through a file in a folder that only this user can enter, and Horovod workers through a
server on the loopback interface. Their connections stay on that interface, so nobody on another machine can reach them,
and no torch store that unpickles its contents is open to others. If one worker fails, all workers are stopped. They
also end with this process, which in turn ends with the launcher that ``HPO_LAUNCHER`` names (:mod:`trainers.lifeline`).

The exit status is 0 if all workers succeeded, or the status of the first worker that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from trainers import lifeline
from trainers.distributed.communicator import BACKENDS, STORE_FILE
from trainers.private_files import removed_permissions

LOOK_SECONDS = 0.05
GRACE_SECONDS = 5.0
HOST = "localhost"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.local_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workers", type=int, help="how many")
    parser.add_argument("backend", choices=[name for name in BACKENDS if name != "single"])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="module for each worker to run")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"there must be at least 1 worker, but got {options.workers}")
    os.umask(removed_permissions())
    meeting = _over_file if options.backend == "torch" else _over_loopback
    with _Stop() as stop, meeting(options.workers) as environment:
        return _run(options.command, options.workers, environment, stop)


class _Stop:
    """Records which signal asked the workers to stop (0 if none); signals are handled inside a ``with`` block."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> _Stop:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)
        lifeline.end_with_launcher(lambda: self._note(signal.SIGKILL, None))
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the handlers in place until the process ends."""

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = self.signal or number


def _run(command: Sequence[str], size: int, shared: Mapping[str, str], stop: _Stop) -> int:
    """Start the workers and wait for all of them; return the status of the first worker that failed."""
    workers = []
    try:
        for rank in range(size):
            environment = {
                **os.environ,
                **shared,
                **_place(rank, size),
                lifeline.LAUNCHER: lifeline.name_of_this_process(),
            }
            # file descriptors from the launcher, such as its folder's lock, stay open until the last worker has ended
            workers.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    close_fds=False,
                )
            )
        while True:
            statuses = [worker.poll() for worker in workers]
            failed = next((status for status in statuses if status), None)
            if failed is not None:
                return failed if failed > 0 else 128 - failed
            if stop.signal:
                return 128 + stop.signal
            if all(status == 0 for status in statuses):
                return 0
            time.sleep(LOOK_SECONDS)
    finally:
        _end(workers, 0.0 if stop.signal == signal.SIGKILL else GRACE_SECONDS)


def _end(workers: Sequence[subprocess.Popen[bytes]], grace_seconds: float) -> None:
    """Ask running workers to exit, and kill them after a grace period."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + grace_seconds
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _place(rank: int, size: int) -> dict[str, str]:
    """Return the environment variables with which torchrun and horovodrun give a worker its rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": HOST,
    }


@contextlib.contextmanager
def _over_file(size: int) -> Iterator[dict[str, str]]:  # noqa: ARG001  every meeting has the same shape
    """Provide a store in a file, in a folder with mode 0700."""
    with tempfile.TemporaryDirectory(prefix="hpo-meeting-", ignore_cleanup_errors=True) as folder:
        yield {
            STORE_FILE: str(Path(folder, "store")),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
        }


@contextlib.contextmanager
def _over_loopback(size: int) -> Iterator[dict[str, str]]:
    """Provide Horovod's own rendezvous server on the loopback interface; under horovodrun it listens on all."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    server.init(get_host_assignments([HostInfo(HOST, size)], size))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_address[1]),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
        }
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())
