"""Removes passwords and tokens from this process's arguments, which every user of the machine can read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

OPTION, TOKEN = "--storage", "--token"
ARGUMENTS = "HPO_ARGUMENTS"
WARNING = (
    "warning: the URL in --storage contains a password, which every user of this machine can "
    "read and which may stay in the shell history; put the URL in HPO_STORAGE, or keep the "
    "password in ~/.pgpass (PGPASSFILE)"
)


def hide_password() -> None:
    """Restart this command in the same process, with the secrets moved from its arguments to its environment.

    Unlike a process's arguments, its environment can be read only by its user. The storage URL is moved to
    ``HPO_STORAGE``. Tokens and other URLs with a password are masked in the arguments, and restored from an environment
    variable when the command restarts. Does nothing if there is nothing to hide.
    """
    kept = os.environ.pop(ARGUMENTS, None)
    if kept is not None:
        sys.argv[1:] = json.loads(kept)
        return
    found = storage_with_password(sys.orig_argv)
    arguments, url = found or (sys.orig_argv, None)
    shown = without_secrets(arguments)
    if found is None and shown == list(arguments):
        return
    variables = dict(os.environ)
    if url is not None:
        variables["HPO_STORAGE"] = url
        sys.stderr.write(f"{WARNING}\n")
    if shown != list(arguments):
        own = sys.argv[1:]
        left = storage_with_password(own)
        variables[ARGUMENTS] = json.dumps(own if left is None else left[0])
    sys.stderr.flush()
    os.execve(sys.executable, shown, variables)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with tokens and the passwords in URLs replaced by ``***``."""
    from storage.errors import without_password

    shown = [without_password(word) if "://" in word else word for word in arguments]
    for number, word in enumerate(shown):
        if number and shown[number - 1] == TOKEN:
            shown[number] = "***"
        elif word.startswith(f"{TOKEN}="):
            shown[number] = f"{TOKEN}=***"
    return shown


def storage_with_password(arguments: Sequence[str]) -> tuple[list[str], str] | None:
    """Return the arguments without ``--storage``, and the storage URL; None if the URL has no password."""
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
