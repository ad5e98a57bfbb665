"""The workload ``language``: its bytes, its network and its errors."""

import math
from pathlib import Path

import pytest
import torch

from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.errors import DataError
from trainers.job import Target, TrainingJob
from trainers.workloads import load_workload
from trainers.workloads.language.task import LanguageWorkload

SMALL = {"sequence_length": 16, "train_samples": 64, "evaluation_samples": 16, "width": 32}


def _written(folder: Path, *sizes: int) -> str:
    for number, size in enumerate(sizes):
        (folder / f"{number}.txt").write_bytes(bytes((number * 100 + i) % 251 for i in range(size)))
    return str(folder)


def test_the_last_tenth_of_every_file_is_held_out(tmp_path: Path) -> None:
    data = {"source": "text", "path": _written(tmp_path, 100, 50), "sequence_length": 4}
    workload = LanguageWorkload(data)
    kept = [i % 251 for i in range(90)] + [100 + i for i in range(45)]
    assert workload.training.text.tolist() == kept
    assert workload.held_out.text.tolist() == [*range(90, 100), *range(145, 150)]
    assert workload.train_samples == (135 - 1) // 4
    inputs, following = workload.training_batch(torch.tensor([0, 1]), torch.zeros(2), 0)
    assert inputs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert following.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_fewer_samples_are_spread_over_the_text_and_never_twice(tmp_path: Path) -> None:
    data = {"source": "text", "path": _written(tmp_path, 1000), "sequence_length": 8}
    workload = LanguageWorkload({**data, "train_samples": 7})
    taken = workload.training.take(torch.arange(7))[:, 0]
    assert workload.train_samples == 7
    windows = [i * workload.training.available // 7 for i in range(7)]
    assert taken.tolist() == [window * 8 % 251 for window in windows]
    assert len(set(windows)) == 7 and windows[-1] > workload.training.available * 0.8


def test_a_position_reads_no_later_byte() -> None:
    torch.manual_seed(0)
    model = LanguageWorkload(SMALL).build_model(TrainingSettings()).eval()
    tokens = torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax() > 1e-4


@pytest.mark.parametrize(("width", "depth"), [(16, 1), (64, 3)])
def test_parameters_follow_from_width_and_depth(width: int, depth: int) -> None:
    workload = LanguageWorkload({**SMALL, "width": width, "depth": depth})
    model = workload.build_model(TrainingSettings())
    block = 12 * width**2 + 13 * width  # matrices; biases of 9 widths and two normalizations
    tables = (256 + 256 + 16) * width + 2 * width
    assert sum(each.numel() for each in model.parameters()) == depth * block + tables
    assert workload.heads == width // 16


@pytest.mark.slow
def test_it_learns_beyond_the_frequencies_of_bytes() -> None:
    """It ends below the entropy of single bytes, which no model without context reaches."""
    data = {**SMALL, "train_samples": 2048, "evaluation_samples": 128}
    workload = LanguageWorkload(data)
    counts = torch.bincount(workload.held_out.text.long(), minlength=256).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares * shares.log2()).sum().item()
    training = begin_training(
        TrainingJob(
            workload="language",
            data=data,
            seed=1,
            target=Target("bits_per_byte", 0.1, higher_is_better=False),
            global_batch_size=32,
            epochs=6.0,
            settings=TrainingSettings(optimizer="adamw", learning_rate=0.01, warmup_epochs=0.5),
        )
    )
    points = []
    while not training.finished:
        if (point := training.advance()) is not None:
            points.append(point)
    training.close()
    assert points[-1].metric < entropy - 0.2
    assert points[-1].metric == pytest.approx(points[-1].loss / math.log(2))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"width": 40}, "width must be a multiple of head_size, 16.* but got 40; 32 is one"),
        ({"width": 0}, "width must be a whole number of at least 1, but got 0"),
        ({"depth": 1.5}, "depth must be a whole number of at least 1, but got 1.5"),
        ({"train_samples": 10**9}, "train_samples must be at most .* but got 1,000,000,000"),
        ({"sequence_length": 10**9}, "needs 1,000,000,001; give more text in path"),
        ({"source": "pyton"}, "there is no source 'pyton'.*python"),
        ({"source": "text"}, "needs path, a file or a folder, but got None"),
        ({"source": "text", "path": "/nowhere"}, "nothing exists at /nowhere"),
        ({"path": "/nowhere"}, "path names the files of source 'text'"),
        ({"widht": 32}, "widht"),
    ],
)
def test_a_size_that_the_network_cannot_have_is_refused(option: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_workload("language", {**SMALL, **option})
