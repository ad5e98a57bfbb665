"""PlanRequest: the options of a plan, defined once for Python, the command line and the web service.

The command's options (``hpo.cli.commands.options``) and the body of ``POST /studies/{name}/plans``
(``hpo.service.routes.plans``) are generated from it; a test compares the keywords of ``hpo.make_plan`` and
``hpo.plan_study`` with it. Importing this module loads neither numpy nor pydantic, so the command line starts quickly.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from hpo.errors import PlanError
from hpo.planning.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from hpo.planning.machines import Machine
    from trainers.cost import WorkloadCost

Objective: TypeAlias = Literal["time", "accelerator_hours", "energy"]
"""What a plan minimises."""

MOST_WORKERS = 10**6
LARGEST_BATCH = 10**8
"""In samples: hundreds of times the largest batch ever trained. Larger batches can be split in very many ways."""
MOST_HOURS = 1e6


def _about(description: str, **rules: Any) -> dict[str, Any]:
    """Return the metadata of a field.

    ``ge``, ``gt``, ``le`` and ``lt`` bound a number; ``choices`` lists all allowed values; ``registry`` holds them as
    its names. ``unit`` is the placeholder of the value in the command line's help, and ``option`` is the field's name
    there, if different.
    """
    return {"description": description, **rules}


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request for a plan; fields left as None are chosen, or taken from the study's ``full_scale`` section.

    - ``machine``: a name that ``hpo machines`` lists, the path of a machine's YAML file, or a :class:`Machine`.
    - ``nodes``, ``workers`` (processes over all nodes), ``ranks_per_node``: whole numbers of at least 1.
    - ``global_batch_size``: samples per update; None: the forecast's; "best": chosen within what the evidence
      supports.
    - ``micro_batch_size``: samples per forward pass; None: as many as fit in memory.
    - ``minimise``: "time", "accelerator_hours" or "energy"; None: the time, or the accelerator hours with a deadline.
    - ``deadline_hours``: hours within which the target must be reached, with the probability ``chance``;
      ``slot_hours``: hours within which it should be.
    - ``cost``: the cost of a sample of the workload: a name in ``hpo.planning.timing.costs``, the path of a file,
      or the figures; None: the cost that the study measured.
    - ``node_failure_hours``: mean hours between failures of one node; None: failures are ignored.
    - ``launcher``: how the plan is started, one of :data:`hpo.planning.schedulers.SCHEDULERS`; None: the machine's own
      scheduler.

    Raises :class:`PlanError` for a number outside its range or an unknown choice.
    """

    machine: str | Machine | None = field(
        default=None,
        metadata=_about(
            "A machine from `hpo machines`, or its YAML file; default: the machine of the "
            "study's full_scale, else 'local'.",
            unit="NAME|FILE",
        ),
    )
    nodes: int | None = field(
        default=None,
        metadata=_about("Nodes to use; default: chosen automatically.", ge=1, le=MOST_WORKERS),
    )
    ranks_per_node: int | None = field(
        default=None,
        metadata=_about(
            "Processes on each node; default: chosen automatically.", ge=1, le=10**4, unit="R"
        ),
    )
    workers: int | None = field(
        default=None,
        metadata=_about(
            "Worker processes on all nodes; default: chosen automatically.", ge=1, le=MOST_WORKERS
        ),
    )
    global_batch_size: int | Literal["best"] | None = field(
        default=None,
        metadata=_about(
            "Batch size to plan for; default: the study's full-scale batch size. With 'best', "
            "or if that batch cannot fill the nodes, it is chosen within the range that the "
            "evidence supports.",
            ge=1,
            le=LARGEST_BATCH,
            unit="B|best",
        ),
    )
    micro_batch_size: int | None = field(
        default=None,
        metadata=_about(
            "Samples per forward pass; default: as many as fit in memory.",
            ge=1,
            le=LARGEST_BATCH,
            unit="M",
        ),
    )
    minimise: Objective | None = field(
        default=None,
        metadata=_about(
            "Objective; default: time, or accelerator hours with a deadline.",
            choices=get_args(Objective),
        ),
    )
    deadline_hours: float | None = field(
        default=None,
        metadata=_about(
            "Deadline; the cheapest plan that meets it is chosen.",
            gt=0,
            le=MOST_HOURS,
            unit="HOURS",
            option="--deadline",
        ),
    )
    slot_hours: float | None = field(
        default=None,
        metadata=_about(
            "Time for which the machine is available; the plan shows the chance of finishing "
            "in it.",
            gt=0,
            le=MOST_HOURS,
            unit="HOURS",
            option="--slot",
        ),
    )
    chance: float = field(
        default=0.9,
        metadata=_about(
            "Required probability of meeting the deadline, and desired probability of "
            "finishing in the slot.",
            gt=0,
            lt=1,
            unit="P",
        ),
    )
    cost: str | WorkloadCost | None = field(
        default=None,
        metadata=_about(
            "Cost of a sample of the workload, if the study sweeps a smaller model: resnet50, "
            "tiramisu, deeplabv3plus, or a file; default: the cost that the study measured.",
            unit="NAME|FILE",
        ),
    )
    node_failure_hours: float | None = field(
        default=None,
        metadata=_about(
            "Mean time between failures of one node; adds the cost of checkpoints and restarts.",
            gt=0.01,
            unit="HOURS",
        ),
    )
    launcher: str | None = field(
        default=None,
        metadata=_about("Default: the machine's own scheduler.", registry=SCHEDULERS),
    )

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is not None:
                _check(each.name, value, each.metadata)

    @classmethod
    def of(cls, **options: Any) -> PlanRequest:
        """Return the request with these options; an unknown name raises :class:`PlanError` with the nearest name."""
        from search_spaces.names import did_you_mean

        names = [each.name for each in dataclasses.fields(cls)]
        for name in options:
            if name not in names:
                raise PlanError(
                    f"a plan has no option {name!r}{did_you_mean(name, names)}; the choices are {', '.join(names)}"
                )
        return cls(**options)


