"""Write checkpoints atomically, and read them without running untrusted code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from trainers.errors import CheckpointError
from trainers.private_files import open_private


def save(path: Path | str, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values; a crash leaves either the old file or the new file, never a partial one.

    Raises :class:`CheckpointError` if the file cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(temporary, "wb", opener=open_private) as file:
            torch.save(tree_map(_compact, dict(state)), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        cause = _write_error(error)
        if cause is None:
            raise
        raise CheckpointError(f"cannot write the checkpoint {path}: {cause.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write_error(error: BaseException) -> OSError | None:
    """Return the system's error behind a failed write: PyTorch raises a RuntimeError of its own after some of them."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found


def _compact(value: Any) -> Any:
    """Copy a tensor that is a view of larger storage (as in fused runs), which would otherwise be saved as a whole."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def load(path: Path | str) -> dict[str, Any]:
    """Read a file written by :func:`save`, with its tensors on the CPU; other pickled objects are rejected.

    Raises :class:`CheckpointError` if the file cannot be read or is not a checkpoint.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    except (RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of a training run, or it is damaged; delete it to start over"
        ) from error
    return state


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Restore a model's state; raise :class:`CheckpointError` if its parameters differ, after some have been loaded."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2]
        raise CheckpointError(
            f"the checkpoint has other parameters than this model ({first[0].strip() if first else error}); "
            "delete it to start over, or train the model it was saved with"
        ) from error
