"""Which device a worker takes, and what it sets there; CUDA is a fake, as most test machines have no GPU."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from search_spaces.settings import SettingError, TrainingSettings
from trainers.distributed import connect
from trainers.distributed import device as device_module
from trainers.distributed.device import (
    DEVICE_VARIABLE,
    choose_device,
    claim_gpu,
    configure_gpu,
    cores_near,
    pin_near_gpu,
    wanted_device,
)
from trainers.distributed.horovod import check_carries
from trainers.errors import CommunicationError, DeviceError
from trainers.numerics.precision import precision_context
from trainers.numerics.threads import local_rank_and_size

CUDA = torch.device("cuda", 0)


@pytest.fixture
def with_gpus(monkeypatch):
    """A function that makes PyTorch see so many GPUs; the devices that were made current are kept."""
    current = []

    def see(count):
        monkeypatch.setattr(device_module, "gpu_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda which: types.SimpleNamespace(
                uuid=f"GPU-{torch.device(which).index if not isinstance(which, int) else which}",
                pci_domain_id=0,
                pci_bus_id=16 * (1 + (which if isinstance(which, int) else which.index)),
                pci_device_id=0,
            ),
        )
        return current

    return see


def test_without_a_gpu_the_processor_is_taken_and_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(device_module, "gpu_count", lambda: 0)
    assert choose_device().type == choose_device(3, 8).type == "cpu"
    with pytest.raises(DeviceError, match=r"--device cuda needs a GPU .* use --device cpu"):
        choose_device(wanted="cuda")


def test_each_worker_takes_the_gpu_of_its_number(with_gpus):
    current = with_gpus(4)
    assert [choose_device(rank, 4).index for rank in range(4)] == [0, 1, 2, 3]
    assert [device.index for device in current] == [0, 1, 2, 3]
    assert choose_device(1, 2).index == 1
    assert choose_device(0, 16, "cpu").type == "cpu" and len(current) == 5


def test_more_workers_than_gpus_are_refused_with_what_to_do(with_gpus):
    with_gpus(2)
    with pytest.raises(DeviceError) as caught:
        choose_device(1, 3)
    for words in ("there are 2 for 3 workers on this node", "at most 2 per node", "--device cpu"):
        assert words in str(caught.value)


def test_a_worker_that_sees_one_gpu_was_given_it_and_two_that_see_the_same_are_refused(with_gpus):
    with_gpus(1)
    assert choose_device(5, 8) == CUDA
    store = HashStore()
    claim_gpu(store, torch.device("cpu"), 0)
    claim_gpu(store, torch.device("cpu"), 1)  # workers on the processor share it
    claim_gpu(store, CUDA, 2)
    claim_gpu(store, CUDA, 2)
    with pytest.raises(
        DeviceError, match=r"there are 1 for workers 2 and 7, which were assigned the same"
    ):
        claim_gpu(store, CUDA, 7)
    claim_gpu(store, torch.device("cuda", 1), 7)


def test_the_environment_stands_for_an_option_that_is_not_given(monkeypatch):
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    assert wanted_device() == "auto" and wanted_device("cpu") == "cpu"
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    assert wanted_device() == "cuda" and wanted_device("cpu") == "cpu"
    monkeypatch.setattr(device_module, "gpu_count", lambda: 0)
    assert connect("single", device="cpu").device.type == "cpu"
    with pytest.raises(DeviceError, match="--device cuda needs a GPU"):
        connect("single")
    with pytest.raises(DeviceError, match="there is no device 'gpu'"):
        wanted_device("gpu")


@pytest.fixture
def kept_backends():
    """What is set of PyTorch's backends is as before after the test."""
    backends: Any = torch.backends
    each = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before, benchmark = [one.fp32_precision for one in each], backends.cudnn.benchmark
    yield each
    for one, precision in zip(each, before, strict=True):
        one.fp32_precision = precision
    backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(False)


