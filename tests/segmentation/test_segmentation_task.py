import pytest
import torch
from fake_samples import FakeSamples

from search_spaces.settings import TrainingSettings
from trainers import DataError, JobError
from trainers.distributed.single import SingleProcessCommunicator
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads import metrics_of
from trainers.workloads.segmentation import task
from trainers.workloads.segmentation.task import SegmentationWorkload

pytestmark = pytest.mark.medium

SETTINGS = TrainingSettings(normalization_batch_size=4, learning_rate=0.1)


@pytest.fixture
def workload(monkeypatch):
    def build(samples=None, **data):
        monkeypatch.setattr(task, "open_samples", lambda data: samples or FakeSamples())
        return SegmentationWorkload({"model": "deeplabv3plus_small", "model_width": 4, **data})

    return build


def test_its_metrics_are_known_by_name():
    assert metrics_of("segmentation") == {"iou": True, "accuracy": True, "loss": False}


def test_data_options_reach_the_samples_and_model_options_the_model(monkeypatch):
    seen = []
    monkeypatch.setattr(task, "open_samples", lambda data: seen.append(data) or FakeSamples())
    data = {
        "source": "generated",
        "width": 20,
        "model": "tiramisu_small",
        "model_width": 5,
        "dropout": 0.2,
    }
    model = SegmentationWorkload(data).build_model(SETTINGS)
    assert seen == [{"source": "generated", "width": 20}]
    assert model.first[0].convolution.out_channels == 10
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.2}


def test_scores_are_means_over_the_pixels_of_each_sample(workload):
    work = workload()
    model = work.build_model(SETTINGS).eval()
    fields, labels = work.evaluation_batch(torch.arange(3))
    scores = work.score(model, (fields, labels))
    chances = model(fields).softmax(1)
    expected = -chances.gather(1, labels[:, None])[:, 0].log().mean((1, 2))
    torch.testing.assert_close(scores["loss"], expected)
    torch.testing.assert_close(
        scores["accuracy"], (chances.argmax(1) == labels).double().mean((1, 2)).float()
    )
    assert scores["iou"].shape == (3,)


@pytest.mark.parametrize("weighting", ["none", "inverse_sqrt", "inverse_eighth_root"])
def test_the_loss_is_the_plain_mean_over_pixels(workload, weighting):
    work = workload()
    model = work.build_model(SETTINGS)
    fields, labels = work.training_batch(torch.arange(4), torch.zeros(4), 0)
    loss = work.loss(model, (fields, labels), SETTINGS.replace(class_weighting=weighting))
    shares = torch.tensor(work.samples.class_frequencies)
    weight = {
        "none": torch.ones(3),
        "inverse_sqrt": shares**-0.5 / (shares**-0.5).sum(),
        "inverse_eighth_root": shares**-0.125,
    }[weighting]
    losses = -model(fields).log_softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(loss, (losses * weight[labels]).sum() / labels.numel())


def job(**changes):
    values = {
        "workload": "segmentation",
        "data": {},
        "target": Target("iou", 0.99),
        "settings": SETTINGS,
        "global_batch_size": 8,
        "seed": 1,
        "epochs": 8,
        "evaluations_per_epoch": 1,
        **changes,
    }
    return TrainingJob(**values)


@pytest.mark.parametrize("name", ["deeplabv3plus_small", "tiramisu_small"])
def test_training_a_few_samples_lowers_the_loss_and_raises_the_iou(workload, name):
    work = workload(FakeSamples(train_samples=16), model=name)
    training = SynchronousTraining(
        job(epochs=20, evaluations_per_epoch=0.5), SingleProcessCommunicator(), workload=work
    )
    points = []
    while not training.finished:
        points.append(training.advance())
    assert points[-1].train_loss < 0.6 * points[0].train_loss
    assert points[-1].metric > points[0].metric


def test_weights_do_not_depend_on_the_micro_batch(workload):
    def trained(micro_batch):
        training = SynchronousTraining(
            job(epochs=1, micro_batch_size=micro_batch),
            SingleProcessCommunicator(),
            workload=workload(),
        )
        training.advance()
        return training.model.state_dict()

    for one, other in zip(trained(4).values(), trained(8).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["deeplabv3plus_small", "tiramisu_small"])
def test_with_prior_bias_every_pixel_starts_near_the_shares_of_the_classes(workload, name):
    work = workload(model=name, prior_bias=True)
    chances = work.build_model(SETTINGS)(work.samples.fields[:8]).softmax(1)
    shares = torch.tensor(work.samples.class_frequencies)
    torch.testing.assert_close(
        chances, shares.view(3, 1, 1).expand_as(chances), rtol=0.2, atol=0.02
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"prior_bias": "yes"}, "prior_bias must be true or false, but got 'yes'"),
        ({"model": "deeplab"}, "there is no model 'deeplab'; did you mean 'deeplabv3plus'"),
        (
            {"model_width": 6},
            "model_width of deeplabv3plus_small must be a positive multiple of 4, but got 6",
        ),
        ({"model_width": 0, "model": "tiramisu"}, "multiple of 1, but got 0"),
        ({"model_width": True}, "but got True"),
        ({"dropout": 1.0, "model": "tiramisu"}, r"a share of features in \[0, 1\), but got 1.0"),
        (
            {"dropout": 0.2},
            "used only in tiramisu and tiramisu_small, but the model is deeplabv3plus_small",
        ),
        ({"model_widht": 8}, "no data option 'model_widht'; did you mean 'model_width'"),
    ],
)
def test_bad_options_are_errors(workload, data, message):
    with pytest.raises(DataError, match=message):
        workload(**data)


def test_zero_gamma_is_refused_because_nothing_could_take_it(workload):
    with pytest.raises(
        JobError, match="zero_gamma needs a normalization at the end of a residual branch"
    ):
        workload().build_model(SETTINGS.replace(zero_gamma=True))
    workload().build_model(SETTINGS.replace(zero_gamma=False))


def test_the_normalization_settings_reach_every_layer(workload):
    from trainers.numerics.normalization import ghost_batch_norms

    norms = ghost_batch_norms(workload().build_model(SETTINGS.replace(normalization_momentum=0.7)))
    assert {(norm.group_size, norm.momentum) for norm in norms} == {(4, 0.7)}
