"""Images on their way to the device: the published crop, exact pixels, the same with any number of threads."""

from __future__ import annotations

import io
import math
import os
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from search_spaces.settings import TrainingSettings
from tests.trainers.image_samples import jpeg, scene, write_scenes
from trainers import DataError, Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.feed.crops import (
    UNIFORMS,
    ImageCrop,
    centre_crop,
    decode_crop,
    largest_reduction,
    random_crop,
)
from trainers.feed.decoders import DECODERS, REDUCTIONS, open_image_decoder
from trainers.feed.pool import DecodingPool
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics import threads as shares
from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.host_work import host_seconds_per_sample
from trainers.workloads.resnet.image_reader import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    normalize_images,
)
from trainers.workloads.resnet.task import ResNetWorkload

pytestmark = pytest.mark.medium

DRAWS = 40_000
CPU = torch.device("cpu")


def published_crop(generator, width, height):
    """torchvision's RandomResizedCrop.get_params, scale (0.08, 1), ratio (3/4, 4/3), in its own words with NumPy."""
    area = height * width
    log_ratio = np.log((3.0 / 4.0, 4.0 / 3.0))
    for _ in range(10):
        target_area = area * generator.uniform(0.08, 1.0)
        aspect_ratio = np.exp(generator.uniform(log_ratio[0], log_ratio[1]))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = generator.integers(0, height - h + 1)
            j = generator.integers(0, width - w + 1)
            return i, j, h, w
    in_ratio = float(width) / float(height)
    if in_ratio < 3.0 / 4.0:
        w = width
        h = round(w / (3.0 / 4.0))
    elif in_ratio > 4.0 / 3.0:
        h = height
        w = round(h * (4.0 / 3.0))
    else:
        w = width
        h = height
    return (height - h) // 2, (width - w) // 2, h, w


def described(crops, width, height):
    """Of crops (top, left, height, width): mean area, shares of full width and height, mean place and aspect."""
    top, left, h, w = np.array(crops, dtype=float).T
    return {
        "area": (w * h / (width * height)).mean(),
        "area squared": ((w * h / (width * height)) ** 2).mean(),
        "full width": (w == width).mean(),
        "full height": (h == height).mean(),
        "log aspect": np.log(w / h).mean(),
        "left": (left / np.maximum(width - w, 1)).mean(),
        "top": (top / np.maximum(height - h, 1)).mean(),
    }


@pytest.mark.parametrize(
    ("width", "height"), [(500, 375), pytest.param(240, 640, marks=pytest.mark.slow)]
)
def test_the_random_crop_is_that_of_the_published_procedure(width, height):
    indices = torch.arange(DRAWS)
    uniforms = sample_uniforms(3, torch.zeros_like(indices), indices, UNIFORMS).tolist()
    crops = [random_crop(width, height, each) for each in uniforms]
    generator = np.random.default_rng(5)
    published = [published_crop(generator, width, height) for _ in range(DRAWS)]
    found = described([(c.top, c.left, c.height, c.width) for c in crops], width, height)
    for name, value in described(published, width, height).items():
        # 0.01 is more than five standard errors of the difference of two means of values within [0, 1]
        assert found[name] == pytest.approx(value, abs=0.01), name
    if (width, height) == (500, 375):
        assert found["area"] == pytest.approx(0.434, abs=0.01)
        assert found["full width"] < 0.03 and found["full height"] < 0.03
    for crop in crops[:2000]:
        assert 0 <= crop.left <= crop.left + crop.width <= width
        assert 0 <= crop.top <= crop.top + crop.height <= height


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1000, 100), (433, 0, 133, 100)),
        ((100, 1000), (0, 433, 100, 133)),
        ((90, 80), (0, 0, 90, 80)),
    ],
)
def test_where_no_try_fits_the_crop_is_the_largest_one_in_the_middle(size, expected):
    largest_first = [1 - 1e-9, 0.5] * 10 + [0.5, 0.5]  # the whole area, square: too high or wide
    if size == (90, 80):
        largest_first = [1 - 1e-9, 0.0] * 10 + [0.5, 0.5]
    crop = random_crop(size[0], size[1], largest_first)
    assert (crop.left, crop.top, crop.width, crop.height) == expected


def test_the_centre_is_224_of_256_of_the_shorter_side():
    assert centre_crop(256, 512) == ImageCrop(16, 144, 224, 224)
    assert centre_crop(40, 24, 1.0) == ImageCrop(8, 0, 24, 24)


