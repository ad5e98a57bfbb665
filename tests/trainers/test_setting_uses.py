"""Which settings each optimizer and schedule uses, compared with what changes when their values change."""

import dataclasses

import pytest
import torch
from torch import nn

from hpo.testing import other_value
from search_spaces.settings import TrainingSettings, default_of, names
from search_spaces.techniques import OF_LOOP, OPTIMIZERS, TECHNIQUES, fault_of_use, uses_of
from trainers.optimizers import make_optimizer
from trainers.optimizers.parameter_kinds import KINDS
from trainers.schedules.batch_size import BatchByNoise, batch_factor
from trainers.schedules.learning_rate import learning_rate

OTHER = {
    "momentum": 0.5,
    "momentum_form": "outside",
    "nesterov": True,
    "beta1": 0.5,
    "beta2": 0.5,
    "epsilon": 0.1,
    "bias_correction": False,
    "decay_norm_and_bias": True,
    "decay_bias": True,
    "trust_coefficient": 0.5,
    "trust_epsilon": 2.0,
    "adapt_norm_and_bias": True,
    "weight_norm_limit": 0.1,
    "larc_mode": "scale",
    "larc_optimizer": "adam",
    "rmsprop_learning_rate": 0.1,
    "rmsprop_center_epochs": 1.0,
    "rmsprop_period_epochs": 50.0,
    "preconditioner_interval": 2,
    "preconditioner_size_limit": 3,
}
"""Another value than the default of every setting that the optimizers share or have for themselves."""

SCHEDULES = {
    "warmup_shape": "quadratic",
    "warmup_start_factor": 0.4,
    "decay_epochs": 7.0,
    "decay_power": 1.0,
    "decay_milestones": (2.0, 4.0),
    "decay_factor": 0.5,
    "decay_values": (1.0, 0.3, 0.2),
    "end_learning_rate_factor": 0.5,
    "batch_milestones": (3.0, 5.0),
    "batch_factors": (3.0, 4.0),
    "batch_limit_factor": 2.0,
    "batch_rate_rule": "linear",
}
"""The same of the schedules."""

_PLAIN = {
    "decay_milestones": (3.0, 6.0),
    "decay_values": (1.0, 0.5, 0.2),
    "batch_milestones": (4.0, 6.0),
    "batch_factors": (2.0, 4.0),
}


def used(name: str, settings: TrainingSettings) -> bool:
    return fault_of_use(name, lambda other: (settings.to_record().get(other),)) is None


def trained(settings: TrainingSettings) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    parameters = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in ((4, 2), (4,), (4,), (3, 2))
    ]
    kinds = dict(zip(parameters, KINDS, strict=True))
    optimizer = make_optimizer(parameters, settings, kinds)
    for step in range(8):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        optimizer.step(0.1 * min(step + 1, 6 - step / 2), epochs=2.0 * step)
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def scheduled(settings: TrainingSettings) -> list[tuple[float, float]]:
    """Rate and batch over ten epochs in which the noise scale is far above any batch."""
    epochs = [step / 4 for step in range(40)]
    if settings.batch_control == "noise_scale":
        growth = [(0.0, 1.0)]
        for each in (2.0, 4.0, 6.0):
            if BatchByNoise.grows(settings, growth[-1][1], 32, 1e6):
                growth.append((each, 2 * growth[-1][1]))
        settings = BatchByNoise.pieces(settings, growth[1:])
    return [(learning_rate(settings, each, 10.0), batch_factor(settings, each)) for each in epochs]


@pytest.mark.parametrize("inner", ["sgd", "adam"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_setting_moves_the_weights_where_it_is_said_to(optimizer, inner):
    settings = TrainingSettings(
        optimizer=optimizer, larc_optimizer=inner, weight_decay=0.01, momentum_form="inside"
    )
    plain = trained(settings)
    for name, value in OTHER.items():
        if value != getattr(settings, name):
            changed = not torch.equal(
                trained(dataclasses.replace(settings, **{name: value})), plain
            )
            assert changed == used(name, settings), name
    for name, setting in settings.own_settings.items():
        changed = trained(settings.replace(**{name: other_value(setting)}))
        assert torch.equal(changed, plain) == (name in OF_LOOP), name


@pytest.mark.parametrize("warmup_epochs", [0.0, 2.0])
@pytest.mark.parametrize(
    ("decay", "batch_control"),
    [
        (decay, control)
        for decay in TECHNIQUES["decay"]
        for control in TECHNIQUES["batch_control"]
        if control != "grow" or decay == "step"
    ],
)
def test_a_setting_moves_the_schedules_where_it_is_said_to(decay, batch_control, warmup_epochs):
    settings = TrainingSettings(
        decay=decay, batch_control=batch_control, warmup_epochs=warmup_epochs, **_PLAIN
    )
    plain = scheduled(settings)
    for name, value in SCHEDULES.items():
        changed = scheduled(dataclasses.replace(settings, **{name: value})) != plain
        assert changed == used(name, settings), name


def test_every_setting_that_others_make_use_of_is_tried_here_or_is_no_part_of_optimizer_and_schedule():
    rest = {
        "reduced_weights",
        "loss_scale",
        "loss_scale_growth_updates",
        "asynchronous_workers",
        "staleness_bound",
        "epoch_quorum",
    }
    assert {name for name in names() if uses_of(name)} == {*OTHER, *SCHEDULES, *rest}
    assert all(value != default_of(name) for name, value in {**OTHER, **SCHEDULES}.items())
