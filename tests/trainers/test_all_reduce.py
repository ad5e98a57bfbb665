"""The shape of a grid of workers, the options of a connection, and Adasum's laws."""

import pytest
import torch

from tests.trainers.worker_processes import save_job
from trainers import CommunicationError
from trainers.__main__ import main
from trainers.distributed import connect
from trainers.distributed.adasum import adasum_
from trainers.distributed.all_reduce import all_reduce_row_size, sum_all_reduce_parts

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("workers", "row"), [(1, 1), (2, 1), (4, 2), (6, 2), (12, 3), (1024, 32), (2176, 34), (7, 1)]
)
def test_a_torus_is_as_near_to_a_square_as_the_workers_allow(workers, row):
    assert all_reduce_row_size("torus", workers, None) == row


def test_nodes_are_as_torchrun_started_them_or_as_given(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    assert all_reduce_row_size("hierarchical", 24, None) == 6
    assert all_reduce_row_size("masters", 24, 4) == 4
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(
        CommunicationError, match=r"needs the number of workers on a node.*give the group size"
    ):
        all_reduce_row_size("hierarchical", 24, None)


def test_parts_of_sixteen_bits_are_added_in_fp32():
    parts = torch.tensor([[2048.0], [1.0], [1.0]], dtype=torch.float16)  # fp16 has no 2049
    assert (
        sum_all_reduce_parts(parts).tolist() == [2050.0]
        and sum_all_reduce_parts(parts).dtype == torch.float16
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backend": "torch", "all_reduce": "tours"},
            "no all-reduce 'tours'; did you mean 'torus'",
        ),
        ({"backend": "single", "group_size": 2}, "group size is an option of the torch backend"),
        ({"backend": "torch", "cycle_milliseconds": 2.0}, "are options of Horovod, not of torch"),
        ({"backend": "horovod", "all_reduce": "masters"}, "Horovod has no all-reduce 'masters'"),
        ({"backend": "horovod", "all_reduce": "torus"}, "needs NCCL"),
    ],
)
def test_options_that_a_backend_does_not_have_are_errors(options, message):
    if options["backend"] == "horovod" and pytest.importorskip("horovod.torch").nccl_built():
        pytest.skip("this Horovod has NCCL")
    with pytest.raises(CommunicationError, match=message):
        connect(**options)


def test_a_group_that_does_not_divide_the_workers_is_an_error(monkeypatch):
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(CommunicationError, match="1 workers do not split into groups of 2"):
        connect("torch", all_reduce="torus", group_size=2)


def test_the_command_line_hands_the_options_on(tmp_path, capsys):
    save_job(tmp_path / "job.json", epochs=1)
    command = [str(tmp_path / "job.json"), "--report", str(tmp_path / "report.jsonl")]
    assert main([*command, "--group-size", "4"]) == 2
    assert "group size is an option of the torch backend" in capsys.readouterr().err
    assert main([*command, "--fusion-megabytes", "64"]) == 2
    assert "are options of Horovod, not of single" in capsys.readouterr().err


class Alone:
    """One worker that holds the gradients of all: what it exchanges is already there."""

    rank = 0

    def __init__(self, rows):
        self.size = len(rows)
        self.rows = rows

    def all_to_all(self, flat):
        return self.rows

    def all_gather(self, part):
        return part

    def sum_(self, small):
        pass


def combined(rows, sizes):
    flat = torch.zeros(rows.shape[1])
    adasum_(flat, sizes, Alone(rows))
    return flat


def test_adasum_averages_equal_gradients_and_adds_orthogonal_ones():
    equal = torch.tensor([[1.0, -2.0, 3.0]]).repeat(4, 1)
    torch.testing.assert_close(combined(equal, [3]), equal[0])
    torch.testing.assert_close(combined(torch.eye(4), [4]), torch.ones(4))


def test_adasum_looks_at_each_tensor_by_itself_and_leaves_a_gradient_beside_zeros_alone():
    rows = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, -1.0]])
    torch.testing.assert_close(combined(rows, [2, 2]), torch.tensor([1.0, 0.0, 2.0, 0.0]))
    torch.testing.assert_close(
        combined(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), [2]), torch.tensor([3.0, 4.0])
    )


def test_adasum_does_not_grow_beyond_the_sum_of_the_norms():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        rows = torch.randn(8, 5, generator=generator)
        assert combined(rows, [5]).norm() <= rows.norm(dim=1).sum() * (1 + 1e-6)
