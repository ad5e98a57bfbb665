"""`hpo import`: imports runs from elsewhere into a storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpo.cli.commands import options
from hpo.errors import EvidenceError, HpoError, SpecError
from hpo.past_runs.importers import IMPORTERS, ImporterDescription
from search_spaces.plugins import PluginError, load_attribute

if TYPE_CHECKING:
    from hpo.past_runs.importing import ImportedRuns
    from hpo.past_runs.mlperf.importing import MLPerfImport
    from hpo.past_runs.past_run import PastRun
    from hpo.study.spec import StudySpec

Command = TypeVar("Command", bound=Callable[..., Any])


class _Importers(click.Group):
    """The commands defined here and one for each importer; plug-ins are searched only when a command is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, without faulty importers."""
        return [*super().list_commands(ctx), *options.Named(IMPORTERS).names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; raise a usage error for a faulty importer."""
        if own := super().get_command(ctx, cmd_name):
            return own
        try:
            described = IMPORTERS.get(cmd_name)
        except PluginError as error:
            raise click.UsageError(f"{cmd_name!r} cannot be used: {error}", ctx) from error
        return _command(cmd_name, described) if described else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the arguments; for an unknown name, fail with a suggestion of the nearest one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = (
                IMPORTERS.explain(args[0])
                or f"; the choices are {', '.join(self.list_commands(ctx))}"
            )
            ctx.fail(f"there is no importer {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


@click.group(name="import", cls=_Importers)
def importing() -> None:
    """Import results of training runs from elsewhere."""


@importing.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--round",
    "round_name",
    metavar="ROUND",
    help="Round, such as training_v2.1; default: from the folder's name.",
)
@options.storage
@options.json_output
def mlperf(path: Path, round_name: str | None, storage: str, as_json: bool) -> None:
    """Import MLPerf results (ResNet-50, DeepCAM) from PATH, the folder of a round, a submitter or a system.

    The outcomes are evidence for forecasts, the throughputs for the time model. Importing again adds nothing.
    """
    from hpo.past_runs.mlperf.importing import import_mlperf_results
    from hpo.runs.repository import open_store

    with open_store(storage) as store:
        imported = import_mlperf_results(store, path, round_name)
    for fault in imported.faults:
        click.echo(f"left out: {fault}", err=True)
    options.show(imported.to_dict, lambda: _show(imported), as_json)


def _show(imported: MLPerfImport) -> None:
    for study, count in imported.outcomes.items():
        click.echo(f"{study}: {count} new outcome{'' if count == 1 else 's'}")
    if imported.known:
        click.echo(f"{imported.known} existed already")
    if imported.faults:
        click.echo(f"{len(imported.faults)} logs were left out, for the reasons above")


def _run_options(command: Command) -> Command:
    """Add the options of every command that imports past runs as trials of a study."""
    for option in (
        options.json_output,
        options.storage,
        click.option(
            "--dry-run", is_flag=True, help="Show what would be imported, and store nothing."
        ),
        click.option(
            "--train-samples",
            type=click.IntRange(min=1),
            metavar="N",
            help="Size of the training set, needed for curves; default: the study's.",
        ),
        click.option(
            "--axis",
            type=click.Choice(["epochs", "epoch-index", "updates", "samples"]),
            default="updates",
            show_default=True,
            help="Unit of a curve's steps: epochs done, epochs from 0, updates or samples. A "
            "curve that is mapped to epochs takes precedence.",
        ),
        click.option(
            "--state",
            "states",
            multiple=True,
            metavar="THEIRS=OURS",
            help="Meaning of a run's status where its curve does not show how it ended: censored, diverged, pruned, "
            "failed or skip; may be repeated. By default, runs that failed or were killed are left out.",
        ),
        click.option(
            "--map",
            "mapping",
            multiple=True,
            metavar="THEIRS=OURS",
            help="Name in the source and its name here, such as lr=learning_rate, "
            "bs=global_batch_size or "
            "val_acc=metric; may be repeated. Equal names need no mapping.",
        ),
        click.option(
            "--study",
            required=True,
            metavar="NAME|FILE",
            help="Name of a study in the storage, or a study file, which is stored if it is new.",
        ),
    ):
        command = option(command)
    return command


