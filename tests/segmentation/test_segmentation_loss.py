import math

import numpy as np
import pytest
import torch

from trainers import DataError, JobError
from trainers.workloads.segmentation.loss import (
    class_weights,
    intersection_over_union,
    pixel_losses,
)


def test_kurths_weights_follow_from_the_published_shares():
    """arXiv:1810.01993: 98.2 % background, under 0.1 % cyclones, 1.7 % rivers; the released code's weights."""
    weights = class_weights((0.982, 0.00071, 0.0169), "inverse_sqrt")
    assert weights.tolist() == pytest.approx([0.0218, 0.8120, 0.1662], abs=5e-4)
    assert weights.sum().item() == pytest.approx(1)


def test_deepcams_weights_follow_from_its_shares():
    weights = class_weights(
        (0.986267818390377, 0.0004578708870701058, 0.01327431072255291), "inverse_eighth_root"
    )
    assert weights.tolist() == pytest.approx([1.0017, 2.6146, 1.7164], abs=1e-4)


def test_without_weighting_all_classes_weigh_one():
    assert class_weights((0.9, 0.1, 0.0), "none").tolist() == [1, 1, 1]


def test_bad_weightings_are_errors():
    with pytest.raises(DataError, match=r"the share of class 1 is 0\.0.*class_weighting 'none'"):
        class_weights((0.9, 0.0, 0.1), "inverse_sqrt")
    with pytest.raises(JobError, match="'inverse_root'; did you mean"):
        class_weights((0.9, 0.0, 0.1), "inverse_root")


def scores_and_labels(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(2, 3, 4, 5, generator=generator) * 3,
        torch.randint(0, 3, (2, 4, 5), generator=generator),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_pixel_is_its_weighted_cross_entropy(smoothing):
    scores, labels = scores_and_labels()
    weights = [0.2, 3.0, 1.5]
    losses = pixel_losses(scores, labels, torch.tensor(weights), smoothing)
    for n, y, x in np.ndindex(2, 4, 5):
        z = [float(value) for value in scores[n, :, y, x]]
        log_sum = max(z) + math.log(sum(math.exp(value - max(z)) for value in z))
        truth = [(1 - smoothing) * (c == int(labels[n, y, x])) + smoothing / 3 for c in range(3)]
        expected = sum(
            t * w * (log_sum - value) for t, w, value in zip(truth, weights, z, strict=True)
        )
        assert losses[n, y, x].item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_reduced_precision_is_taken_in_fp32():
    scores, labels = scores_and_labels()
    losses = pixel_losses(scores.half(), labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, pixel_losses(scores.half().float(), labels))


def grid(text):
    return torch.tensor([[[int(cell) for cell in row] for row in text.split()]])[0]


@pytest.mark.parametrize(
    ("prediction", "label", "ious"),
    [
        ("000 000", "000 000", (1, 1, 1)),  # absent classes count 1
        ("000 000", "001 000", (5 / 6, 0, 1)),  # one pixel missed
        ("001 000", "000 000", (5 / 6, 0, 1)),  # and one too many
        ("012 012", "012 012", (1, 1, 1)),
        ("012 012", "011 022", (1, 1 / 3, 1 / 3)),
        ("111 111", "222 222", (1, 0, 0)),
        ("0011 2200", "0111 2000", (3 / 5, 2 / 3, 1 / 2)),
    ],
)
def test_iou_of_known_cases(prediction, label, ious):
    assert intersection_over_union(grid(prediction)[None], grid(label)[None], 3).tolist() == [
        pytest.approx(sum(ious) / 3)
    ]


def test_iou_is_deepcams_score_sample_by_sample():
    """True positives over true and false positives and false negatives, nan (an absent class) being 1."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (40, 2, 3), generator=generator)
    predictions = torch.randint(0, 3, (40, 2, 3), generator=generator)
    expected = np.zeros(40)
    with np.errstate(invalid="ignore"):
        for c in range(3):
            p, g = predictions.numpy() == c, labels.numpy() == c
            hit, extra, missed = ((a & b).sum((1, 2)) for a, b in ((p, g), (p, ~g), (~p, g)))
            expected += np.nan_to_num(hit / (hit + extra + missed), nan=1.0) / 3
    assert any(len(set(label.flatten().tolist())) < 3 for label in labels)
    np.testing.assert_allclose(
        intersection_over_union(predictions, labels, 3).numpy(), expected, rtol=1e-6
    )