def test_a_reduced_decoding_never_leaves_fewer_pixels_than_the_output():
    generator = np.random.default_rng(1)
    content = jpeg(scene(generator, 1001, 753))
    for reduction in REDUCTIONS:
        for name in installed():
            height, width, _ = open_image_decoder(name).pixels(content, reduction).shape
            assert width == -(-1001 // reduction) and height == -(-753 // reduction)
    reductions = set()
    for number, uniforms in enumerate(generator.random((500, UNIFORMS)).tolist()):
        crop, size = random_crop(1001, 753, uniforms), (64, 120)[number % 2]
        reduction = largest_reduction(crop, size)
        reductions.add(reduction)
        kept = min(
            round((crop.left + crop.width) / reduction) - round(crop.left / reduction),
            round((crop.top + crop.height) / reduction) - round(crop.top / reduction),
        )
        assert reduction == 1 or kept >= size
    assert reductions == {1, 2, 4, 8}


def installed():
    names = []
    for name in DECODERS:
        try:
            open_image_decoder(name)
        except DataError:
            continue
        names.append(name)
    return names


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_give_the_pixels_of_pillow(name):
    if name not in installed():
        pytest.skip(f"{name} is not installed")
    decoder = open_image_decoder(name)
    generator = np.random.default_rng(2)
    pixels = scene(generator, 123, 77)
    for content in (jpeg(pixels), _stored(pixels, "PNG"), _stored(pixels[..., 0], "JPEG")):
        assert decoder.size(content) == (123, 77)
        with Image.open(io.BytesIO(content)) as image:
            expected = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(decoder.pixels(content) - expected).max() <= 1
    cmyk = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG")
    assert decoder.pixels(cmyk.getvalue()).shape == (77, 123, 3)
    for damaged in (b"", b"no image", jpeg(pixels)[:200]):
        with pytest.raises((OSError, ValueError)):
            decoder.pixels(damaged)


def _stored(pixels, kind, **options):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


JPEGS = {
    **{f"4:{s}": {"subsampling": f"4:{s}"} for s in ("4:4", "2:2", "2:0")},
    "restart markers": {"subsampling": "4:2:0", "restart_marker_rows": 1},
    "with a comment": {"comment": b"\xff\xda\xff\xc0" * 9},
    "progressive": {"progressive": True},
}


@pytest.mark.parametrize("kind", [*JPEGS, "grey"])
def test_rows_above_a_crop_come_out_the_same_where_decoding_stops_below_it(kind):
    if "simplejpeg" not in installed():
        pytest.skip("simplejpeg is not installed")
    decoder, whole = open_image_decoder("simplejpeg"), open_image_decoder("simplejpeg")
    generator = np.random.default_rng(3)
    pixels = scene(generator, 331, 247)
    content = _stored(pixels[..., 0] if kind == "grey" else pixels, "JPEG", **JPEGS.get(kind, {}))
    for reduction in REDUCTIONS:
        full = whole.pixels(content, reduction)
        fewest = len(full)
        for rows in (1, 16, 17, *generator.integers(1, 248, 12).tolist(), 247):
            upper = decoder.pixels(content, reduction, rows)
            needed = min(len(full), -(-rows // reduction))
            assert upper.shape[1:] == full.shape[1:]
            assert len(upper) >= needed
            assert np.array_equal(upper[:needed], full[:needed])
            fewest = min(fewest, len(upper))
        # and decoding did stop, where it can
        assert (fewest == len(full)) == (kind == "progressive")
    for _ in range(20):
        crop = random_crop(331, 247, generator.random(UNIFORMS).tolist())
        for size in (16, 40, 72):
            found = decode_crop(decoder, content, crop, (331, 247), size)
            whole.pixels = lambda given, reduction=1, rows=None: decoder.pixels(given, reduction)
            assert torch.equal(found, decode_crop(whole, content, crop, (331, 247), size))


def test_a_file_that_lost_its_end_is_found_though_the_crop_lies_above():
    pixels = scene(np.random.default_rng(5), 123, 77)
    content = _stored(pixels, "JPEG", quality=95)
    for name in installed():
        with pytest.raises((OSError, ValueError)):
            open_image_decoder(name).pixels(content[: len(content) * 3 // 4], 1, 10)


@pytest.mark.parametrize(
    "crop", [ImageCrop(31, 7, 150, 130), ImageCrop(0, 0, 72, 72), ImageCrop(3, 2, 40, 50)]
)
def test_a_crop_is_scaled_as_by_pillow(crop):
    decoder = open_image_decoder("pillow")
    pixels = scene(np.random.default_rng(4), 200, 150)
    found = decode_crop(decoder, _stored(pixels, "PNG"), crop, (200, 150), 72)
    cut = pixels[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    expected = Image.fromarray(cut).resize((72, 72), Image.Resampling.BILINEAR)
    difference = np.abs(found[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(expected))
    assert difference.max() <= 1
    assert found[0].permute(1, 2, 0).is_contiguous()  # so that a batch takes it in one copy


def test_bytes_normalized_on_the_device_equal_floats_normalized_before(tmp_path):
    options = {
        "source": "image_folder",
        "path": write_scenes(tmp_path, (120, 90)),
        "image_size": 72,
        "model": "resnet8",
    }
    workload = ResNetWorkload(options)
    indices, epochs = torch.arange(8), torch.full((8,), 3)
    batch = workload.training_batch(indices, epochs, 7)
    assert batch[0].dtype == torch.uint8
    images, classes = workload.prepare(batch)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(classes, batch[1])
    mean, deviation = np.array(IMAGENET_MEAN), np.array(IMAGENET_DEVIATION)
    uniforms = sample_uniforms(7, epochs, indices, UNIFORMS + 1).tolist()
    for index in range(8):
        file = tmp_path / "train" / ("cat", "dog")[index // 4] / f"{index % 4}.jpg"
        with Image.open(file) as opened:
            crop = random_crop(120, 90, uniforms[index][1:])
            box = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
            image = opened.convert("RGB").crop(box).resize((72, 72), Image.Resampling.BILINEAR)
        pixels = np.asarray(image).astype(float)
        if uniforms[index][0] < 0.5:
            pixels = pixels[:, ::-1]
        expected = ((pixels / 255 - mean) / deviation).transpose(2, 0, 1)
        stored = batch[0][index].numpy().astype(float)
        level = 1 / 255 / deviation.min()
        assert np.abs(images[index].numpy() - expected).max() < 1.01 * level  # a level by rounding
        exact = (stored / 255 - mean[:, None, None]) / deviation[:, None, None]
        np.testing.assert_allclose(images[index].numpy(), exact, atol=2e-6)


def test_normalization_keeps_the_layout():
    images = torch.randint(0, 256, (3, 3, 8, 6), dtype=torch.uint8)
    plain = normalize_images(images, IMAGENET_MEAN, IMAGENET_DEVIATION)
    last = normalize_images(
        images.to(memory_format=torch.channels_last), IMAGENET_MEAN, IMAGENET_DEVIATION
    )
    assert plain.is_contiguous() and last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)


@pytest.mark.parametrize("size", [(120, 90), (32, 32)])
def test_the_weights_do_not_depend_on_the_number_of_decoding_threads(tmp_path, size):
    path = write_scenes(tmp_path, size)
    weights = []
    for threads in (1, 2, 3):
        options = {
            "source": "image_folder",
            "path": path,
            "image_size": 72 if size == (120, 90) else 32,
            "model": "resnet8",
            "decoding_threads": threads,
        }
        training = SynchronousTraining(job(options), SingleProcessCommunicator(CPU))
        training.advance()
        checkpoint = training.state_dict()
        resumed = SynchronousTraining(
            job({**options, "decoding_threads": 4}), SingleProcessCommunicator(CPU)
        )
        resumed.load_state_dict(checkpoint)  # the threads may be others when a training goes on
        while not resumed.finished:
            resumed.advance()
        weights.append(resumed.model.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(other[name], value) for name, value in weights[0].items())


def job(options, **changes):
    values = {
        "workload": "resnet",
        "data": options,
        "target": Target("top1", 1.1),
        "settings": TrainingSettings(learning_rate=0.05, normalization_batch_size=4),
        "global_batch_size": 8,
        "seed": 1,
        "epochs": 2,
        "evaluations_per_epoch": 1,
        **changes,
    }
    return TrainingJob(**values)


def test_a_pool_does_everything_once_and_raises_the_first_error():
    for threads in (1, 3):
        pool = DecodingPool(threads)
        done: list[int] = []

        def work(index):
            if index in (40, 70):
                raise ValueError(f"{index}")

        with pytest.raises(ValueError, match="40"):
            pool.run(work, 100)
        done.clear()
        pool.run(done.append, 100)
        assert sorted(done) == list(range(100))


def test_a_pool_really_works_side_by_side():
    meeting = threading.Barrier(3, timeout=20)
    DecodingPool(3).run(lambda _: meeting.wait(), 3)


def test_the_threads_are_the_cores_over_the_workers_of_the_node(monkeypatch):
    monkeypatch.setattr(shares._share, "threads", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)), raising=False)
    for name in shares.LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    assert DecodingPool().threads == 24
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "4")
    assert DecodingPool().threads == 6
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "100")
    assert DecodingPool().threads == 1
    monkeypatch.setattr(shares._share, "threads", 5)  # as a trial of a sweep is told
    assert DecodingPool().threads == 5
    assert DecodingPool(2).threads == 2


def test_host_work_is_that_of_decoding(tmp_path):
    path = write_scenes(tmp_path, (500, 375), per_class=2)
    large, small = (
        ResNetWorkload(
            {"source": "image_folder", "path": path, "image_size": size, "model": "resnet8"},
        )
        for size in (224, 16)
    )
    decoding, in_memory = host_seconds_per_sample(large, 4), host_seconds_per_sample(small, 4)
    assert 3e-4 < decoding < 0.2
    assert in_memory < decoding
    assert 3e-4 < host_seconds_per_sample(large, 4, evaluation=True) < 0.2
