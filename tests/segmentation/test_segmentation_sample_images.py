import json

import pytest
import torch
from fake_samples import FakeSamples
from torch import nn

from trainers.loop.sample_images import check_sample_images
from trainers.workloads.segmentation.references import (
    evaluated_samples,
    linear_classifier,
    majority_class,
    mean_iou,
)
from trainers.workloads.segmentation.sample_images import sample_images, shown_samples

pytestmark = pytest.mark.medium


class Threshold(nn.Module):
    """Scores that follow the fake's linear rule exactly; a model that is never wrong."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))

    def forward(self, fields):
        cyclone, river = -0.6 - fields[:, 7], fields[:, 0] + fields[:, 1] - 1
        return torch.stack([torch.zeros_like(river), torch.where(cyclone > 0, 9.0, -9.0), river], 1)


def test_the_majority_class_scores_its_share_and_the_absent_classes():
    samples = FakeSamples(linear=True)
    expected = 0.0
    for labels in samples.labels[samples.train_samples :]:
        absent = sum(not (labels == label).any() for label in (1, 2))
        expected += (float((labels == 0).double().mean()) + absent) / 3 / samples.evaluation_samples
    assert mean_iou(majority_class(samples), samples) == pytest.approx(expected)


def test_the_linear_classifier_finds_a_linear_rule_and_not_another():
    linear, other = FakeSamples(24, 12, 16, 24, linear=True), FakeSamples(24, 12, 16, 24)
    fitted = linear_classifier(linear)
    assert mean_iou(fitted, linear) > 0.95
    assert fitted.training_iou > 0.95
    assert mean_iou(linear_classifier(other), other) < 0.7


def test_the_linear_classifier_is_where_the_gradient_of_its_loss_vanishes():
    samples = FakeSamples(24, 12, 16, 24)
    fitted = linear_classifier(samples)
    weight, bias = fitted.weight.double().requires_grad_(), fitted.bias.double().requires_grad_()
    fields, labels = samples.training_batch(torch.arange(24), None, 0)
    shares = torch.tensor(samples.class_frequencies).double()
    weights = {
        "none": torch.ones(3).double(),
        "inverse": 1 / shares,
        "inverse_eighth_root": shares**-0.125,
        "inverse_sqrt": shares**-0.5 / (shares**-0.5).sum(),
    }[fitted.weighting]
    scores = torch.einsum("kc,nchw->nkhw", weight, fields.double()) + bias.view(-1, 1, 1)
    losses = -(scores.log_softmax(1).gather(1, labels[:, None])[:, 0] * weights[labels])
    losses.mean().backward()
    at_start = ((weights * shares)[:, None] * torch.ones(3, 16)).abs().max()
    assert torch.cat([weight.grad.flatten(), bias.grad]).abs().max() < 2e-3 * at_start


def test_one_class_alone_is_predicted_everywhere():
    samples = FakeSamples()
    samples.labels = torch.zeros_like(samples.labels)
    assert mean_iou(linear_classifier(samples), samples) == 1


def test_a_class_that_the_training_pixels_lack_leaves_the_others_their_weightings():
    """Without its cyclones the fake is fitted as a data set of two classes is; the absent class counts 1."""
    samples = FakeSamples(24, 12, 16, 24)
    samples.labels[samples.labels == 1] = 0
    fitted = linear_classifier(samples)
    predictions = fitted(samples.evaluation_batch(torch.arange(12))[0])
    assert set(predictions.unique().tolist()) <= {0, 2}
    two = FakeSamples(24, 12, 16, 24)
    two.labels, two.classes = samples.labels // 2, 2
    again = linear_classifier(two)
    assert again.weighting == fitted.weighting
    assert again.training_iou * 2 + 1 == pytest.approx(fitted.training_iou * 3, abs=0.01)


def test_sample_images_are_plain_json_and_show_the_model_beside_what_it_must_beat():
    samples = FakeSamples(linear=True)
    shown = check_sample_images(
        json.loads(json.dumps(sample_images(Threshold().eval(), samples), allow_nan=False))
    )
    assert shown["references"] == {
        "majority class": mean_iou(majority_class(samples), samples),
        "per-pixel linear classifier": mean_iou(linear_classifier(samples), samples),
    }
    assert shown["classes"] == ["background", "tropical cyclone", "atmospheric river"]
    assert (shown["samples"], len(shown["panels"])) == (8, 3)
    for panel in shown["panels"]:
        index = int(panel["name"].split()[-1])
        fields, labels = samples.evaluation_batch(torch.tensor([index]))
        assert panel["labels"] == panel["prediction"] == labels[0].flip(0).tolist()
        assert list(panel["fields"]) == ["TMQ", "U850", "PSL"]
        moisture = torch.tensor(panel["fields"]["TMQ"]).flip(0)
        assert (moisture.min(), moisture.max()) == (0, 255)
        assert moisture.argmax() == fields[0, 0].argmax()


def test_the_shown_samples_hold_cyclones_and_rivers():
    samples = FakeSamples(evaluation_samples=6)
    samples.labels[samples.train_samples :] = 0
    for index, (cyclones, rivers) in enumerate([(0, 0), (3, 0), (0, 9), (2, 5), (3, 9), (1, 1)]):
        labels = samples.labels[samples.train_samples + index].view(-1)
        labels[:cyclones], labels[50 : 50 + rivers] = 1, 2
    assert shown_samples(samples) == [4, 3, 5]


def test_wide_fields_are_shown_coarser():
    samples = FakeSamples(2, 1, 6, 322)
    panel = sample_images(Threshold().eval(), samples)["panels"][0]
    for rows in (*panel["fields"].values(), panel["labels"], panel["prediction"]):
        assert (len(rows), {len(row) for row in rows}) == (2, {108})


def test_large_samples_are_compared_on_a_part_of_them():
    samples = FakeSamples(evaluation_samples=8)
    samples.height, samples.width, samples.evaluation_samples = 768, 1152, 15_158
    assert evaluated_samples(samples) == 37
