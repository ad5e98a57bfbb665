"""Options and result printing shared by several commands."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpo.planning.request import PlanRequest
from search_spaces.plugins import PluginError, PluginRegistry
from storage.figures import MOST_WHOLE
from trainers.distributed.device import COMPILE_VARIABLE, DEVICE_VARIABLE, DEVICES

if TYPE_CHECKING:
    from hpo.runs.results import StudyResult

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_STORAGE = "sqlite:///hpo.db"

storage = click.option(
    "--storage",
    metavar="URL",
    envvar="HPO_STORAGE",
    default=DEFAULT_STORAGE,
    show_default=True,
    help="Database URL or SQLite file; also HPO_STORAGE.",
)
budgets = click.option(
    "--budget-epochs",
    "budgets",
    metavar="E",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    help="Also show the chance of reaching the target within E epochs; may be repeated.",
)
json_output = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."
)


def _choose_device(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001
    if value is not None:
        _tell_processes(ctx, DEVICE_VARIABLE, value)


def _choose_compiler(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value:
        _tell_processes(ctx, COMPILE_VARIABLE, "inductor")


def _tell_processes(ctx: click.Context, variable: str, value: str) -> None:
    """Pass a value, in the environment, to every process that the command starts."""
    before = os.environ.get(variable)
    os.environ[variable] = value

    def restore() -> None:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before

    ctx.call_on_close(restore)


device = click.option(
    "--device",
    type=click.Choice(DEVICES),
    expose_value=False,
    callback=_choose_device,
    help="Device for training on this machine; default: HPO_DEVICE, or a GPU if there is one.",
)


compiles = click.option(
    "--compile",
    is_flag=True,
    expose_value=False,
    callback=_choose_compiler,
    help="Compile forward and backward passes with torch.compile; default: HPO_COMPILE.",
)


class _BatchOrBest(click.ParamType):  # type: ignore[type-arg]  # no click before 8.4 takes an argument
    """A batch size, or the word ``best``."""

    name = "batch"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return the number, or "best"."""
        if value == "best":
            return str(value)
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(
                f"must be a whole number of samples of at least 1, or 'best', but got {value!r}",
                param,
                ctx,
            )
        return number


BATCH_OR_BEST = _BatchOrBest()
FORECAST_BATCH = click.IntRange(min=1, max=MOST_WHOLE)
"""A global batch size to forecast for, with the bounds of :func:`hpo.forecast`."""


class Named(click.ParamType):  # type: ignore[type-arg]  # no click before 8.4 takes an argument
    """A registered name that satisfies ``able``; plug-ins are searched only if the help or an error lists them."""

    name = "name"

    def __init__(
        self, registry: PluginRegistry[Any], able: Callable[[Any], bool] = lambda _: True
    ) -> None:
        self._registry, self._able = registry, able

    def names(self) -> list[str]:
        """Return the allowed names, without faulty plug-ins."""
        found = []
        for name in self._registry:
            with contextlib.suppress(PluginError):
                if self._able(self._registry[name]):
                    found.append(name)
        return found

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return ``[slurm|lsf]``."""
        return f"[{'|'.join(self.names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        try:
            able = value in self._registry and self._able(self._registry[value])
        except PluginError as error:
            self.fail(f"{value!r} cannot be used: {error}", param, ctx)
        if not able:
            hint = "" if value in self._registry else self._registry.explain(value)
            self.fail(
                f"must be one of {', '.join(self.names())}, but got {value!r}{hint}",
                param,
                ctx,
            )
        return str(value)


_server = click.option("--server", metavar="URL", help="URL of the server; default: HPO_SERVER.")
token = click.option(
    "--token",
    metavar="TOKEN",
    help="Token from `hpo token create`; HPO_TOKEN is safer, as other users of this machine "
    "can read the command line.",
)


def of_a_server(command: Command) -> Command:
    """Add the options for a server to a command."""
    return _server(token(command))


def plan_request(command: Command) -> Command:
    """Add an option for each field of :class:`hpo.PlanRequest` to a command; that class checks the values."""
    for field in reversed(dataclasses.fields(PlanRequest)):
        rules = field.metadata
        name = rules.get("option", f"--{field.name.replace('_', '-')}")
        kind: click.ParamType[Any] = click.STRING
        if field.name == "global_batch_size":
            kind = BATCH_OR_BEST
        elif "registry" in rules:
            kind = Named(rules["registry"])
        elif "choices" in rules:
            kind = click.Choice(rules["choices"])
        elif "ge" in rules:
            kind = click.IntRange(min=rules["ge"], max=rules["le"], clamp=False)
        elif "gt" in rules:
            kind = click.FLOAT
        command = click.option(
            name,
            field.name,
            type=kind,
            metavar=rules.get("unit"),
            default=field.default,
            show_default=field.default is not None,
            help=rules["description"],
        )(command)
    return command


def show(document: Callable[[], Any], shown: Callable[[], None], as_json: bool) -> None:
    """Print a result: ``document()`` as JSON, or what ``shown`` prints."""
    if as_json:
        print_json(document())
    else:
        shown()


def print_json(document: Any) -> None:
    """Print plain values as JSON; unmeasured values become null, as JSON has no NaN or infinity."""
    from trainers.json_text import json_text

    click.echo(json_text(document, indent=2))


def full_scale(result: StudyResult) -> tuple[int, ...]:
    """Return a study's full-scale batch size; raise a usage error if its file names none."""
    if result.spec.full_scale is None:
        raise click.UsageError(
            f"study {result.study.name!r} has no full_scale batch size; give one"
        )
    return (result.spec.full_scale.global_batch_size,)
