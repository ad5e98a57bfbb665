"""50 steps with a changing rate against the arithmetic of the reference codes: float64, to 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from tests.trainers import reference_optimizers as reference
from trainers.optimizers import Kind, make_optimizer

STEPS, MOMENTUM, DECAY = 50, 0.9, 5e-3
KINDS: list[Kind] = ["weight", "weight", "normalization", "bias", "weight", "normalization"]
SHAPES = [(6, 3, 3, 3), (5, 7), (6,), (5,), (4, 4), (6,)]
RATES = [
    0.3 * (step + 1) / 10 if step < 10 else 0.3 * (1 - (step - 10) / 45) ** 2
    for step in range(STEPS)
]
"""A warmup and a quadratic decay: the rate changes with every step."""
EXCLUDED = [kind != "weight" for kind in KINDS]


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def initial() -> list[Tensor]:
    """Two of the tensors start at zero: a matrix, and the scale of a normalization."""
    return [torch.zeros_like(one) if at in (4, 5) else one for at, one in enumerate(drawn(0))]


def gradients() -> list[list[Tensor]]:
    """Of every step; that of the 5 x 7 matrix vanishes in some."""
    found = [drawn(1 + step) for step in range(STEPS)]
    for step in (0, 7, 8):
        found[step][1].zero_()
    return found


def moved(
    settings: TrainingSettings, seen: list[list[Tensor]], rates: list[float] = RATES
) -> list[Tensor]:
    parameters = [nn.Parameter(one) for one in initial()]
    optimizer = make_optimizer(parameters, settings, dict(zip(parameters, KINDS, strict=True)))
    for step, rate in enumerate(rates):
        for parameter, gradient in zip(parameters, seen[step], strict=True):
            parameter.grad = gradient.clone()
        optimizer.step(rate)
    return [parameter.detach() for parameter in parameters]


def assert_same(mine: list[Tensor], its: list[Tensor]) -> None:
    for one, other in zip(mine, its, strict=True):
        assert float((one - other).norm()) <= 1e-10 * float(other.norm())
    assert all(
        float((one - start).norm()) > 1e-3 for one, start in zip(its, initial(), strict=True)
    )


ALL = {"weight_decay": DECAY, "decay_norm_and_bias": True, "adapt_norm_and_bias": True}


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_pytorchs(nesterov: bool) -> None:
    seen = gradients()
    its = reference.torch_sgd(
        initial(), seen, RATES, momentum=MOMENTUM, decay=DECAY, nesterov=nesterov
    )
    for form in ("outside", "corrected", None):
        settings = TrainingSettings(
            momentum=MOMENTUM,
            momentum_form=form,
            nesterov=nesterov,
            weight_decay=DECAY,
            decay_norm_and_bias=True,
        )
        assert_same(moved(settings, seen), its)


@pytest.mark.parametrize("mode", ["clip", "scale"])
def test_larc_is_apexs(mode: str) -> None:
    seen = gradients()
    settings = TrainingSettings(
        optimizer="larc",
        larc_mode=mode,
        momentum=MOMENTUM,
        trust_coefficient=0.02,
        trust_epsilon=1e-8,
        **ALL,
    )
    assert_same(
        moved(settings, seen),
        reference.apex_larc(
            initial(), seen, RATES, momentum=MOMENTUM, decay=DECAY, clip=mode == "clip"
        ),
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("form", ["inside", None])
def test_lars_inside_is_the_mlperf_reference(form: str | None, nesterov: bool) -> None:
    seen = gradients()
    settings = TrainingSettings(
        optimizer="lars",
        momentum=MOMENTUM,
        momentum_form=form,
        nesterov=nesterov,
        weight_decay=DECAY,
        trust_epsilon=1e-7,
    )
    assert_same(
        moved(settings, seen),
        reference.mlperf_lars(
            initial(), seen, RATES, EXCLUDED, momentum=MOMENTUM, decay=DECAY, nesterov=nesterov
        ),
    )


def test_lars_corrected_is_nvidias_submission() -> None:
    seen = gradients()
    settings = TrainingSettings(
        optimizer="lars", momentum=MOMENTUM, momentum_form="corrected", weight_decay=DECAY
    )
    assert_same(
        moved(settings, seen),
        reference.nvidia_lars(initial(), seen, RATES, EXCLUDED, momentum=MOMENTUM, decay=DECAY),
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("stopped", [(), (0, 20)])
def test_lars_corrected_is_timms(nesterov: bool, stopped: tuple[int, ...]) -> None:
    """Divided by the rate, the corrected buffer is the one that timm keeps; also where the rate is 0 in between."""
    seen = gradients()
    rates = [0.0 if step in stopped else rate for step, rate in enumerate(RATES)]
    settings = TrainingSettings(
        optimizer="lars",
        momentum=MOMENTUM,
        momentum_form="corrected",
        nesterov=nesterov,
        weight_decay=DECAY,
        trust_epsilon=1e-8,
    )
    its = reference.timm_lars(
        initial(), seen, rates, EXCLUDED, momentum=MOMENTUM, decay=DECAY, nesterov=nesterov
    )
    assert_same(moved(settings, seen, rates), its)
    other = settings.replace(momentum_form="outside")
    with pytest.raises(AssertionError):
        assert_same(moved(other, seen, rates), its)


def test_lars_outside_is_tensorflow_1() -> None:
    seen = gradients()
    settings = TrainingSettings(
        optimizer="lars", momentum=MOMENTUM, momentum_form="outside", weight_decay=DECAY
    )
    assert_same(
        moved(settings, seen),
        reference.tensorflow1_lars(
            initial(), seen, RATES, EXCLUDED, momentum=MOMENTUM, decay=DECAY
        ),
    )


def test_the_three_forms_of_lars_differ_where_the_rate_changes() -> None:
    seen = gradients()
    inside, corrected, outside = (
        moved(TrainingSettings(optimizer="lars", momentum_form=form, trust_coefficient=0.02), seen)
        for form in ("inside", "corrected", "outside")
    )
    for one, other in ((inside, corrected), (inside, outside), (corrected, outside)):
        assert float((one[0] - other[0]).norm()) > 1e-4 * float(one[0].norm())


@pytest.mark.parametrize(("decay", "nvlamb"), [(DECAY, False), (DECAY, True), (0.0, True)])
def test_lamb_is_apexs(decay: float, nvlamb: bool) -> None:
    """The gradients that the optimizer sees are those that the training loop has clipped."""
    seen = gradients()
    settings = TrainingSettings(
        optimizer="lamb",
        weight_decay=decay,
        epsilon=1e-6,
        decay_norm_and_bias=True,
        adapt_norm_and_bias=True,
    )
    its = reference.apex_lamb(initial(), seen, RATES, decay=decay, nvlamb=nvlamb)
    norms = [torch.cat([one.flatten() for one in step]).norm() for step in seen]
    assert min(norms) > 1
    assert_same(
        moved(
            settings, [[one / norm for one in step] for step, norm in zip(seen, norms, strict=True)]
        ),
        its,
    )
