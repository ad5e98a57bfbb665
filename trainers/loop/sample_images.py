"""Sample images of a trained model: pictures of its predictions, and the baselines that it must beat.

A workload that defines ``sample_images(model)`` returns plain values::

    {"title": "Climate segmentation",
     "references": {"majority class": 0.33, "linear classifier": 0.41},      the target's metric of each baseline
     "classes": ["background", "cyclone", "river"],                          the name of each label
     "panels": [{"name": "sample 7",
                 "fields": {"TMQ": [[0, 17, ...], ...]},                     rows from the top, numbers 0 to 255
                 "labels": [[0, 0, 1, ...], ...], "prediction": [[0, 0, 2, ...], ...]}]}

Any of the four keys may be left out, and other keys are kept but not shown. Worker 0 writes the values after the
outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.errors import WorkloadError

if TYPE_CHECKING:
    from trainers.loop.replica import Replica

MAX_BYTES = 8_000_000
"""The size limit of stored sample images, in bytes of JSON."""


def sample_images_of(replica: Replica) -> dict[str, Any] | None:
    """Return the sample images of a replica's current model; None if its workload has none."""
    import torch

    show = getattr(replica.workload, "sample_images", None) or getattr(
        replica.workload, "exhibit", None
    )
    if show is None:
        return None
    replica.model.eval()
    with torch.no_grad(), replica.computing:
        shown: dict[str, Any] | None = show(replica.model)
    return shown


def check_sample_images(images: Any) -> dict[str, Any]:
    """Return a workload's sample images if they have the form above; otherwise raise :class:`WorkloadError` naming the
    invalid part.
    """
    if not isinstance(images, Mapping):
        raise WorkloadError(f"sample images must be a mapping, but got {type(images).__name__}")
    classes = images.get("classes", [])
    _check(
        isinstance(classes, list) and all(isinstance(name, str) for name in classes),
        "sample_images.classes must be a list of names",
        classes,
    )
    references = images.get("references", {})
    _check(
        isinstance(references, Mapping) and all(map(_is_number, references.values())),
        "sample_images.references must map names to numbers",
        references,
    )
    panels = images.get("panels", [])
    _check(isinstance(panels, list), "sample_images.panels must be a list", panels)
    for place, panel in enumerate(panels):
        _check_panel(panel, f"sample_images.panels[{place}]", len(classes))
    try:
        size = len(json.dumps(images, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"sample images must hold plain JSON values, but {error}") from error
    if size > MAX_BYTES:
        raise WorkloadError(
            f"sample images must have at most {MAX_BYTES:,} bytes as JSON, but got {size:,}; show fewer "
            "panels, or every second row and column"
        )
    return dict(images)


def _check_panel(panel: Any, where: str, classes: int) -> None:
    _check(isinstance(panel, Mapping), f"{where} must be a mapping", panel)
    fields = panel.get("fields", {})
    _check(isinstance(fields, Mapping), f"{where}.fields must map names to rows of numbers", fields)
    for name, rows in fields.items():
        _check(
            _is_picture(rows, 0, 255),
            f"{where}.fields[{name!r}] must be equally long rows of numbers 0 to 255",
            rows,
        )
    for name in ("labels", "prediction"):
        if name in panel:
            _check(
                _is_picture(panel[name], 0, classes - 1),
                f"{where}.{name} must be equally long rows of labels 0 to {classes - 1}, one for each class",
                panel[name],
            )


def _is_picture(rows: Any, low: int, high: int) -> bool:
    if (
        not isinstance(rows, list)
        or not rows
        or not all(isinstance(row, list) and row for row in rows)
    ):
        return False
    return len({len(row) for row in rows}) == 1 and all(
        _is_number(value) and low <= value <= high for row in rows for value in row
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(holds: bool, rule: str, value: Any) -> None:
    if not holds:
        text = repr(value)
        raise WorkloadError(f"{rule}, but got {text if len(text) <= 80 else text[:77] + '...'}")
