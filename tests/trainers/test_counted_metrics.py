"""Metrics that are not a mean over samples: from counts summed over the evaluation set and the workers."""

import math
import sys
import textwrap
from contextlib import suppress

import pytest
import torch
from sklearn.metrics import f1_score, jaccard_score, roc_auc_score
from torch import nn
from torch.nn import functional

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob, WorkloadError
from trainers.begin import begin_training
from trainers.cost import workload_cost
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.replica import Replica, evaluate_replica
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads import Workload, workload_class

BINS = 4096
SAMPLES = 60


class Counted(Workload):
    """Sequences of several lengths: is each token positive? Batches are nested dictionaries."""

    metrics = {
        "iou": True,
        "f1": True,
        "auc": True,
        "perplexity": False,
        "loss": False,
    }
    train_samples = evaluation_samples = SAMPLES

    def __init__(self, data):
        generator = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(1, 12, (SAMPLES,), generator=generator)
        self.tokens = torch.randn((SAMPLES, 12, 4), generator=generator)
        weights = torch.randn(4, generator=generator)
        noise = torch.randn((SAMPLES, 12), generator=generator)
        self.labels = (self.tokens @ weights + noise > 0.4).float()

    def build_model(self, settings):
        return nn.Linear(4, 1)

    def training_batch(self, indices, epochs, seed):
        mask = torch.arange(12) < self.lengths[indices, None]
        return {"in": [self.tokens[indices]], "out": {"labels": self.labels[indices], "mask": mask}}

    def evaluation_batch(self, indices):
        return self.training_batch(indices, None, 0)

    def losses(self, model, batch):
        logits = model(batch["in"][0])[..., 0]
        return logits, functional.binary_cross_entropy_with_logits(
            logits, batch["out"]["labels"], reduction="none"
        ) * batch["out"]["mask"]  # fmt: skip

    def loss(self, model, batch, settings):
        return self.losses(model, batch)[1].sum(1).mean()

    def counts(self, model, batch):
        logits, losses = self.losses(model, batch)
        mask, labels = batch["out"]["mask"], batch["out"]["labels"].bool()
        found, wanted = (logits > 0)[mask], labels[mask]
        places = (logits[mask].sigmoid() * BINS).long().clamp(max=BINS - 1)
        return {
            "confusion": torch.stack([found & wanted, found & ~wanted, ~found & wanted]).sum(1),
            "positives": torch.bincount(places[wanted], minlength=BINS),
            "negatives": torch.bincount(places[~wanted], minlength=BINS),
            "loss": losses.sum(),
            "tokens": mask.sum(),
        }

    def metrics_from(self, counts, samples):
        hits, wrong, missed = counts["confusion"].tolist()
        positives, negatives = counts["positives"], counts["negatives"]
        below = negatives.cumsum(0) - negatives / 2
        loss = float(counts["loss"] / counts["tokens"])
        return {
            "iou": hits / (hits + wrong + missed),
            "f1": 2 * hits / (2 * hits + wrong + missed),
            "auc": float((positives * below).sum() / positives.sum() / negatives.sum()),
            "perplexity": math.exp(loss),
            "loss": loss,
        }


class Shares(SingleProcessCommunicator):
    """Several workers, one after the other in one process; the last one gets the sums."""

    def __init__(self, rank, size, sums):
        super().__init__()
        self.rank, self.size, self.sums = rank, size, sums

    def all_reduce_sum_(self, tensors):
        for tensor, total in zip(tensors, self.sums or [0] * len(tensors), strict=True):
            tensor.add_(total)
        self.sums[:] = [tensor.clone() for tensor in tensors]


def expected(workload, model):
    with torch.no_grad():
        batch = workload.evaluation_batch(torch.arange(SAMPLES))
        logits, losses = workload.losses(model, batch)
        mask = batch["out"]["mask"]
    scores, wanted = logits[mask].numpy(), batch["out"]["labels"][mask].numpy()
    loss = float(losses.double().sum() / mask.sum())
    return {
        "iou": jaccard_score(wanted, scores > 0),
        "f1": f1_score(wanted, scores > 0),
        "auc": roc_auc_score(wanted, scores),
        "perplexity": math.exp(loss),
        "loss": loss,
    }


@pytest.mark.parametrize("size", [1, 2, 7, SAMPLES + 3])
def test_pooled_metrics_are_those_of_scikit_learn_on_any_number_of_workers(size):
    workload, sums = Counted({}), []
    replica = Replica(workload, TrainingSettings(), 0, torch.device("cpu"))
    for rank in range(size - 1):
        with suppress(
            ZeroDivisionError
        ):  # of the first shares alone there may be nothing to divide by
            evaluate_replica(replica, Shares(rank, size, sums), 8)
    found = evaluate_replica(replica, Shares(size - 1, size, sums), 8)
    wanted = expected(workload, replica.model)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-3 if name == "auc" else 1e-6), name
    # the mean of each sample's own value is something else, which is why the counts are pooled
    with torch.no_grad():
        batch = workload.evaluation_batch(torch.arange(SAMPLES))
        _, losses = workload.losses(replica.model, batch)
    each = losses.sum(1) / batch["out"]["mask"].sum(1)
    assert abs(float(each.mean()) - wanted["loss"]) > 1e-3


def test_a_training_reaches_a_target_of_pooled_metrics():
    workload = Counted({})
    job = TrainingJob(
        workload="counted:Counted",
        data={},
        target=Target("auc", 0.85),
        settings=TrainingSettings(learning_rate=0.3, normalization_batch_size=1),
        global_batch_size=10,
        seed=0,
        epochs=20,
    )
    training = begin_training(job, workload=workload)
    assert isinstance(training, SynchronousTraining)
    points = []
    while not training.finished:
        points.append(training.advance())
    assert training.outcome.state == "reached"
    assert points[-1].metric == pytest.approx(expected(workload, training.model)["auc"], abs=1e-3)
    assert workload_cost(workload).parameters == 5  # batches in dictionaries are measured too


def test_a_metric_that_is_not_made_is_told():
    workload = Counted({})
    workload.metrics_from = lambda counts, samples: {"loss": 0.0}
    replica = Replica(workload, TrainingSettings(), 0, torch.device("cpu"))
    with pytest.raises(WorkloadError, match="must return every metric, but lacks iou, f1, auc"):
        evaluate_replica(replica, SingleProcessCommunicator(), None)


def test_a_workload_must_say_how_it_is_evaluated(tmp_path):
    begin = """
        from trainers.workloads import Workload
        class Unscored(Workload):
            metrics = {"loss": False}
            def __init__(self, data): ...
            def build_model(self, settings): ...
            def training_batch(self, indices, epochs, seed): ...
            def loss(self, model, batch, settings): ...
            def evaluation_batch(self, indices): ...
        class Half(Unscored):
            def counts(self, model, batch): ...
        class Whole(Half):
            def metrics_from(self, counts, samples): ...
        """
    (tmp_path / "unscored.py").write_text(textwrap.dedent(begin))
    try:
        for name in ("Unscored", "Half"):
            with pytest.raises(WorkloadError, match=f"'unscored:{name}' must define score"):
                workload_class(f"unscored:{name}", str(tmp_path))
        assert workload_class("unscored:Whole", str(tmp_path)).__name__ == "Whole"
    finally:
        sys.path.remove(str(tmp_path))