def _command(name: str, described: ImporterDescription) -> click.Command:
    """Return the command ``hpo import NAME SOURCE``, with the importer's options and the common ones."""

    def call(source: Any, **given: Any) -> None:
        own = {option: given.pop(option) for option in described.options}
        _import(_read(name, described, source, own), **given)

    command: Callable[..., Any] = _run_options(call)
    for option, its in described.options.items():
        kind = click.Path(path_type=Path) if its.file else click.STRING
        flag = f"--{option.replace('_', '-')}"
        command = click.option(flag, option, type=kind, multiple=its.many, help=its.what)(command)
    kind = click.Path(path_type=Path) if described.file else click.STRING
    command = click.argument("source", type=kind)(command)
    about = f"Import as trials of a study: {described.about}."
    return click.command(name, help=f"{about}\n\n{described.details}".rstrip())(command)


def _read(
    name: str, described: ImporterDescription, source: Any, own: Mapping[str, Any]
) -> list[PastRun]:
    """Return the runs of a source; raise EvidenceError if the rule of a plug-in fails or breaks its contract."""
    from hpo.past_runs.past_run import PastRun

    if name in IMPORTERS.built_in:
        found: list[PastRun] = load_attribute(described.rule)(source, **own)
        return found
    try:
        found = load_attribute(described.rule)(source, **own)
    except HpoError:
        raise
    except Exception as error:
        raise EvidenceError(
            f"importer {name!r} cannot read {source}: {described.rule} failed: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, list) and all(isinstance(each, PastRun) for each in found)):
        raise EvidenceError(
            f"importer {name!r} must return a list of PastRun, but {described.rule} gave {found!r:.100}"
        )
    return found


def _import(
    runs: list[PastRun],
    *,
    study: str,
    mapping: Sequence[str],
    states: Sequence[str],
    axis: Any,
    train_samples: int | None,
    dry_run: bool,
    storage: str,
    as_json: bool,
) -> None:
    from hpo.past_runs.conversion import ImportOptions
    from hpo.past_runs.importing import import_runs
    from hpo.runs.repository import enter_study, open_store, stored_spec
    from hpo.study.spec import load_study

    how = ImportOptions(
        mapping=_pairs("--map", mapping),
        states={status.lower(): state for status, state in _pairs("--state", states).items()},
        axis=axis,
    )
    from_file = study.endswith((".yaml", ".yml"))
    with open_store(storage, create=from_file) as store:
        if from_file:
            spec = load_study(study)
            entered = enter_study(store, spec)
        else:
            entered = store.study(study)
            spec = stored_spec(entered)
        if train_samples is None and any(run.curves for run in runs):
            train_samples = _train_samples(spec)
        how = replace(how, train_samples=train_samples)
        done = import_runs(store, entered, spec, runs, how, dry_run=dry_run)
    for run, reason in done.skipped:
        click.echo(f"left out: {run}: {reason}", err=True)
    options.show(done.to_dict, lambda: _show_runs(done, dry_run=dry_run), as_json)


def _train_samples(spec: StudySpec) -> int:
    """Return the size of the study's training set, as stated in its file or counted in its data."""
    from hpo.runs.checks import check_workload
    from hpo.study.jobs import said_train_samples

    if (said := said_train_samples(spec)) is not None:
        return said
    try:
        return check_workload(spec).train_samples
    except SpecError as error:
        raise EvidenceError(
            "curves need the number of training samples, and the study's data cannot be opened here to count them: "
            f"give --train-samples ({error})"
        ) from error


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        theirs, equals, ours = text.rpartition("=")
        if not (theirs and equals and ours):
            raise click.UsageError(f"{option} must be THEIRS=OURS, but got {text!r}")
        if theirs in pairs:
            raise click.UsageError(f"{option} names {theirs!r} twice")
        pairs[theirs] = ours
    return pairs


def _show_runs(done: ImportedRuns, *, dry_run: bool) -> None:
    states = ", ".join(f"{count} {state}" for state, count in sorted(done.states.items()))
    would = "would gain" if dry_run else "gained"
    trials = "trial" if done.trials == 1 else "trials"
    click.echo(f"{done.study} {would} {done.trials} {trials}{f': {states}' if states else ''}")
    if done.known:
        click.echo(f"{done.known} existed already")
    if done.assumed:
        click.echo(f"no run records {', '.join(done.assumed)}: the study's values are assumed")
    if done.skipped:
        click.echo(f"{len(done.skipped)} were left out, for the reasons above")
