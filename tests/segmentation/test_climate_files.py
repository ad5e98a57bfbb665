import h5py
import numpy as np
import pytest
import torch

from trainers import DataError
from trainers.workloads.segmentation.channels import CHANNELS
from trainers.workloads.segmentation.data import LARGEST_IN_MEMORY, open_samples
from trainers.workloads.segmentation.hdf5 import (
    channel_summary_of,
    read_channel_range,
    read_hdf5_sample,
    write_channel_stats,
    write_hdf5_sample,
)

HEIGHT, WIDTH = 6, 10


def some_fields(seed, height=HEIGHT, width=WIDTH):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(height, width, 16)) * 10.0 ** np.arange(-8, 8) + np.arange(16)


def some_labels(seed, height=HEIGHT, width=WIDTH):
    return np.random.default_rng(seed).integers(0, 3, (height, width))


def write_folder(folder, train=5, validation=2, stats="stats.h5"):
    """A folder in the DeepCAM format, and what was written: training fields and labels, then the others'."""
    written = []
    for part, count in (("train", train), ("validation", validation)):
        (folder / part).mkdir(parents=True)
        samples = [
            (some_fields([count, index]), some_labels([count, index])) for index in range(count)
        ]
        for index, sample in enumerate(samples):
            write_hdf5_sample(folder / part / f"data-{index:03d}.h5", *sample)
        written += [np.stack(arrays) for arrays in zip(*samples, strict=True)]
    summary = channel_summary_of(written[0][0])
    for fields in written[0][1:]:
        summary = summary.merged(channel_summary_of(fields))
    write_channel_stats(folder / stats, summary)
    return written


def opened(folder, **options):
    return open_samples({"source": "deepcam", "path": str(folder), **options})


def read_training(folder, indices=range(5), **options):
    chosen = torch.tensor(list(indices))
    samples = opened(folder, **options)
    return samples.prepare(samples.training_batch(chosen, torch.zeros_like(chosen), 0))


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "climate")
    return tmp_path / "climate"


@pytest.mark.medium
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_samples_come_back_scaled_by_the_training_range_channels_first(tmp_path, cache):
    fields, labels, other_fields, other_labels = write_folder(tmp_path)
    samples = opened(tmp_path, cache=cache)
    assert (samples.train_samples, samples.evaluation_samples) == (5, 2)
    assert (samples.channels, samples.height, samples.width, samples.classes) == (
        16,
        HEIGHT,
        WIDTH,
        3,
    )
    fields, other_fields = fields.astype(np.float32), other_fields.astype(np.float32)
    low, high = fields.min((0, 1, 2)), fields.max((0, 1, 2))
    order = [3, 0, 3, 1]
    for _ in range(2):  # the second time from memory, where there is a cache
        batch = samples.training_batch(torch.tensor(order), torch.zeros(4), seed=0)
        assert batch[0].shape == (4, HEIGHT, WIDTH, 16) and batch[1].dtype == torch.uint8
        found, classes = samples.prepare(batch)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert found.dtype == torch.float32 and classes.dtype == torch.int64
        expected = ((fields[order] - low) / (high - low)).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
        np.testing.assert_array_equal(classes, labels[order])
        found, classes = samples.prepare(samples.evaluation_batch(torch.tensor([1])))
        np.testing.assert_allclose(
            found[0],
            ((other_fields[1] - low) / (high - low)).transpose(2, 0, 1),
            rtol=1e-5,
            atol=1e-6,
        )
        np.testing.assert_array_equal(classes[0], other_labels[1])
    everything, _ = samples.prepare(samples.training_batch(torch.arange(5), torch.zeros(5), seed=0))
    assert everything.amin((0, 2, 3)).abs().max() == 0
    torch.testing.assert_close(everything.amax((0, 2, 3)), torch.ones(16))


