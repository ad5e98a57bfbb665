"""The server of a group: `hpo serve`, and the tokens that its users need."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from hpo.cli.commands import options

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class LifetimeParameter(click.ParamType):  # type: ignore[type-arg]  # no click before 8.4 takes an argument
    """A duration such as 12h, 30d or 8w, or ``never``."""

    name = "lifetime"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Return the duration as a timedelta, or None for never."""
        if not isinstance(value, str):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,4})([mhdw])", value)
        if value == "never":
            return timedelta(0)
        if found is None:
            self.fail(
                f"must be a number with a unit (30m, 12h, 30d, 8w) or never, but got {value!r}",
                parameter,
                context,
            )
        return timedelta(**{UNITS[found[2]]: int(found[1])})


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="YAML file of the server's configuration.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Database URL or SQLite file; default: sqlite:///hpo.db.",
)
@click.option("--host", help="Address to listen on; default: 127.0.0.1.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port; default: 8642; 0 takes any free port.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for plans and checkpoints.",
)
@click.option(
    "--data-folder",
    "data_folders",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    multiple=True,
    help="A folder that studies may read data from; may be repeated.",
)
@click.option(
    "--plugin",
    "plugins",
    metavar="PACKAGE",
    multiple=True,
    help="A package whose plug-ins studies may use; may be repeated; default: none.",
)
@click.option(
    "--worker/--no-worker",
    default=None,
    help="Run a worker inside the server; default on SQLite.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Format of the log on stderr."
)
def serve(
    file: Path | None,
    worker: bool | None,
    data_folders: tuple[Path, ...],
    plugins: tuple[str, ...],
    **given: Any,
) -> None:
    """Run the server for a group: API, events, queue; on a laptop also a built-in worker and a login link."""
    from hpo.cli.commands.web import dashboard_routers
    from hpo.service.config import load_server_config
    from hpo.service.serving import serve_until_stopped as run

    config = load_server_config(
        file, os.environ, data_folders=data_folders or None, plugins=plugins or None, **given
    )
    run(
        config,
        worker=_is_sqlite(config.storage) if worker is None else worker,
        link=config.is_local,
        extra_routers=dashboard_routers(config.path),
        tell=click.echo,
    )


@click.group()
def token() -> None:
    """Create, list and revoke the access tokens of a server's users."""


@token.command()
@click.option(
    "--owner",
    required=True,
    metavar="NAME",
    help="Owner of the token, which may create and change this owner's studies.",
)
@click.option(
    "--scope",
    type=click.Choice(["read", "submit", "admin"]),
    default="submit",
    show_default=True,
    help="Each scope includes the scopes before it.",
)
@click.option("--name", default="", help="Purpose of the token.")
@click.option(
    "--expires",
    type=LifetimeParameter(),
    default="30d",
    show_default=True,
    metavar="TIME",
    help="30m, 12h, 30d, 8w, or never.",
)
@options.storage
@options.json_output
def create(
    owner: str, scope: str, name: str, expires: timedelta, storage: str, as_json: bool
) -> None:
    """Create a token and print its secret once; the database stores only the SHA-256 hash."""
    from hpo.runs.repository import open_store
    from hpo.service import auth

    with open_store(storage) as store:
        secret, made = auth.create_token(
            store, owner=owner, scope=scope, name=name, lifetime=expires or None
        )
    until = f"expires {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else "never expires"

    def shown() -> None:
        click.echo(secret)
        click.echo(
            f"token {made.id} of {owner}, scope {scope}, {until}; its secret is shown only once",
            err=True,
        )

    options.show(lambda: {"secret": secret, **_token_values(made)}, shown, as_json)


@token.command("list")
@click.option("--owner", metavar="NAME", help="Only tokens of this owner.")
@options.storage
@options.json_output
def list_tokens(owner: str | None, storage: str, as_json: bool) -> None:
    """List the tokens of a storage, without their secrets."""
    from rich.text import Text

    from hpo.cli.output.style import new_console, new_table
    from hpo.runs.repository import open_store

    with open_store(storage) as store:
        found = store.tokens(owner)

    def shown() -> None:
        table = new_table("tokens", "id", "owner", "scope", "name", "expires", "last used", "state")
        for each in map(_token_values, found):
            table.add_row(
                str(each["id"]),
                Text(each["owner"]),
                ", ".join(each["scopes"]),
                Text(each["name"]),
                _day(each["expires_at"]) or "never",
                _day(each["last_used_at"]),
                each["state"],
            )
        new_console().print(table)

    options.show(lambda: [_token_values(each) for each in found], shown, as_json)


@token.command()
@click.argument("token_id", metavar="ID", type=click.IntRange(min=1))
@options.storage
def revoke(token_id: int, storage: str) -> None:
    """Revoke the token with the number ID, as shown by `hpo token list`; servers reject it within a second."""
    from hpo.runs.repository import open_store

    with open_store(storage) as store:
        store.revoke_token(token_id)
    click.echo(f"revoked token {token_id}")


def _token_values(made: Any) -> dict[str, Any]:
    from datetime import UTC, datetime

    ended = made.expires_at is not None and made.expires_at <= datetime.now(UTC)
    state = "revoked" if made.revoked_at else "expired" if ended else "valid"
    times = {
        name: value and value.isoformat()
        for name in ("created_at", "expires_at", "revoked_at", "last_used_at")
        for value in [getattr(made, name)]
    }
    return {
        "id": made.id,
        "name": made.name,
        "owner": made.owner,
        "scopes": sorted(made.scopes),
        **times,
        "state": state,
    }


def _day(time: str | None) -> str:
    return time[:16].replace("T", " ") if time else ""


def _is_sqlite(url: str) -> bool:
    return "://" not in url or url.startswith("sqlite")