def test_fp32_is_fp32_and_tf32_is_asked_for(kept_backends):
    for precision, kind in (("fp32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")):
        configure_gpu(CUDA, precision)
        assert [one.fp32_precision for one in kept_backends] == [kind] * 3
        assert torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    configure_gpu(CUDA, "tf32")
    assert not torch.backends.cudnn.benchmark
    configure_gpu(torch.device("cpu"), "fp32")
    assert [one.fp32_precision for one in kept_backends] == ["tf32"] * 3  # nothing was changed


def test_tf32_is_a_precision_whose_weights_are_fp32():
    settings = TrainingSettings(precision="tf32")
    with precision_context(settings, torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with pytest.raises(
        SettingError, match="needs a precision of bf16 or fp16, but got precision 'tf32'"
    ):
        TrainingSettings(precision="tf32", reduced_weights=True)


@pytest.mark.parametrize(
    ("built", "carries"),
    [
        ({"nccl"}, True),
        ({"mpi", "cuda"}, True),
        ({"mpi"}, False),
        ({"gloo"}, False),
        (set(), False),
    ],
)
def test_a_horovod_of_gloo_never_carries_what_lies_on_a_gpu(built, carries):
    hvd = types.SimpleNamespace(
        **{f"{name}_built": lambda name=name: name in built for name in ("nccl", "mpi", "cuda")}
    )
    check_carries(hvd, torch.device("cpu"))
    if carries:
        check_carries(hvd, CUDA)
        return
    with pytest.raises(CommunicationError, match=r"without NCCL .* --backend torch"):
        check_carries(hvd, CUDA)


@pytest.fixture
def sysfs(tmp_path, monkeypatch):
    """Two NUMA nodes of 4 cores with two threads each; GPUs 0 and 1 on node 1, GPU 2 on node 0, GPU 3 on none."""
    for number, cores in ((0, "0-3,8-11"), (1, "4-7,12-15")):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    online = tmp_path / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-15\n")
    for gpu, node in enumerate((1, 1, 0, -1)):
        folder = tmp_path / f"bus/pci/devices/{address(gpu)}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    return tmp_path


def address(gpu):
    return f"0000:{16 * (1 + gpu):02x}:00.0"


def test_workers_whose_gpus_are_on_one_numa_node_share_its_cores(sysfs):
    addresses = [address(gpu) for gpu in range(4)]
    shares = [cores_near(addresses[rank], addresses, rank, sysfs) for rank in range(4)]
    assert shares[0] == {4, 6, 12, 14} and shares[1] == {5, 7, 13, 15}  # whole cores each
    assert shares[2] == {0, 1, 2, 3, 8, 9, 10, 11}
    assert shares[3] == set()  # its node is not known
    # a worker that sees its own GPU alone knows nothing of the others
    assert cores_near(addresses[0], [], 0, sysfs) == {4, 5, 6, 7, 12, 13, 14, 15}


def test_cores_that_a_launcher_has_chosen_are_left(sysfs, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5}, raising=False)
    assert cores_near(address(0), [address(0)], 0, sysfs) == set()


def test_a_worker_stays_near_its_gpu(sysfs, with_gpus, monkeypatch):
    with_gpus(4)
    monkeypatch.setattr(device_module, "SYSTEM_FILES", sysfs)
    bound = []
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cores: bound.append((pid, cores)), raising=False
    )
    assert pin_near_gpu(torch.device("cuda", 1), 1, 4) == 4
    assert bound == [(0, {5, 7, 13, 15})]
    assert pin_near_gpu(torch.device("cuda", 3), 3, 4) is None
    assert pin_near_gpu(torch.device("cpu"), 0, 4) is None
    assert len(bound) == 1


def test_a_workers_place_on_its_node_as_launchers_tell_it():
    assert local_rank_and_size({}) == (0, 1)
    assert local_rank_and_size({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}) == (2, 4)
    assert local_rank_and_size(
        {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    ) == (
        1,
        2,
    )
    assert local_rank_and_size({"SLURM_LOCALID": "3"}) == (3, 4)  # at least so many
