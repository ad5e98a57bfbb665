"""Generated data sets: files, options, the command, and processes that write at the same time."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from trainers import DataError
from trainers.workloads.segmentation import generate
from trainers.workloads.segmentation.__main__ import main
from trainers.workloads.segmentation.data import open_samples
from trainers.workloads.segmentation.fields import make_planted_sample
from trainers.workloads.segmentation.generate import (
    GeneratedOptions,
    generated_folder,
    write_data_set,
)
from trainers.workloads.segmentation.grid import lat_lon_grid
from trainers.workloads.segmentation.hdf5 import (
    hdf5_sample_files,
    read_channel_range,
    read_hdf5_sample,
)
from trainers.workloads.segmentation.heuristics import make_heuristic_labels

pytestmark = pytest.mark.medium

SMALL = {"samples": 5, "evaluation_samples": 2, "height": 24, "width": 36, "seed": 3}


def options(folder, **changes):
    return {"source": "generated", **SMALL, "folder": str(folder), **changes}


def test_generated_files_are_the_made_samples_with_labels_from_the_heuristics(tmp_path):
    samples = open_samples(options(tmp_path / "set"))
    assert (samples.train_samples, samples.evaluation_samples, samples.height, samples.width) == (
        5,
        2,
        24,
        36,
    )
    everything = []
    for index, file in enumerate(hdf5_sample_files(tmp_path / "set" / "train")):
        fields, labels = read_hdf5_sample(file)
        np.testing.assert_array_equal(
            fields, make_planted_sample(lat_lon_grid(24, 36), 3, index).fields
        )
        np.testing.assert_array_equal(labels, make_heuristic_labels(fields))
        everything.append(fields)
    ranges = read_channel_range(tmp_path / "set" / "stats.h5")
    np.testing.assert_array_equal(ranges.low, np.stack(everything).min((0, 1, 2)))
    np.testing.assert_array_equal(ranges.high, np.stack(everything).max((0, 1, 2)))
    scaled, labels = samples.prepare(
        samples.training_batch(torch.arange(5), torch.zeros(5), seed=0)
    )
    assert scaled.min() == 0 and scaled.max() == pytest.approx(1)
    shares = labels.flatten().bincount(minlength=3) / labels.numel()
    assert samples.class_frequencies == pytest.approx(shares.tolist())


def test_the_files_are_written_once(tmp_path, monkeypatch):
    open_samples(options(tmp_path / "set"))
    monkeypatch.setattr(generate, "write_data_set", None)
    open_samples(options(tmp_path / "set"))


def test_training_and_evaluation_samples_differ_and_neither_depends_on_the_number_of_the_other(
    tmp_path,
):
    few, more = tmp_path / "few", tmp_path / "more"
    open_samples(options(few))
    open_samples(options(more, samples=6, evaluation_samples=3))
    for part in ("train", "validation"):
        for file in hdf5_sample_files(few / part):
            np.testing.assert_array_equal(
                read_hdf5_sample(file)[0], read_hdf5_sample(more / part / file.name)[0]
            )
    first, second = (
        read_hdf5_sample(hdf5_sample_files(few / part)[0])[0] for part in ("train", "validation")
    )
    assert not np.array_equal(first, second)


def test_the_default_folder_is_in_the_cache_and_follows_from_the_options(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = GeneratedOptions(**SMALL)
    folder = generated_folder(base)
    assert folder.parent == tmp_path / "largebatch" / "climate" and (folder / "stats.h5").is_file()
    places = {
        GeneratedOptions(**{**SMALL, name: value + 1}).place() for name, value in SMALL.items()
    }
    assert len(places | {folder}) == 6
    monkeypatch.setattr(generate, "GENERATOR_VERSION", generate.GENERATOR_VERSION + 1)
    assert base.place() != folder


@pytest.mark.slow
def test_processes_that_ask_at_once_get_one_complete_data_set(tmp_path):
    program = (
        "import json, sys\n"
        "from trainers.workloads.segmentation.generate import GeneratedOptions, generated_folder\n"
        "from trainers.workloads.segmentation.hdf5 import hdf5_sample_files, read_hdf5_sample\n"
        "folder = generated_folder(GeneratedOptions(**json.loads(sys.argv[1])))\n"
        "print([float(read_hdf5_sample(file)[0].sum()) for file in hdf5_sample_files(folder / 'train')])\n"
        "print((folder / 'stats.h5').stat().st_mtime_ns)"
    )
    arguments = [
        sys.executable,
        "-c",
        program,
        json.dumps({**SMALL, "folder": str(tmp_path / "set")}),
    ]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert len(set(answers)) == 1 and len(json.loads(answers[0].splitlines()[0])) == 5
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".set.lock", "set"]


def test_a_second_writer_without_locks_leaves_the_first_ones_files(tmp_path):
    """Over machines whose file system has no locks both write, and the first to end wins."""
    folder, wanted = tmp_path / "set", GeneratedOptions(**SMALL)
    write_data_set(folder, wanted)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert write_data_set(folder, wanted).sum() == 5 * 24 * 36
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_an_interrupted_writer_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(task):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "_write_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_data_set(tmp_path / "set", GeneratedOptions(**SMALL))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_several_workers_write_the_same_files(tmp_path):
    wanted = GeneratedOptions(**SMALL)
    counts = [
        write_data_set(tmp_path / name, wanted, workers)
        for name, workers in (("one", 1), ("two", 2))
    ]
    np.testing.assert_array_equal(*counts)
    for part in ("train", "validation"):
        for file in hdf5_sample_files(tmp_path / "one" / part):
            np.testing.assert_array_equal(
                read_hdf5_sample(file)[0], read_hdf5_sample(tmp_path / "two" / part / file.name)[0]
            )
    ranges = [read_channel_range(tmp_path / name / "stats.h5") for name in ("one", "two")]
    np.testing.assert_array_equal(ranges[0].low, ranges[1].low)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples must be a whole number of at least 1, but got 0"),
        ({"evaluation_samples": 2.5}, "evaluation_samples must be a whole number"),
        ({"height": 20}, "height must be a whole number of at least 24"),
        ({"width": True}, "width must be a whole number of at least 36"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"folder": 7}, "folder must be the path of a folder"),
        ({"heigth": 96}, "no data option 'heigth'; did you mean 'height'"),
        ({"cache": True}, "cache must be memory or none"),
    ],
)
def test_bad_options_are_named(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        open_samples({**options(tmp_path / "set"), **changes})


def test_a_folder_with_other_contents_is_never_overwritten(tmp_path):
    open_samples(options(tmp_path / "set"))
    with pytest.raises(DataError, match=r"holds samples with other options.*'seed': 3.*'seed': 4"):
        open_samples(options(tmp_path / "set", seed=4))
    (tmp_path / "set" / "generated.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*generated.json"):
        open_samples(options(tmp_path / "set"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").write_text("years of work")
    with pytest.raises(DataError, match="thesis holds other files"):
        open_samples(options(tmp_path / "thesis"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot (read|write)"):
        open_samples(options(tmp_path / "file" / "set"))


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "set").mkdir()
    assert open_samples(options(tmp_path / "set")).train_samples == 5


def test_the_command_writes_a_data_set_and_prints_its_class_shares(tmp_path, capsys):
    folder = tmp_path / "new" / "set"
    start = time.perf_counter()
    arguments = [
        str(folder),
        "--train",
        "4",
        "--validation",
        "2",
        "--height",
        "24",
        "--width",
        "36",
        "--seed",
        "5",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    shares = [float(line.split()[-5]) for line in printed.splitlines()[:3]]
    samples = open_samples({"source": "deepcam", "path": str(folder)})
    assert (samples.train_samples, samples.evaluation_samples) == (4, 2)
    assert shares == pytest.approx(list(samples.class_frequencies), abs=1e-5)
    assert 0 < float(printed.split()[-2]) <= time.perf_counter() - start + 0.1
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([str(tmp_path / "other"), "--train", "0"]) == 2
    assert "samples must be a whole number of at least 1" in capsys.readouterr().err


# the cache and its limit


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder in which data sets without a name are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "largebatch" / "climate"


def cached(seed):
    values = {**SMALL, "seed": seed, "samples": 2, "evaluation_samples": 1}
    return GeneratedOptions(**values)


def test_the_cache_makes_room_by_what_was_used_longest_ago(cache, monkeypatch):
    one = cached(0).bytes
    assert one == 3 * 24 * 36 * 65
    monkeypatch.setenv("HPO_CACHE_BYTES", str(4 * one))
    monkeypatch.setattr(generate, "IN_USE_SECONDS", -1.0)
    folders = [generated_folder(cached(seed)) for seed in range(3)]
    for age, folder in ((50, folders[0]), (90, folders[1]), (10, folders[2])):
        os.utime(folder, (time.time() - age,) * 2)
    generated_folder(cached(0))  # used again: it stays
    more = [generated_folder(cached(seed)) for seed in (3, 4)]
    assert folders[0].exists() and not folders[1].exists() and all(each.exists() for each in more)
    taken = sum(file.stat().st_size for file in cache.rglob("*.h5"))
    assert taken <= 5 * one


def test_what_is_in_use_stays_and_what_is_too_large_is_refused(cache, monkeypatch):
    one = cached(0).bytes
    monkeypatch.setenv("HPO_CACHE_BYTES", str(int(1.5 * one)))
    first = generated_folder(cached(0))
    with pytest.raises(DataError, match="bytes that are in use, of at most"):
        generated_folder(cached(1))
    assert first.exists()
    monkeypatch.setenv("HPO_CACHE_BYTES", "1000")
    with pytest.raises(DataError, match="holds at most 1,000 bytes, but"):
        generated_folder(cached(2))
    monkeypatch.setenv("HPO_CACHE_BYTES", "much")
    with pytest.raises(DataError, match="must be a number of bytes, but got 'much'"):
        generated_folder(cached(2))


def test_what_a_killed_process_left_half_written_is_removed(cache):
    program = (
        "import os, signal\n"
        "from trainers.workloads.segmentation import generate\n"
        "def killed(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "generate._write_one = killed\n"
        f"generate.generated_folder(generate.GeneratedOptions(**{dataclasses.asdict(cached(0))!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert [each for each in cache.iterdir() if each.is_dir()]
    folder = generated_folder(cached(1))
    assert [each for each in cache.iterdir() if each.is_dir()] == [folder]


def test_a_data_set_has_a_largest_size(monkeypatch):
    with pytest.raises(DataError, match="must take at most 100,000,000,000 bytes, but"):
        GeneratedOptions(samples=10**6, height=768, width=1152)
    monkeypatch.setenv("HPO_GENERATED_BYTES", "1000")
    with pytest.raises(DataError, match="at most 1,000 bytes"):
        GeneratedOptions(samples=1, height=24, width=36)
