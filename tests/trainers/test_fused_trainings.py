"""Fused trainings equal the same trainings run separately, for every rule, and when trainings leave or join."""

import dataclasses

import pytest
import torch

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from tests.trainers import optimizer_rules
from tests.trainers.small_network import Small
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.errors import JobError
from trainers.fused import FusedTrainings, fusion_key
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining

pytestmark = pytest.mark.medium

TOLERANCE = 1e-12
DATA = {"source": "digits"}
BATCH = 48  # of 1,437 samples: 30 updates an epoch, evaluated after every fifth

COMMON = {
    "normalization_batch_size": 16,
    "warmup_start_factor": 0.1,
    "decay": "cosine",
    "label_smoothing": 0.1,
}
VARIANTS = {
    "lars outside": ("lars", {"momentum_form": "outside", "nesterov": True}),
    "lars corrected": ("lars", {"momentum_form": "corrected", "decay_norm_and_bias": True}),
    "sgd inside": ("sgd", {"momentum_form": "inside", "nesterov": True}),
    "larc on adam": ("larc", {"larc_optimizer": "adam", "larc_mode": "scale", "rate": 0.002}),
}
CASES = {name: (name, {}) for name in OPTIMIZERS} | VARIANTS


@pytest.fixture(scope="module")
def workload():
    torch.set_num_threads(1)
    return Small(DATA)


def job(optimizer, number, *, epochs=2.0, rate=None, **changes):
    """The job of trial ``number``: everything that may differ does."""
    settings = {
        **COMMON,
        **optimizer_rules.CASES[optimizer].training,
        "optimizer": optimizer,
        "learning_rate": (rate or optimizer_rules.CASES[optimizer].rate) * 2.0**-number,
        "warmup_epochs": 0.2 * number,
        "weight_decay": 1e-3 * number,
        "momentum": 0.9 - 0.1 * number,
        "beta1": 0.9 - 0.05 * number,
        "beta2": 0.99 - 0.01 * number,
        "trust_coefficient": 0.01 * (1 + number),
        "gradient_clip_norm": None if number == 0 else 1.0 / number,
        "normalization_momentum": 0.9 - 0.02 * number,
        **changes,
    }
    return TrainingJob(
        workload="resnet",
        data=DATA,
        target=Target("top1", 2.0),
        settings=TrainingSettings.from_record(settings),
        global_batch_size=BATCH,
        seed=number,
        epochs=epochs,
        evaluations_per_epoch=6,
    )


def training(task, workload):
    return SynchronousTraining(
        task, SingleProcessCommunicator(torch.device("cpu")), workload=workload
    )


def alone(task, workload, evaluations):
    one = training(task, workload)
    return one, [one.advance() for _ in range(evaluations)]


def assert_same_points(mine, its):
    assert len(mine) == len(its)
    for point, other in zip(mine, its, strict=True):
        for name, value in vars(point).items():
            if name == "gradient_noise_scale" and value is None:
                assert vars(other)[name] is None
            elif name != "seconds":
                assert value == pytest.approx(vars(other)[name], rel=TOLERANCE, abs=TOLERANCE), name


def tensors(value, prefix=""):
    """Every tensor and number of a state, by its place."""
    if isinstance(value, dict):
        value = list(value.items())
    elif isinstance(value, list | tuple):
        value = list(enumerate(value))
    else:
        return {prefix: value}
    return {k: v for name, each in value for k, v in tensors(each, f"{prefix}.{name}").items()}


def assert_same_state(mine, its, tolerance=TOLERANCE):
    mine, its = tensors(mine.state_dict()), tensors(its.state_dict())
    assert mine.keys() == its.keys()
    for name, value in its.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(mine[name], value, rtol=tolerance, atol=tolerance, msg=name)
        elif isinstance(value, float) and not name.endswith("seconds"):
            # losses of an evaluation are means in float32
            close = max(tolerance, 1e-6) if ".measures." in name else tolerance
            assert mine[name] == pytest.approx(value, rel=close, abs=close, nan_ok=True)


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_rule_with_a_trial_that_leaves_and_one_that_takes_its_place(case, workload):
    optimizer, more = CASES[case]
    jobs = [job(optimizer, number, **more) for number in range(4)]
    fused = FusedTrainings()
    members = [training(task, workload) for task in jobs]
    for member in members[:3]:
        fused.add(member)
    points = {id(member): [] for member in members}
    for evaluation in range(4):  # 20 updates
        if evaluation == 2:
            fused.remove(members[1])
            fused.add(members[3])
        for member, point in fused.advance():
            points[id(member)].append(point)
    for member, task, evaluations in zip(members, jobs, (4, 2, 4, 2), strict=True):
        expected, told = alone(task, workload, evaluations)
        assert_same_points(points[id(member)], told)
        assert_same_state(member, expected)


def test_a_checkpoint_goes_from_a_fused_training_to_one_alone_and_back(tmp_path, workload):
    jobs = [job("lars", number) for number in range(2)]
    straight = [alone(task, workload, 3)[0] for task in jobs]
    fused = FusedTrainings()
    for member in (members := [training(task, workload) for task in jobs]):
        fused.add(member)
    fused.advance()
    for number, member in enumerate(members):
        checkpoints.save(tmp_path / f"{number}.pt", member.state_dict())

    taken_up = training(jobs[0], workload)
    taken_up.load_state_dict(checkpoints.load(tmp_path / "0.pt"))
    taken_up.advance()
    checkpoints.save(tmp_path / "0.pt", taken_up.state_dict())

    again = FusedTrainings()
    back, other = (training(task, workload) for task in jobs)
    back.load_state_dict(checkpoints.load(tmp_path / "0.pt"))
    other.load_state_dict(checkpoints.load(tmp_path / "1.pt"))
    again.add(back)
    again.add(
        other
    )  # an evaluation behind: the places in the stream of samples need not be the same
    again.advance()
    assert_same_state(back, straight[0])
    again.remove(back)
    again.advance()
    assert_same_state(other, straight[1])