def test_the_format_is_that_of_deepcam(folder):
    fields, labels = some_fields([5, 0]), some_labels([5, 0])
    with h5py.File(folder / "train" / "data-000.h5") as file:
        assert file["climate/data"].dtype == np.float32 and file["climate/data"].shape == (
            HEIGHT,
            WIDTH,
            16,
        )
        np.testing.assert_array_equal(file["climate/data"][...], fields.astype(np.float32))
        np.testing.assert_array_equal(file["climate/labels_0"][...], labels)
    with h5py.File(folder / "stats.h5") as file:
        everything = np.stack([some_fields([5, index]) for index in range(5)]).reshape(-1, 16)
        assert file["climate/count"][()] == 5
        for name, expected in (
            ("minval", everything.min(0)),
            ("maxval", everything.max(0)),
            ("mean", everything.mean(0)),
            ("sqmean", (everything**2).mean(0)),
        ):
            np.testing.assert_allclose(file[f"climate/{name}"][...], expected, rtol=1e-5)


def test_labels_may_be_stored_as_floats(tmp_path):
    with h5py.File(tmp_path / "sample.h5", "w") as file:
        file["climate/data"], file["climate/labels_0"] = (
            some_fields(0),
            some_labels(0).astype(np.float32),
        )
    fields, labels = read_hdf5_sample(tmp_path / "sample.h5")
    assert fields.dtype == np.float32 and labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, some_labels(0))


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_fields_travel_in_their_stored_type_and_are_scaled_in_single_precision(tmp_path, cache):
    fields, *_ = write_folder(tmp_path)
    for index in range(5):
        with h5py.File(tmp_path / "train" / f"data-{index:03}.h5", "r+") as file:
            halves = (fields[index] / 1e4).astype(np.float16)
            del file["climate/data"]
            file["climate/data"] = halves
    samples = opened(tmp_path, cache=cache)
    batch = samples.training_batch(torch.arange(5), torch.zeros(5), 0)
    assert batch[0].dtype == torch.float16
    low, high = (fields.astype(np.float32).min((0, 1, 2)), fields.astype(np.float32).max((0, 1, 2)))
    expected = ((fields / 1e4).astype(np.float16).astype(float) - low) / (high - low)
    found = samples.prepare(batch)[0]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.permute(0, 2, 3, 1), expected, rtol=2e-6, atol=1e-6)
    write_hdf5_sample(tmp_path / "train" / "data-003.h5", fields[3], some_labels(0))
    with pytest.raises(DataError, match=r"same data type, here float16 .*data-003\.h5 has float32"):
        opened(tmp_path, cache=cache).training_batch(torch.arange(5), torch.zeros(5), 0)


def test_class_frequencies_are_counted_once_and_again_when_files_change(folder, monkeypatch):
    labels = np.stack([some_labels([5, index]) for index in range(5)])
    expected = np.bincount(labels.ravel()) / labels.size
    assert opened(folder).class_frequencies == pytest.approx(tuple(expected))
    with monkeypatch.context() as patch:
        patch.setattr("trainers.workloads.segmentation.data.read_labels", None)
        assert opened(folder).class_frequencies == pytest.approx(tuple(expected))
    write_hdf5_sample(folder / "train" / "data-004.h5", some_fields(0), np.zeros((HEIGHT, WIDTH)))
    labels[4] = 0
    assert opened(folder).class_frequencies == pytest.approx(
        tuple(np.bincount(labels.ravel()) / labels.size)
    )


def test_class_frequencies_need_no_right_to_write(folder, monkeypatch):
    def refused(*arguments, **options):
        raise PermissionError("read-only file system")

    monkeypatch.setattr("pathlib.Path.write_text", refused)
    assert sum(opened(folder).class_frequencies) == pytest.approx(1)
    assert not (folder / "class_frequencies.json").exists()


def test_small_data_stay_in_memory_and_large_ones_are_prefetched(folder, monkeypatch):
    assert opened(folder).prefetched_batches == 0
    assert opened(folder, cache="none").prefetched_batches > 0
    assert 7 * HEIGHT * WIDTH * 65 < LARGEST_IN_MEMORY
    monkeypatch.setattr(
        "trainers.workloads.segmentation.data.LARGEST_IN_MEMORY", 7 * HEIGHT * WIDTH * 65 - 1
    )
    assert opened(folder).prefetched_batches > 0
    read_training(folder)
    samples = opened(folder, cache="memory")
    samples.training_batch(torch.arange(5), torch.zeros(5), 0)
    for file in (folder / "train").iterdir():
        file.unlink()
    samples.training_batch(torch.arange(5), torch.zeros(5), 0)


