"""Compile a model's training pass with ``torch.compile``, if requested by ``--compile`` or ``HPO_COMPILE``.

The forward and backward passes of an update are compiled, once for each micro batch size; evaluations, gradient
reduction, the optimizer and checkpoints work as in an uncompiled run. Results differ by rounding, and by different
random numbers if the model draws any (dropout). The first update of each size waits for the compiler. All gradients of
a compiled backward pass arrive at its end, so their reduction does not overlap with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from search_spaces.names import nearest_or_all
from trainers.distributed.device import COMPILE_VARIABLE
from trainers.errors import JobError

COMPILERS = ("none", "inductor", "aot_eager")
"""The values of HPO_COMPILE: no compilation; PyTorch's own compiler; tracing only, to find what cannot be compiled."""

_WITHOUT = f"leave out --compile, and {COMPILE_VARIABLE} in the environment"


def wanted_compiler() -> str:
    """Return the compiler that the environment names; raises :class:`JobError` if it is not in COMPILERS."""
    wanted = os.environ.get(COMPILE_VARIABLE) or "none"
    if wanted not in COMPILERS:
        raise JobError(f"there is no compiler {wanted!r}{nearest_or_all(wanted, COMPILERS)}")
    return wanted


def compiled_model(model: nn.Module, device: torch.device, compiler: str) -> nn.Module:
    """Return a module with the parameters and buffers of ``model`` and compiled calls; the model itself is unchanged.

    Raises :class:`JobError` if the compiler cannot work on this machine.
    """
    if compiler == "inductor" and (lacking := _lacking(device)):
        raise JobError(f"torch.compile needs {lacking}; install it, or {_WITHOUT}")
    try:  # static shapes: there are few, and ghost batch norm loops over its groups
        return torch.compile(model, backend=compiler, dynamic=False)  # type: ignore[return-value]
    except RuntimeError as error:
        raise JobError(f"torch.compile cannot be used here ({error}); {_WITHOUT}") from error


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Turn a failure of the compiler into a :class:`JobError` that says how to train without it."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        raise JobError(f"torch.compile cannot compile this model ({error}); {_WITHOUT}") from error


def _lacking(device: torch.device) -> str | None:
    """Return a tool that the compiler needs and the machine lacks, or None if it lacks none."""
    if device.type != "cpu":
        from torch.utils._triton import has_triton

        return None if has_triton() else f"Triton for {device.type}, which is not installed"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++), which is not in PATH"
    return None