def test_a_training_that_left_goes_on_alone(workload):
    jobs = [job("adam", number) for number in range(2)]
    fused = FusedTrainings()
    for member in (members := [training(task, workload) for task in jobs]):
        fused.add(member)
    fused.advance()
    fused.remove(members[1])
    before = members[1].model.state_dict()["9.weight"].clone()
    fused.advance()  # no longer moves the one that left
    assert torch.equal(members[1].model.state_dict()["9.weight"], before)
    members[1].advance()
    assert_same_state(members[1], alone(jobs[1], workload, 2)[0])


def test_one_that_diverges_leaves_the_others_as_they_were(workload):
    jobs = [job("sgd", 0), job("sgd", 1, rate=1e200)]
    fused = FusedTrainings()
    for member in (members := [training(task, workload) for task in jobs]):
        fused.add(member)
    fused.advance()
    assert [member.progress.state for member in members] == ["running", "diverged"]
    with pytest.raises(JobError, match=r"finished.*remove"):
        fused.advance()
    fused.remove(members[1])
    fused.advance()
    assert_same_state(members[0], alone(jobs[0], workload, 2)[0])


def test_evaluations_at_different_updates(workload):
    jobs = [
        dataclasses.replace(job("sgd", number), evaluations_per_epoch=evaluations)
        for number, evaluations in enumerate((6, 10))
    ]
    fused, told = FusedTrainings(), {0: [], 1: []}
    for member in (members := [training(task, workload) for task in jobs]):
        fused.add(member)
    while min(map(len, told.values())) < 3:
        for member, point in fused.advance():
            told[members.index(member)].append(point)
    for number, task in enumerate(jobs):
        assert_same_points(told[number], alone(task, workload, len(told[number]))[1])


class Counting(Small):
    """Counts what it loads, and scores by an operation that vmap does not have."""

    loaded = 0

    def training_batch(self, indices, epochs, seed):
        self.loaded += len(indices)
        return super().training_batch(indices, epochs, seed)

    def counts(self, model, batch):
        counts = super().counts(model, batch)
        return {name: torch.tensor(float(count)) for name, count in counts.items()}


def test_trainings_of_one_seed_load_their_samples_once_and_any_metric_can_be_counted(workload):
    counting = Counting(DATA)
    jobs = [dataclasses.replace(job("sgd", number), seed=7) for number in range(3)]
    fused, members = FusedTrainings(), [training(task, counting) for task in jobs]
    for member in members:
        fused.add(member)
    told = {id(member): point for member, point in fused.advance()}
    assert counting.loaded == 5 * BATCH
    for member, task in zip(members, jobs, strict=True):
        expected, points = alone(task, workload, 1)
        assert_same_state(member, expected)
        assert told[id(member)].metric == pytest.approx(points[0].metric, abs=TOLERANCE)


class Dropping(Small):
    def loss(self, model, batch, settings):
        images, classes = batch
        return super().loss(model, (torch.nn.functional.dropout(images), classes), settings)


class DroppingModel(Small):
    def build_model(self, settings):
        return torch.nn.Sequential(super().build_model(settings), torch.nn.Dropout(0.1))


def test_what_cannot_be_fused_is_refused(workload):
    with pytest.raises(
        JobError, match=r"must have gradient_lag 0.*but got 1; set gradient_lag to 0"
    ):
        FusedTrainings().add(training(job("sgd", 0, gradient_lag=1), workload))
    with pytest.raises(JobError, match=r"draws no random numbers.*Dropout\(p=0.1"):
        FusedTrainings().add(training(job("sgd", 0), DroppingModel(DATA)))
    fused = FusedTrainings()
    fused.add(training(job("sgd", 0), workload))
    with pytest.raises(JobError, match="must have the same workload"):
        fused.add(training(job("adam", 0), workload))
    random = FusedTrainings()
    random.add(training(job("sgd", 0), Dropping(DATA)))
    random.add(training(job("sgd", 1), Dropping(DATA)))
    with pytest.raises(JobError, match=r"torch.func.vmap.*leave resources.fused_trials out"):
        random.advance()
    with pytest.raises(JobError, match="no training runs"):
        FusedTrainings().advance()


def test_what_may_differ_does_and_everything_else_does_not():
    assert fusion_key(job("sgd", 0)) == fusion_key(job("sgd", 3))
    different = [
        job("sgd", 0, label_smoothing=0.0),
        job("sgd", 0, normalization_batch_size=32),
        job("sgd", 0, nesterov=True),
        job("adam", 0),
        dataclasses.replace(job("sgd", 0), global_batch_size=2 * BATCH),
        dataclasses.replace(job("sgd", 0), data={"source": "digits", "width": 4}),
    ]
    keys = {fusion_key(each) for each in [job("sgd", 0), *different]}
    assert len(keys) == 1 + len(different)
