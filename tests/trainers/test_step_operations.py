"""The operations that one update dispatches to the device, and how often the host waits for a value."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from tests.trainers.small_network import Small
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.fused import FusedTrainings
from trainers.loop.synchronous import SynchronousTraining
from trainers.schedules.device_arithmetic import ON_DEVICE

WAIT = "aten._local_scalar_dense.default"  # item(), float() and bool() of a tensor; tolist() is counted with it
MODES = {
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "clipped": {"gradient_clip_norm": 1.0},
    "lagging": {"gradient_lag": 1},
    "static loss scale": {"loss_scaling": "static"},
    "bf16": {"precision": "bf16"},
    "dynamic loss scale": {"loss_scaling": "dynamic"},
    "dynamic loss scale, clipped, lagging": {
        "loss_scaling": "dynamic",
        "gradient_clip_norm": 1.0,
        "gradient_lag": 1,
    },
    "fp16, dynamic loss scale": {"precision": "fp16", "loss_scaling": "dynamic"},
    **{
        f"adascale, {name}": {"adascale_batch_size": 16, "decay": "cosine", "optimizer": name}
        for name in OPTIMIZERS
    },
    "adascale, dynamic loss scale": {"adascale_batch_size": 16, "loss_scaling": "dynamic"},
}


class Operations(TorchDispatchMode):
    """Counts what is dispatched below autograd."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[str(operation)] += 1
        return operation(*args, **(kwargs or {}))

    def __enter__(self):
        tolist = torch.Tensor.tolist

        def counted(tensor):
            self.counts[WAIT] += 1
            return tolist(tensor)

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(torch.Tensor, "tolist", counted)  # on a CPU it dispatches nothing
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        return super().__exit__(*error)


def training(number=0, **changes):
    settings = {"learning_rate": 0.01 / (1 + number), "normalization_batch_size": 16, **changes}
    job = TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 2.0),
        settings=TrainingSettings(**settings),
        global_batch_size=32,
        seed=number,
        epochs=4.0,
        evaluations_per_epoch=1437 / 32 / 30,
    )
    return SynchronousTraining(
        job, SingleProcessCommunicator(torch.device("cpu")), workload=Small(job.data)
    )


def take_the_way_of_an_accelerator(training):
    for batch in getattr(training.optimizer, "optimizer", training.optimizer).batches:
        batch.on_cpu = False
    if (scale := training.adascale) is not None:
        scale.arithmetic = ON_DEVICE
        scale.load_state_dict(scale.state_dict())


def operations(mode, first, updates=1):
    """What ``updates`` updates from number ``first`` on dispatch, each."""
    one = training(**mode)
    one.model.train()
    take_the_way_of_an_accelerator(one)
    for step in range(first):
        one._update(step)
    with Operations() as counted:
        for step in range(first, first + updates):
            one._update(step)
    return {name: count / updates for name, count in counted.counts.items()}


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(MODES))
def test_no_update_waits_for_the_device(name):
    assert WAIT not in operations(MODES[name], 1, updates=2)


def test_an_update_whose_noise_is_measured_does_not_wait_either():
    assert WAIT not in operations({}, 0)
    assert sum(operations({}, 0).values()) > sum(operations({}, 1).values())  # it was measured


def test_shampoo_asks_whether_an_update_is_left_out_only_where_roots_are_due():
    """There it waits for their decomposition anyway."""
    mode = {"optimizer": "shampoo", "loss_scaling": "dynamic", "preconditioner_interval": 4}
    assert WAIT not in operations(mode, 1, updates=3)
    assert operations(mode, 4)[WAIT] == 1


@pytest.mark.medium
def test_operations_of_fused_trainings_do_not_grow_with_their_number():
    def of(count):
        fused = FusedTrainings()
        for number in range(count):
            fused.add(training(number, optimizer="lars", gradient_clip_norm=1.0))
        fused.advance()  # builds the common memory
        with Operations() as counted:
            fused._fused.train(1)
        return counted.counts

    def of_model(counts):  # only reading the samples is done for each
        kinds = ("convolution", "batch_norm", "mm.", "foreach", "addcmul")
        return {
            name: count for name, count in counts.items() if any(kind in name for kind in kinds)
        }

    two, six = of(2), of(6)
    assert two[WAIT] == six[WAIT] == 1  # the losses, at the end of all updates
    assert of_model(two) == of_model(six) and "aten.convolution.default" in two
