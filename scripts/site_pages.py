"""An mkdocs hook for the pages of the documentation site that are not in docs/.

- It adds the benchmarks with their tables, the workloads, the examples and CONTRIBUTING.md from the repository.
- It adds references generated from the code: the command line, the REST interface and the machines.
- It rewrites the links between all of these. A link to a source file, for which the site has no page, becomes plain
  text. A broken link stays, so that a strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
OUTSIDE = ("benchmarks", "examples", "trainers/workloads")
KINDS = (".md", ".svg", ".png", ".yaml", ".py")


def shown() -> dict[str, Path]:
    """Return every file outside docs/ that the site shows, keyed by its path in the repository."""
    found = {"CONTRIBUTING.md": ROOT / "CONTRIBUTING.md"}
    for folder in OUTSIDE:
        for path in sorted((ROOT / folder).rglob("*")):
            kinds = KINDS if folder == "examples" else (".md", ".svg")
            if path.suffix in kinds and "__pycache__" not in path.parts:
                found[path.relative_to(ROOT).as_posix()] = path
    return found


def references() -> dict[str, str]:
    """Return the pages that are generated from the code, keyed by path."""
    return {
        "reference/cli.md": command_line(),
        "reference/rest.md": rest(),
        "reference/machines.md": machines(),
    }


def command_line() -> str:
    """Return the page of all commands with their options, generated from the command line parser."""
    from hpo.cli.main import main

    lines = [
        "# Command line",
        "",
        "Results go to stdout, progress to stderr. The exit code is 0 for success, 1 for work that failed, and 2 for "
        "invalid input. Every command has `--help`. For shell completion see "
        "[Install](../install.md#shell-completion).",
        "",
    ]
    for name, command in sorted(main.commands.items()):
        lines += _command(name, command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command) -> list[str]:
    if isinstance(command, click.Group):
        parts = [
            _command(f"{name} {each}", inner) for each, inner in sorted(command.commands.items())
        ]
        return [line for part in parts for line in part]
    context = click.Context(command, info_name=f"hpo {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## hpo {name}", "", f"`hpo {name} {usage}`", "", _text(command.help), ""]
    rows = []
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            record = each.get_help_record(context)
            if record:
                rows.append(f"| `{record[0].replace('|', '&#124;')}` | {_text(record[1])} |")
    return [*lines, *(["| option | |", "|---|---|", *rows, ""] if rows else [])]


def _text(text: str | None) -> str:
    return (text or "").replace("\b", "").replace("|", "\\|").replace("<", "&lt;").strip()


def rest() -> str:
    """Return the page of all paths of the service, generated from its OpenAPI document."""
    from hpo.service.app import create_app
    from hpo.service.config import ServerConfig

    document: dict[str, Any] = create_app(ServerConfig.model_validate({})).openapi()
    lines = [
        "# REST interface",
        "",
        "On a running server, `/docs` shows the same with every field and lets you try it, and `/openapi.json` is for "
        "programs. [The service](../guides/service.md#the-api) describes what all paths have in common.",
        "",
        "| address | does |",
        "|---|---|",
    ]
    for path, methods in sorted(document["paths"].items()):
        for method, what in methods.items():
            about = what.get("description") or what.get("summary") or ""
            lines.append(f"| `{method.upper()} {path}` | {_text(about.split(chr(10) * 2)[0])} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def machines() -> str:
    """Return the page of all shipped machines, which explains the figures and then lists the machines."""
    from hpo.planning.machines import load_machine, machine_names

    lines = [
        "| name | machine | nodes | accelerators of a node | scheduler |",
        "|---|---|---|---|---|",
    ]
    for name in machine_names():
        if name != "local":
            each = load_machine(name)
            lines.append(
                f"| `{name}` | {each.title} | {each.nodes:,} | {each.accelerators_per_node} x {each.accelerator.name} "
                f"| {each.scheduler} |"
            )
    about = (ROOT / "hpo" / "planning" / "machines" / "README.md").read_text("utf-8")
    return about + "\n## The machines\n\n" + "\n".join(lines) + "\n"


def on_config(config: Any) -> Any:
    """Add every benchmark page to the navigation."""
    pages = [name for name in shown() if name.startswith("benchmarks/") and name.endswith(".md")]
    pages.sort(key=lambda name: (name != "benchmarks/README.md", name))
    for entry in config.nav:
        if entry.get("Validation") == "VALIDATION":
            entry["Validation"] = [
                "validation/index.md",
                "validation/published_trainings.md",
                *pages,
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/."""
    from mkdocs.structure.files import File

    for place, path in shown().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for place, text in references().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - mkdocs' signature
    """Rewrite the links of a page to their targets on the site."""
    place = page.file.src_uri
    folder = posixpath.dirname(place)
    source = folder if place in shown() else posixpath.join("docs", folder)  # in the repository
    known = {file.src_uri for file in files}

    def link(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        there = posixpath.normpath(posixpath.join(source, path))
        in_site = "index.md" if there == "README.md" else there.removeprefix("docs/")
        if in_site in known:
            way = posixpath.relpath(in_site, posixpath.dirname(place) or ".")
            return f"{picture}[{text}]({way}{hash_sign}{anchor})"
        return text if (ROOT / there).exists() and not picture else found[0]

    return LINK.sub(link, markdown)