def test_the_micro_batch_shrinks_with_the_grid(tmp_path):
    for name, shape in (("published", (768, 1152)), ("half", (384, 576)), ("small", (24, 36))):
        for part in ("train", "validation"):
            (tmp_path / name / part).mkdir(parents=True)
            with h5py.File(
                tmp_path / name / part / "data.h5", "w"
            ) as file:  # shapes alone, no data
                file.create_dataset("climate/data", (*shape, 16), np.float32)
                file.create_dataset("climate/labels_0", shape, np.uint8)
        write_channel_stats(tmp_path / name / "stats.h5", channel_summary_of(some_fields(0)))
    sizes = [opened(tmp_path / name).largest_micro_batch for name in ("published", "half", "small")]
    assert sizes == [2, 8, 64]


def test_statistics_may_lie_among_the_training_files(tmp_path):
    write_folder(tmp_path, stats="train/stats.h5")
    assert opened(tmp_path).train_samples == 5


def edit(file, name, change):
    with h5py.File(file, "r+") as content:
        values = content[name][...]
        del content[name]
        changed = change(values)
        if changed is not None:
            content[name] = changed


def at(values, place, value):
    values = values.astype(np.float64)
    values[place] = value
    return values


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("climate/data", lambda values: None, r"no dataset climate/data"),
        ("climate/labels_0", lambda values: None, r"no dataset climate/labels_0"),
        (
            "climate/data",
            lambda values: values[..., :15],
            r"must have the shape \(height, width, 16\).*\(6, 10, 15\)",
        ),
        (
            "climate/data",
            lambda values: values.transpose(2, 0, 1),
            r"channels last, but has \(16, 6, 10\)",
        ),
        ("climate/data", lambda values: values[..., 0], r"but has \(6, 10\)"),
        ("climate/data", lambda values: values.astype("S4"), r"must hold numbers"),
        (
            "climate/data",
            lambda values: at(values, (4, 7, 10), np.nan),
            r"PRECT is nan at row 4, column 7",
        ),
        ("climate/data", lambda values: at(values, (0, 0, 7), -np.inf), r"PSL is -inf at row 0"),
        (
            "climate/labels_0",
            lambda values: values[:, :9],
            r"must have the shape \(6, 10\).*\(6, 9\)",
        ),
        (
            "climate/labels_0",
            lambda values: at(values, (0, 0), 3).astype(np.int32),
            r"labels must be 0 to 2.*to 3",
        ),
        (
            "climate/labels_0",
            lambda values: at(values, (0, 0), -1).astype(np.int8),
            r"labels must be 0 to 2.*has -1",
        ),
        ("climate/labels_0", lambda values: at(values, (0, 0), 1.5), r"whole numbers"),
        ("climate/labels_0", lambda values: at(values, (0, 0), np.nan), r"labels must be 0 to 2"),
    ],
)
def test_a_broken_sample_is_named(folder, name, change, message):
    file = folder / "train" / "data-003.h5"
    edit(file, name, change)
    with pytest.raises(DataError, match=message) as raised:
        read_training(folder)
    assert str(file) in str(raised.value)
    read_training(folder, [0, 1, 2, 4])  # the others are sound


def test_huge_but_finite_values_are_no_error(folder):
    edit(
        folder / "train" / "data-003.h5", "climate/data", lambda values: np.full_like(values, 3e38)
    )
    fields, _ = read_hdf5_sample(folder / "train" / "data-003.h5")
    assert np.isfinite(fields).all()


