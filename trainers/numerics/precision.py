"""Reduced precision: which operations run in bf16 or fp16, and the loss scaling that keeps fp16 gradients above zero.

Following Micikevicius et al. (arXiv:1710.03740), matrix products run in the reduced type; normalization, loss and
updates run in fp32. The loss is multiplied by a scale, and the gradients are divided by it before they are used. If a
gradient overflows, its update is skipped and a dynamic scale is halved. The scale doubles after
``loss_scale_growth_updates`` updates without an overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from trainers.errors import JobError

REDUCED_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

_MATRIX_PRODUCTS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def precision_context(
    settings: TrainingSettings, device: torch.device
) -> AbstractContextManager[Any]:
    """Return the context in which the loss and the scores are computed; it may be entered repeatedly."""
    if settings.precision not in REDUCED_TYPES:  # tf32 is a mode of fp32 on GPUs
        return nullcontext()
    return torch.autocast(device.type, dtype=REDUCED_TYPES[settings.precision])


def store_reduced(model: nn.Module, settings: TrainingSettings) -> None:
    """Store convolutions and linear layers in the reduced type if ``reduced_weights`` is set; change nothing else.

    Their gradients are still accumulated in fp32, because in fp16 they would vanish when divided by the loss scale.
    Raises :class:`JobError` if this PyTorch version cannot do that.
    """
    if not settings.reduced_weights:
        return
    if not hasattr(torch.Tensor, "grad_dtype"):
        raise JobError(
            f"reduced_weights needs PyTorch 2.10 or later, for gradients wider than their weights, but this "
            f"is {torch.__version__}; leave reduced_weights out, or upgrade PyTorch"
        )
    for module in model.modules():
        if isinstance(module, _MATRIX_PRODUCTS):
            module.to(REDUCED_TYPES[settings.precision])
            for parameter in module.parameters():
                parameter.grad_dtype = torch.float32


def zero_gradient(parameter: nn.Parameter) -> Tensor:
    """Return zeros of the parameter's shape, in the type in which its gradient is accumulated."""
    return torch.zeros_like(parameter, dtype=gradient_type(parameter))


def gradient_type(parameter: Tensor) -> torch.dtype:
    """Return the type in which a parameter's gradient is accumulated, which may be wider than the parameter's type."""
    wider: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return wider or parameter.dtype


class LossScale:
    """The factor of the loss before backpropagation: 1, a constant, or, if dynamic, as large as possible.

    A dynamic ``value`` is a float32 scalar that stays on the device, so that nothing waits for it; each update creates
    a new tensor. The scale does not grow beyond the largest finite value.
    """

    def __init__(self, settings: TrainingSettings, device: torch.device | str = "cpu") -> None:
        self.dynamic = settings.loss_scaling == "dynamic"
        self.value: float | Tensor = 1.0 if settings.loss_scaling == "none" else settings.loss_scale
        self.growth_updates = settings.loss_scale_growth_updates
        if self.dynamic:
            self.value = torch.tensor(self.value, dtype=torch.float32, device=device)
            self._without_overflow = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, overflowed: Tensor) -> None:
        """Record whether the last update's gradient overflowed, given as a bool scalar that all workers share."""
        assert isinstance(self.value, Tensor), "only a dynamic scale is updated"
        self.value = self.value.clone()
        torch._amp_update_scale_(
            self.value, self._without_overflow, overflowed.float(), 2.0, 0.5, self.growth_updates
        )

    def state_dict(self) -> dict[str, float]:
        """Return the scale and its count, as plain numbers."""
        return {
            "value": float(self.value),
            "updates_without_overflow": int(self._without_overflow) if self.dynamic else 0,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        if not isinstance(self.value, Tensor):
            self.value = state["value"]
            return
        self.value = torch.full_like(self.value, state["value"])
        self._without_overflow.fill_(state["updates_without_overflow"])
