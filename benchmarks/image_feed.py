"""Images per second from a folder of JPEGs to a batch that is ready for the device: decoded, cropped, mirrored.

Writes images of 500x375 pixels (noise whose power falls with the frequency like that of real scenes, about 115 kB each,
like ImageNet's) and measures in turn, round by round, each way in a separate process that may use one core or two:

* ``before``: the procedure of the commit before this feed: Pillow on four threads, then conversion and normalization to
  float32 by the thread that makes the batches
* ``simplejpeg``, ``pillow``: this feed with each decoder; batches are bytes, as the device gets them
* ``simplejpeg, normalized``: the same and ``prepare`` on the CPU, for a training that computes there
* ``decoding alone``: an upper bound for any feed with this decoder: one thread in a bare loop reads the files and
  decodes them down to the end of their crops, and does nothing else
* ``DataLoader``: PyTorch's, with one worker process per core, the same decoder and the same crops; batches of bytes

The CPU time of all processes depends less on the machine's other load than wall-clock time does.

    python benchmarks/image_feed.py [--images N] [--rounds N] [--cores 1 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SIZE = 224
BATCH = 64
WIDTH, HEIGHT, QUALITY = 500, 375, 90
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    """Print a table of images per second and CPU time per image, and their ratios to ``before``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="for the images (default: a temporary folder)")
    parser.add_argument("--measure", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.folder, options.cores[0])))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        kilobytes = write_images(Path(folder), options.images) / options.images / 1000
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {options.images} images of "
            f"{WIDTH}x{HEIGHT}, {kilobytes:.0f} kB each; medians of {options.rounds} rounds\n"
        )
        taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for done in range(options.rounds):
            print(f"round {done + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for cores in options.cores:
                for way in WAYS:
                    once = in_a_process(way, Path(folder), cores)
                    if once is not None:
                        taken.setdefault((way, cores), []).append(once)
        print(
            "| way | cores | images/s | ratio to before | processor ms an image | ratio to before |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for (way, cores), found in taken.items():
            rates, costs = ([each[at] for each in found] for at in (0, 1))
            before = taken["before", cores]
            faster = statistics.median(
                rate / old[0] for rate, old in zip(rates, before, strict=True)
            )
            cheaper = statistics.median(
                old[1] / cost for cost, old in zip(costs, before, strict=True)
            )
            print(
                f"| {way} | {cores} | {statistics.median(rates):.0f} | {faster:.2f} | "
                f"{1000 * statistics.median(costs):.2f} | {cheaper:.2f} |"
            )


def in_a_process(way: str, folder: Path, cores: int) -> tuple[float, float] | None:
    """Return images per second and CPU seconds per image; None if a decoder is not installed."""
    command = [sys.executable, __file__, "--measure", way, "--cores", str(cores)]
    run = subprocess.run(
        [*command, "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if "is not installed" in run.stderr:
        return None
    if run.returncode:
        raise RuntimeError(run.stderr)
    found = json.loads(run.stdout)
    return found["rate"], found["processor"]


def measured(way: str, folder: Path, cores: int) -> dict[str, float]:
    """Measure one pass over all images after a warm-up pass, on the first ``cores`` cores."""
    from trainers.numerics.memory import keep_freed_memory

    keep_freed_memory()  # as every training process does
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(allowed[:cores]))
    batches = WAYS[way](folder, cores)
    count = next(batches)  # images in one pass
    for _ in range(-(-count // BATCH)):
        next(batches)
    started, used = time.perf_counter(), processor_seconds()
    made = 0
    while made < count:
        made += next(batches)
    seconds = time.perf_counter() - started
    used_now = processor_seconds()
    batches.close()
    return {"rate": made / seconds, "processor": (used_now - used) / made}


def processor_seconds() -> float:
    """Return the CPU time of this process and its children, querying running ones one by one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def feed(folder: Path, decoder: str, *, prepare: bool = False) -> Iterator[int]:
    """Yield the images in a training's order, as the trainer requests them."""
    import torch

    from trainers.distributed.sampling import SampleStream
    from trainers.loop.prefetch import prefetch_results
    from trainers.workloads import load_workload

    workload = load_workload(
        "resnet",
        {"source": "image_folder", "path": str(folder), "image_size": SIZE, "decoder": decoder},
    )
    stream = SampleStream(workload.train_samples, 0)
    yield workload.train_samples

    def asked() -> Iterator:
        for at in range(0, sys.maxsize, BATCH):
            indices, epochs = stream.take(at, BATCH)
            yield lambda indices=indices, epochs=epochs: workload.training_batch(indices, epochs, 0)

    torch.set_num_threads(1)
    for batch in prefetch_results(
        asked(), workload.prefetched_batches, workload.concurrent_batches
    ):
        images, _ = workload.prepare(batch) if prepare else batch
        yield len(images)


def dataloader(folder: Path, cores: int) -> Iterator[int]:
    """Use PyTorch's DataLoader over the same files, with the same decoder and crops."""
    import numpy as np
    from torch.utils.data import DataLoader, Dataset

    from trainers.feed.crops import UNIFORMS, decode_crop, random_crop
    from trainers.feed.decoders import open_image_decoder

    files = sorted((folder / "train").glob("*/*"))
    decoder = open_image_decoder("simplejpeg")

    class Images(Dataset):
        """Bytes ``(3, size, size)`` of an image, randomly cropped and mirrored, and a class."""

        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int):
            content = files[index].read_bytes()
            size = decoder.size(content)
            generator = np.random.default_rng(index)
            crop = random_crop(*size, generator.random(UNIFORMS).tolist())
            image = decode_crop(decoder, content, crop, size, SIZE)
            return (image.flip(3) if generator.random() < 0.5 else image)[0], index % 2

    yield len(files)
    loader = DataLoader(
        Images(), BATCH, shuffle=True, num_workers=cores, persistent_workers=True, drop_last=True
    )
    while True:
        for images, _ in loader:
            yield len(images)


def decoding_alone(folder: Path) -> Iterator[int]:
    """Read files and decode them down to the end of their crops, in one thread."""
    import numpy as np

    from trainers.feed.crops import UNIFORMS, random_crop
    from trainers.feed.decoders import open_image_decoder

    files = sorted((folder / "train").glob("*/*"))
    decoder, generator = open_image_decoder("simplejpeg"), np.random.default_rng(0)
    yield len(files)
    while True:
        for index in generator.permutation(len(files))[:BATCH].tolist():
            crop = random_crop(WIDTH, HEIGHT, generator.random(UNIFORMS).tolist())
            decoder.pixels(files[index].read_bytes(), 1, crop.top + crop.height)
        yield min(BATCH, len(files))


def before(folder: Path) -> Iterator[int]:
    """Use the procedure of the commit before: clipped crops, conversion to floats in one thread."""
    import numpy as np
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    files = sorted((folder / "train").glob("*/*"))
    generator = np.random.default_rng(0)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    yield len(files)

    def read(file: Path, draws: list[float]) -> np.ndarray:
        with Image.open(file) as opened:
            opened.draft("RGB", (2 * SIZE, 2 * SIZE))
            image = opened.convert("RGB")
        area = image.width * image.height * (0.08 + 0.92 * draws[0])
        aspect = math.exp((2 * draws[1] - 1) * math.log(4 / 3))
        width = min(image.width, math.sqrt(area * aspect))
        height = min(image.height, math.sqrt(area / aspect))
        left, top = draws[2] * (image.width - width), draws[3] * (image.height - height)
        box = (left, top, left + width, top + height)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        if draws[4] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    with ThreadPoolExecutor(4) as decoding, ThreadPoolExecutor(1) as ahead:

        def batch(chosen: list[int]) -> torch.Tensor:
            draws = generator.random((len(chosen), 5)).tolist()
            images = decoding.map(read, [files[index] for index in chosen], draws)
            pixels = torch.from_numpy(np.stack(list(images))).permute(0, 3, 1, 2)
            return (pixels / 255 - mean) / deviation

        def following():
            return ahead.submit(batch, generator.permutation(len(files))[:BATCH].tolist())

        waiting = [following(), following()]
        while True:
            waiting.append(following())
            yield len(waiting.pop(0).result())


WAYS = {
    "before": lambda folder, _: before(folder),
    "simplejpeg": lambda folder, _: feed(folder, "simplejpeg"),
    "simplejpeg, normalized": lambda folder, _: feed(folder, "simplejpeg", prepare=True),
    "pillow": lambda folder, _: feed(folder, "pillow"),
    "DataLoader": dataloader,
    "decoding alone": lambda folder, _: decoding_alone(folder),
}


def write_images(folder: Path, count: int) -> int:
    """Write two classes for training and two images for evaluation; return the bytes of the training images."""
    import io

    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    total = 0
    for index in range(count + 2):
        part = "train" if index < count else "val"
        content = io.BytesIO()
        Image.fromarray(scene(generator)).save(content, "JPEG", quality=QUALITY)
        place = folder / part / f"class{index % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index:05}.jpg").write_bytes(content.getvalue())
        total += len(content.getvalue()) if part == "train" else 0
    return total


def scene(generator):
    """Make an image ``(height, width, 3)``: amplitudes fall with frequency (Field 1987, doi:10.1364/JOSAA.4.002379)."""
    import numpy as np

    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = 1

    def layer(slope: float):
        noise = np.fft.rfft2(generator.standard_normal((HEIGHT, WIDTH))) / frequency**slope
        values = np.fft.irfft2(noise, (HEIGHT, WIDTH))
        return values / values.std()

    brightness = layer(1.0)
    channels = [128 + 50 * (brightness + 0.4 * layer(1.3)) for _ in range(3)]
    return np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8)


if __name__ == "__main__":
    main()
