"""A private Ray instance on this machine, or a connection to a cluster, with token authentication and user-only files.

Anybody who can reach the ports of a Ray instance without a token can run code as its user. From version 2.59 on, a Ray
instance started here requires a token by default; an earlier version, or a ``RAY_AUTH_MODE`` that turns the token off,
is rejected. A local instance listens only on the loopback interface; Ray's own default is the network interface.

The files of a local instance are removed when it stops. The next process that starts Ray removes folders left by killed
processes, which it recognizes by the lock in each folder: a lock is free once its process has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from trainers.errors import CommunicationError
from trainers.private_files import lock_file, removed_permissions

LEAST_VERSION = (2, 59)
MODE = "RAY_AUTH_MODE"
LONGEST_FOLDER = 40
"""The longest path, in characters: a socket path may have 107, and the names that Ray appends take about 65."""
CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable that selects the network or loopback address for its ports (on Linux too, despite its name)."""
DEFAULT_TOKEN = Path("~/.ray/auth_token")
NAME = "hpo-ray-"
_folders: dict[Path, IO[str]] = {}
"""The folders of this process, each with the open file that holds its lock."""


def start_ray(address: str | None = None, **options: Any) -> None:
    """Call ``ray.init`` with a token; raise :class:`CommunicationError` if it fails or the cluster has no token.

    Without an ``address`` a local Ray instance is started; its files stay in a folder with mode 0700 until
    :func:`stop_ray` is called. ``options`` are passed to ``ray.init``.
    """
    import ray

    check_ray_version(ray.__version__)
    # the token is always on, so Ray's message about it is not useful
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel("ERROR")
    check_mode(os.environ.get(MODE))  # if unset, this turns the token on
    if address is not None:
        ray.init(address=address, **options)
        _check_cluster(ray, address)
        return
    folder = _private_folder()
    _hide_token()
    before = os.umask(removed_permissions())
    try:
        with _on_loopback():
            ray.init(address="local", _temp_dir=str(folder), **options)
        check_running()
    except BaseException:
        _remove_folders()
        raise
    finally:
        os.umask(before)


def stop_ray() -> None:
    """Stop the Ray instance that :func:`start_ray` started, and remove its files."""
    import ray

    ray.shutdown()
    _remove_folders()


def check_running() -> None:
    """Raise :class:`CommunicationError` if the Ray cluster of this process accepts unauthenticated code."""
    import ray

    check_ray_version(ray.__version__)
    if os.environ.get(MODE, "").lower() != "token":
        raise CommunicationError(
            f"the Ray instance that is already running has no token, so anyone who can reach "
            f"its ports can run code as you; set {MODE}=token before ray.init, or let the "
            f"study start Ray"
        )


def check_ray_version(version: str) -> None:
    """Raise :class:`CommunicationError` for a Ray version that does not require a token by default."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise CommunicationError(
            f"Ray must be at least {least}, which requires a token on its ports, but got {version}: "
            f"pip install "
            f"'ray[tune]>={least}'"
        )


def check_mode(mode: str | None) -> None:
    """Raise :class:`CommunicationError` if the environment turns the token off."""
    if mode is not None and mode.lower() != "token":
        raise CommunicationError(
            f"{MODE} must be token or unset, but got {mode!r}: without a token, anyone who can "
            f"reach Ray's ports can run code as you"
        )


def _check_cluster(ray: Any, address: str) -> None:
    """Disconnect from a cluster and raise an error if its processes report that it accepts unauthenticated calls."""
    mode = os.environ.get(MODE, "") and ray.get(ray.remote(num_cpus=0)(_mode_there).remote())
    if mode.lower() != "token":
        ray.shutdown()
        raise CommunicationError(
            f"the Ray cluster at {address} has no token, so anyone who can reach its ports can "
            f"run code as its user; start its nodes with {MODE}=token and one token (ray "
            f"get-auth-token --generate)"
        )


def _mode_there() -> str:
    return os.environ.get("RAY_AUTH_MODE", "")


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make a Ray instance started inside this context, and its processes, listen on the loopback interface only."""
    from ray._private import ray_constants

    before = os.environ.get(CLUSTER), getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[CLUSTER] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment when Ray was imported
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[1]
        os.environ.pop(CLUSTER)
        if before[0] is not None:
            os.environ[CLUSTER] = before[0]


def _private_folder() -> Path:
    parent = Path(tempfile.gettempdir())
    if len(str(parent / NAME)) + 8 > LONGEST_FOLDER:
        parent = Path("/tmp")
    _remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=NAME, dir=parent))
    lock = (folder / "lock.new").open("w")
    lock_file(lock)
    (folder / "lock.new").rename(folder / "lock")  # so that no process sees an unlocked folder
    _folders[folder] = lock
    return (
        folder / "ray"
    )  # Ray opens its own folder to everybody, but only this user can enter the parent


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that killed processes of this user left behind."""
    for folder in parent.glob(f"{NAME}*"):
        with contextlib.suppress(OSError):
            told = folder.lstat()
            if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.getuid():
                continue
            with (folder / "lock").open() as lock:
                lock_file(lock)  # OSError if its process is alive
                if (folder / "ray").is_dir():
                    shutil.rmtree(
                        folder / "ray"
                    )  # the lock is removed last, so that a failed removal is retried
                shutil.rmtree(folder)


def _hide_token() -> None:
    """Restrict the token file: Ray lets everybody read a user's token unless the user's umask forbids it."""
    with contextlib.suppress(OSError, RuntimeError):
        DEFAULT_TOKEN.expanduser().chmod(0o600)


def _remove_folders() -> None:
    while _folders:
        folder, lock = _folders.popitem()
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()
