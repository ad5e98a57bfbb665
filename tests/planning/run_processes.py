"""The processes of a run that was launched from a folder, and the ports on which they listen."""

import os
import time
from pathlib import Path


def wait_for(condition, seconds=60.0, what="it"):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)  # to look reads the whole of /proc


def processes_of(folder):
    """Return the ids of the processes, except this one, whose command or environment names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in words and int(process.name) != os.getpid() and state != "Z":
            found.append(int(process.name))
    return found


def ranks_of(folder):
    """Return those of the processes that train."""
    return [pid for pid in processes_of(folder) if b"trainers\0" in _command(pid)]


def listening_addresses(pids):
    """Return the addresses on which processes listen, as in /proc/net: in hexadecimal, with the port."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(fields[1])
    return found


def is_loopback(address):
    host = address.partition(":")[0]
    return host in (
        "0100007F",
        "00000000000000000000000001000000",
        "0000000000000000FFFF00000100007F",  # of IPv4, at a socket of IPv6
    )


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
