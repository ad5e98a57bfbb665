"""The command line: results go to stdout, progress to stderr; exit code 0: success, 1: failure, 2: bad usage or input.

Heavy imports are deferred until a command needs them, so that ``hpo --help`` responds at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from hpo.cli.commands import (
    agent,
    assistant,
    changes,
    database,
    doctor,
    evidence,
    example,
    exports,
    full_machine,
    horovod,
    imports,
    init,
    remote,
    server,
    study,
    worker,
)


class _Commands(click.Group):
    """Prints the service's own errors without a traceback, and exits with the exit code of the error."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command; if it was started from a shell, hide passwords and tokens first."""
        if args is None and any("://" in word or "--token" in word for word in sys.argv):
            from hpo.cli.own_arguments import hide_password

            hide_password()
        return super().main(args, *more, **options)

    def invoke(self, context: click.Context) -> Any:
        from hpo.errors import HpoError
        from trainers.numerics.memory import keep_freed_memory

        keep_freed_memory()
        try:
            return super().invoke(context)
        except HpoError as error:
            click.echo(f"error: {error}", err=True)
            context.exit(error.exit_code)
        except BrokenPipeError:
            sys.stderr.close()
            context.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="largebatch")
def main() -> None:
    """Tune large-batch training at small scale; forecast, plan and launch the full-scale run."""


for command in (
    example.example,
    init.init,
    study.study,
    study.run,
    study.studies,
    study.show,
    study.trials,
    study.forecast,
    study.design,
    study.report,
    changes.rename,
    changes.delete,
    server.serve,
    worker.worker,
    agent.agent,
    server.token,
    evidence.extrapolate,
    evidence.throughput,
    imports.importing,
    full_machine.plan,
    full_machine.launch,
    full_machine.record,
    full_machine.calibration,
    full_machine.machines,
    full_machine.recipes,
    remote.submit,
    remote.status,
    remote.cancel,
    changes.resume,
    remote.logs,
    assistant.mcp,
    database.db,
    exports.export,
    doctor.doctor,
    horovod.install_horovod,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