def test_samples_of_another_shape_are_named(folder):
    file = folder / "train" / "data-002.h5"
    write_hdf5_sample(file, some_fields(0, 7, 10), some_labels(0, 7, 10))
    with pytest.raises(
        DataError, match=r"same height and width, here \(6, 10\), but .*data-002.h5 has \(7, 10\)"
    ):
        read_training(folder)
    write_hdf5_sample(
        folder / "validation" / "data-000.h5", some_fields(0, 6, 9), some_labels(0, 6, 9)
    )
    with pytest.raises(DataError, match=r"validation/data-000.h5 has \(6, 9\)"):
        opened(folder).evaluation_batch(torch.arange(2))


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.95])
def test_truncated_files_are_named(folder, kept):
    file = folder / "train" / "data-001.h5"
    content = file.read_bytes()
    file.write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])
    with pytest.raises(DataError, match=r"cannot read .*data-001.h5"):
        read_training(folder)


def test_a_file_with_a_damaged_chunk_is_named(folder):
    file = folder / "train" / "data-001.h5"
    with h5py.File(file, "w") as content:
        content.create_dataset(
            "climate/data", data=some_fields(0), fletcher32=True, chunks=(6, 10, 16)
        )
        content.create_dataset("climate/labels_0", data=some_labels(0))
        start = content["climate/data"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(file.read_bytes())
    damaged[start + 100] ^= 0xFF
    file.write_bytes(damaged)
    with pytest.raises(DataError, match=r"cannot read climate/data in .*data-001.h5"):
        read_training(folder)


def test_a_file_that_vanished_is_named(folder):
    samples = opened(folder)
    (folder / "train" / "data-001.h5").unlink()
    with pytest.raises(DataError, match=r"data-001.h5 does not exist"):
        samples.training_batch(torch.arange(5), torch.zeros(5), 0)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("climate/minval", lambda values: None, r"no dataset climate/minval"),
        (
            "climate/maxval",
            lambda values: values[:4],
            r"climate/maxval must hold one value per channel",
        ),
        ("climate/maxval", lambda values: at(values, 7, np.nan), r"minval < maxval must hold.*PSL"),
        ("climate/minval", lambda values: at(values, 15, 1e30), r"minval < maxval must hold.*ZBOT"),
    ],
)
def test_broken_statistics_are_named(folder, name, change, message):
    edit(folder / "stats.h5", name, change)
    with pytest.raises(DataError, match=message) as raised:
        opened(folder)
    assert str(folder / "stats.h5") in str(raised.value)


def test_a_channel_without_extent_is_refused(tmp_path):
    write_channel_stats(tmp_path / "stats.h5", channel_summary_of(np.zeros((2, 2, 16))))
    with pytest.raises(DataError, match=f"{CHANNELS[0]} has 0.0 and 0.0 in"):
        read_channel_range(tmp_path / "stats.h5")


def test_missing_parts_of_the_folder_are_named(tmp_path):
    with pytest.raises(DataError, match=r"train does not exist.*stats.h5"):
        opened(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"train holds no \*.h5 file"):
        opened(tmp_path)
    write_hdf5_sample(tmp_path / "train" / "a.h5", some_fields(0), some_labels(0))
    with pytest.raises(DataError, match="validation does not exist"):
        opened(tmp_path)
    (tmp_path / "validation").mkdir()
    write_hdf5_sample(tmp_path / "validation" / "a.h5", some_fields(0), some_labels(0))
    with pytest.raises(DataError, match=r"stats.h5 does not exist"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "deepcm"}, "no data source 'deepcm'; did you mean 'deepcam'"),
        ({"sorce": "deepcam"}, "no data option 'sorce'; did you mean 'source'"),
        ({"source": "deepcam"}, "needs path"),
        ({"source": "deepcam", "path": "/nowhere"}, "the data folder /nowhere does not exist"),
        (
            {"source": "deepcam", "path": "/nowhere", "height": 96},
            "'deepcam' has no option 'height'; 'generated' has",
        ),
        ({"source": "generated", "path": "x"}, "'generated' has no option 'path'"),
        (
            {"source": "deepcam", "path": "/nowhere", "cache": "disk"},
            "cache must be memory or none",
        ),
    ],
)
def test_bad_data_options_are_named(options, message):
    with pytest.raises(DataError, match=message):
        open_samples(options)