class PlanOptions(TypedDict, total=False):
    """The keywords of ``hpo.make_plan`` and ``hpo.plan_study`` besides machine, nodes and workers.

    For type checkers and editors; a test compares it with the fields of :class:`PlanRequest`.
    """

    ranks_per_node: int | None
    global_batch_size: int | Literal["best"] | None
    micro_batch_size: int | None
    minimise: Objective | None
    deadline_hours: float | None
    slot_hours: float | None
    chance: float
    cost: str | WorkloadCost | None
    node_failure_hours: float | None
    launcher: str | None


def _check(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    """Raise :class:`PlanError` for a value that violates the rules of its field."""
    if "registry" in rules:
        if value not in rules["registry"]:
            raise PlanError(
                f"{name} must be one of {', '.join(rules['registry'])}, but got {value!r}"
                f"{rules['registry'].explain(value)}"
            )
        return
    if "choices" in rules:
        if value not in rules["choices"]:
            raise PlanError(
                f"{name} must be one of {', '.join(rules['choices'])}, but got {value!r}"
            )
        return
    if not rules.keys() & {"ge", "gt"} or (name == "global_batch_size" and value == "best"):
        return
    whole = "ge" in rules
    kind = numbers.Integral if whole else numbers.Real
    inside = (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and value >= rules.get("ge", -math.inf)
        and value > rules.get("gt", -math.inf)
        and value <= rules.get("le", math.inf)
        and value < rules.get("lt", math.inf)
    )
    if not inside:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise PlanError(f"{name} must be {_range(name, rules)}, but got {shown}")


def _range(name: str, rules: Mapping[str, Any]) -> str:
    if "lt" in rules:
        return f"a probability between {rules['gt']} and {rules['lt']}"
    if "ge" in rules:
        best = ", or 'best'" if name == "global_batch_size" else ""
        return f"a whole number from {rules['ge']} to {rules['le']:,}{best}"
    most = f" and at most {rules['le']:,.0f}" if "le" in rules else ""
    return f"a number of hours above {rules['gt']}{most}"
