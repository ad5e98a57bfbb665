"""`hpo example`: writes an example of the package to a folder, where it can be run and changed."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

INSTALLED = Path(__file__).parents[1] / "examples"
CHECKOUT = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class Example:
    """One example: a study file, or a folder with study files and what they need."""

    name: str
    path: Path

    @property
    def studies(self) -> list[Path]:
        """The study files, as paths relative to the folder of the written example."""
        if self.path.is_file():
            return [Path(self.path.name)]
        return [Path(self.name, each.name) for each in sorted(self.path.glob("*.yaml"))]

    @property
    def about(self) -> str:
        """The first sentence of the comment at the top of its first study file."""
        first = self.path if self.path.is_file() else self.path.parent / self.studies[0]
        comment = itertools.takewhile(
            lambda line: line.startswith("#"), first.read_text("utf-8").splitlines()
        )
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        return re.split(r"[.?:;] ", text)[0].rstrip(".")


def examples() -> dict[str, Example]:
    """Return all examples by name, from the installed package or the checkout."""
    place = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    found = [
        Example(path.stem, path)
        for path in sorted(place.iterdir())
        if path.suffix == ".yaml" or (path.is_dir() and any(path.glob("*.yaml")))
    ]
    return {each.name: each for each in found}


@click.command()
@click.argument("name", required=False)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The folder to write to; default: the current one.",
)
def example(name: str | None, output: Path) -> None:
    """Write the example NAME and show how to run it; without a NAME, list the examples."""
    found = examples()
    if name is None:
        width = max(map(len, found))
        for each in found.values():
            click.echo(f"{each.name:{width}}  {each.about}")
        click.echo("\nhpo example NAME writes one")
        return
    if name not in found:
        from search_spaces.names import did_you_mean

        raise click.UsageError(
            f"NAME must be one of the examples ({', '.join(found)}), but got "
            f"{name!r}{did_you_mean(name, found)}"
        )
    chosen = found[name]
    written = output / chosen.path.name
    if written.exists():
        raise click.UsageError(
            f"{written} exists already; give another folder with --output, or move it away"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        if chosen.path.is_dir():
            shutil.copytree(chosen.path, written, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(chosen.path, written)
    except OSError as error:
        raise click.UsageError(f"{written} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {written}: {chosen.about}")
    if (written / "README.md").is_file():
        click.echo(f"what it shows and how to run it: {written / 'README.md'}")
        return
    click.echo("\nnext:")
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("ray") is None:
        click.echo("  pip install 'largebatch[train]'      training needs torch and Ray")
    for study in (output / each for each in chosen.studies):
        click.echo(f"  hpo study check {study}      what it will cost here")
        click.echo(f"  hpo run {study}      sweep, forecast, plan")
