"""Create files and folders of a run that only their user can access (0600 and 0700), and lock them.

``HPO_UMASK`` changes the permissions, in octal as for umask(1): 027 lets the group read, 007 also lets it write.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import IO

UMASK = "HPO_UMASK"
DEFAULT_UMASK = 0o077
LOCK_POLL_SECONDS = 0.05


def removed_permissions() -> int:
    """Return the permissions that are removed; raise ValueError if ``HPO_UMASK`` is not an octal number."""
    text = os.environ.get(UMASK, "")
    try:
        value = int(text, 8) if text else DEFAULT_UMASK
    except ValueError:
        value = -1
    if not 0 <= value <= 0o777:
        raise ValueError(f"{UMASK} must be an octal number from 000 to 777, but got {text!r}")
    return value


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for :func:`open`: a new file is accessible only to its user; an existing file is unchanged."""
    return os.open(path, flags, 0o666 & ~removed_permissions())


def make_private_folder(path: Path) -> Path:
    """Create a folder and its missing parents; new folders are accessible only to their user."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o777 & ~removed_permissions(), exist_ok=True)
    return path


def make_writable_folder(path: Path) -> Path:
    """Create a folder like :func:`make_private_folder`; raise OSError if no file can be created in it."""
    with tempfile.TemporaryFile(dir=make_private_folder(path)):
        return path


def write_private_text(path: Path, text: str, *, executable: bool = False) -> None:
    """Write text to a file that is accessible only to its user, even if others could read it before."""
    with open(path, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    path.chmod((0o777 if executable else 0o666) & ~removed_permissions())


def lock_file(file: IO[str] | IO[bytes] | int, wait_seconds: float | None = 0.0) -> None:
    """Take the exclusive lock of an open file, for this process and the processes that inherit the file.

    The lock is released when the last of these processes has closed the file or ended. Raises OSError if another
    process still holds it after ``wait_seconds``; None means no limit.
    """
    import fcntl  # not available on Windows, where results can still be read

    if wait_seconds is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOCK_POLL_SECONDS)
