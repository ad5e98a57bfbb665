"""fp32 master copies of parameters that are kept in bf16 or fp16 (Micikevicius et al., arXiv:1710.03740, section 3.1).

The rule runs on the masters with gradients cast to fp32, so that an update smaller than half a unit in the last place
of the reduced weight is not lost. The result is then rounded and copied to the model. The norms and ratios of LARS,
LARC and LAMB are computed from the masters (Jia et al., arXiv:1807.11205).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainers.errors import CheckpointError
from trainers.optimizers.optimizer import Optimizer

REDUCED = (torch.bfloat16, torch.float16)


class MasterOptimizer:
    """An optimizer that updates fp32 masters of the reduced parameters, and all other parameters directly."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], build: Callable[[list[nn.Parameter]], Optimizer]
    ) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.reduced: list[Tensor] = [
            parameter for parameter in trained if parameter.dtype in REDUCED
        ]
        self.masters = [
            nn.Parameter(parameter.detach().to(torch.float32, copy=True))
            for parameter in trained
            if parameter.dtype in REDUCED
        ]
        masters = iter(self.masters)
        self.optimizer = build(
            [next(masters) if parameter.dtype in REDUCED else parameter for parameter in trained]
        )
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self._gradients: list[Tensor] = [
            master.grad for master in self.masters if master.grad is not None
        ]

    @torch.no_grad()
    def step(
        self,
        learning_rate: float | Tensor,
        epochs: float | Tensor = 0.0,
        left_out: Tensor | None = None,
    ) -> None:
        """Do one update of the masters, and copy them to the model."""
        torch._foreach_copy_(
            self._gradients,
            [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self.reduced
            ],
        )
        self.optimizer.step(learning_rate, epochs, left_out)
        self._copy_down()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Enter and leave the rule's evaluation; both times, the masters are copied to the model's reduced weights."""
        with self.optimizer.evaluation():
            self._copy_down()
            yield
        self._copy_down()

    @torch.no_grad()
    def _copy_down(self) -> None:
        torch._foreach_copy_(self.reduced, list[Tensor](self.masters))

    def gather(self) -> None:
        """Copy to every worker the parts of the rule's state that only some workers keep."""
        self.optimizer.gather()

    def state_dict(self) -> dict[str, Any]:
        """Return the masters and the state of the rule."""
        return {
            "masters": [master.detach().clone() for master in self.masters],
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`, and copy the masters to the model's reduced weights."""
        saved = state.get("masters")
        if saved is None or [tuple(one.shape) for one in saved] != [
            tuple(one.shape) for one in self.masters
        ]:
            raise CheckpointError(
                "the checkpoint does not hold fp32 masters of this model's bf16 or fp16 parameters; "
                "resume with the model, the precision and the reduced_weights it was saved with"
            )
        self.optimizer.load_state_dict(state["optimizer"])
        for master, one in zip(self.masters, saved, strict=True):
            master.copy_(one)
        self._copy_down()
