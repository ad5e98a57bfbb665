"""Measures this machine: arithmetic and decoding on all cores at once, loopback between two processes, and the disk.

Each figure is the best of a few short tries, as other work can only slow a try down. Cores are measured in separate
processes with one thread each, so that thread pools already started in this process do not matter.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpo.errors import PlanError

MATRIX_SIZE, GPU_MATRIX_SIZE, MATRIX_SECONDS = 768, 8192, 1.0
IMAGE_WIDTH, IMAGE_HEIGHT, IMAGE_SECONDS = 500, 375, 1.0
LOOPBACK_BYTES, CHUNK_BYTES, ROUND_TRIPS = 2**28, 2**20, 2000
DISK_BYTES = 2**28
TRIES = 3

ONE_THREAD: Mapping[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)

MULTIPLY = f"""
import json, time
import numpy as np
a = np.random.default_rng(0).random(({MATRIX_SIZE}, {MATRIX_SIZE}), dtype=np.float32)
a @ a
count, started = 0, time.perf_counter()
while time.perf_counter() - started < {MATRIX_SECONDS}:
    a @ a
    count += 1
print(json.dumps(2 * {MATRIX_SIZE}**3 * count / (time.perf_counter() - started)))
"""

DECODE = f"""
import io, json, time
import numpy as np
from PIL import Image
rng = np.random.default_rng(0)
coarse = rng.integers(0, 255, ({IMAGE_HEIGHT} // 8, {IMAGE_WIDTH} // 8, 3), dtype=np.uint8)
file = io.BytesIO()
Image.fromarray(coarse).resize(({IMAGE_WIDTH}, {IMAGE_HEIGHT})).save(file, "JPEG", quality=90)
count, started = 0, time.perf_counter()
while time.perf_counter() - started < {IMAGE_SECONDS}:
    np.asarray(Image.open(file).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR))
    count += 1
print(json.dumps(count / (time.perf_counter() - started)))
"""

GPU_MULTIPLY = f"""
import json, time
import torch
found = {{}}
kinds = {{"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}}
for precision, kind in kinds.items():
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    a = torch.randn({GPU_MATRIX_SIZE}, {GPU_MATRIX_SIZE}, device="cuda").to(kind)
    (a @ a)[0, 0].item()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < {MATRIX_SECONDS}:
        for _ in range(10):
            b = a @ a
        b[0, 0].item()
        count += 10
    found[precision] = 2 * {GPU_MATRIX_SIZE}**3 * count / (time.perf_counter() - started)
print(json.dumps(found))
"""

ANSWER = f"""
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range({ROUND_TRIPS}):
    link.sendall(link.recv(8))
left = {LOOPBACK_BYTES} * {TRIES}
buffer = bytearray({CHUNK_BYTES})
while left:
    left -= link.recv_into(buffer)
    if left % {LOOPBACK_BYTES} == 0:
        link.sendall(b"done")
"""


@dataclass(frozen=True)
class MachineMeasurements:
    """The measured figures of this machine.

    ``flops_per_core`` is the fp32 flop/s of one core while all cores compute. ``loopback_seconds`` is the time of one
    message over the loopback. ``disk_bytes_per_second`` is the speed of reading a file that is not cached.
    ``core_speed`` is the speed of a core that decodes images while all cores do, relative to a core that decodes alone.
    ``gpu_flops`` is the flop/s of a GPU by precision, empty if there is no GPU.
    """

    flops_per_core: float
    loopback_bytes_per_second: float
    loopback_seconds: float
    disk_bytes_per_second: float
    core_speed: float
    gpu_flops: dict[str, float] = field(default_factory=dict)


def measure_machine(cores: int, folder: Path, *, gpu: bool = False) -> MachineMeasurements:
    """Measure this machine, including its first GPU if ``gpu`` is true; this takes 15 seconds.

    ``folder`` is on the disk to be measured. Raises :class:`PlanError` if a process cannot be started or a file cannot
    be written.
    """
    try:
        seconds, bandwidth = loopback()
        return MachineMeasurements(
            matrix_flops(cores),
            bandwidth,
            seconds,
            disk_bandwidth(folder),
            images_per_second(cores) / images_per_second(1),
            gpu_flops() if gpu else {},
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise PlanError(f"this machine cannot be measured in {folder}: {error}") from error


def matrix_flops(cores: int) -> float:
    """Return the fp32 flop/s of one core while all ``cores`` multiply matrices."""
    return _rate_of_one(MULTIPLY, cores)


def gpu_flops() -> dict[str, float]:
    """Return the flop/s of the first GPU in matrix products, by precision."""
    done = subprocess.run(
        [sys.executable, "-c", GPU_MULTIPLY], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def images_per_second(cores: int) -> float:
    """Return how many JPEGs of 500 x 375 one core decodes and scales per second while all ``cores`` do so."""
    return _rate_of_one(DECODE, cores)


def _rate_of_one(program: str, processes: int) -> float:
    """Return the mean of the figures printed by ``processes`` concurrent processes with one thread each."""
    environment = {**os.environ, **ONE_THREAD}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    return sum(float(json.loads(process.communicate()[0])) for process in running) / processes


def loopback() -> tuple[float, float]:
    """Return the seconds per small message and the bytes per second between two processes over TCP, as in Gloo."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        child = subprocess.Popen([sys.executable, "-c", ANSWER, str(server.getsockname()[1])])
        try:
            link, _ = server.accept()
            with link:
                link.settimeout(60)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _message_seconds(link), max(_bandwidth(link) for _ in range(TRIES))
        finally:
            child.kill()
            child.wait()


def disk_bandwidth(folder: Path) -> float:
    """Return the read speed of a new file in bytes per second, after dropping its pages from the cache if permitted."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(CHUNK_BYTES)
        for _ in range(DISK_BYTES // CHUNK_BYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return max(_read(file.fileno()) for _ in range(TRIES))


def _message_seconds(link: socket.socket) -> float:
    started = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        link.sendall(b"12345678")
        link.recv(8)
    return (time.perf_counter() - started) / ROUND_TRIPS / 2


def _bandwidth(link: socket.socket) -> float:
    block = bytes(CHUNK_BYTES)
    started = time.perf_counter()
    for _ in range(LOOPBACK_BYTES // CHUNK_BYTES):
        link.sendall(block)
    link.recv(4)
    return LOOPBACK_BYTES / (time.perf_counter() - started)


def _read(descriptor: int) -> float:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    started = time.perf_counter()
    while os.read(descriptor, CHUNK_BYTES):
        pass
    return DISK_BYTES / (time.perf_counter() - started)
