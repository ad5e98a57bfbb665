"""Takes the password of a database out of the arguments of this process, which everybody on the machine can read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

OPTION = "--storage"
WARNING = (
    "warning: the password of --storage stood on the command line, where everybody on this machine can read it, and "
    "may stand in the history of the shell; give the URL in HPO_STORAGE, or keep the password in ~/.pgpass (PGPASSFILE)"
)


def hide_password() -> None:
    """Start this command again with the URL in ``HPO_STORAGE``, in the same process, where it has a password.

    The environment of a process is for its user alone, unlike its arguments. Returns where there is nothing to hide.
    """
    found = storage_with_password(sys.orig_argv)
    if found is None:
        return
    arguments, url = found
    sys.stderr.write(f"{WARNING}\n")
    sys.stderr.flush()
    os.execve(sys.executable, arguments, {**os.environ, "HPO_STORAGE": url})


def storage_with_password(arguments: Sequence[str]) -> tuple[list[str], str] | None:
    """The arguments without the storage, and its URL; None where no URL of theirs has a password."""
    from storage.errors import without_password

    left, url, rest = [], None, iter(arguments)
    for word in rest:
        if word == OPTION:
            url = next(rest, "")
        elif word.startswith(f"{OPTION}="):
            url = word.removeprefix(f"{OPTION}=")
        else:
            left.append(word)
    if url is None or without_password(url) == url:
        return None
    return left, url
