"""The set-up of a job (its prolog): modules to load, a container, and a command prefix for each rank."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hpo.errors import PlanError
from hpo.planning.plan import Plan

DETAIL, OLD_DETAIL = "job_setup", "surroundings"
"""The key of the set-up in a plan's details, and the key that earlier releases used instead."""
_MODULE = re.compile(r"[A-Za-z0-9][\w.+/-]*")


@dataclass(frozen=True)
class JobSetup:
    """A job's set-up: ``modules`` to load, in order; ``container``, an Apptainer image; ``prefix``, command words.

    Raises :class:`PlanError` for an invalid module or image name.
    """

    modules: tuple[str, ...] = ()
    container: str = ""
    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for module in self.modules:
            if not _MODULE.fullmatch(module):
                raise PlanError(
                    f"a module must be a name for `module load`, such as cuda/12.4, but got "
                    f"{module!r}"
                )
        if self.container.startswith("-") or not self.container.isprintable():
            raise PlanError(
                f"a container must be the path or the URL of an image, but got {self.container!r}"
            )

    @classmethod
    def of(cls, modules: Sequence[str], container: str | None, prefix: str | None) -> JobSetup:
        """Return the set-up given by command-line options; ``prefix`` is split as a shell would split it."""
        try:
            words = shlex.split(prefix or "")
        except ValueError as error:
            raise PlanError(
                f"a prefix must be valid shell words, but got {prefix!r}: {error}"
            ) from None
        return cls(tuple(modules), container or "", tuple(words))

    @classmethod
    def of_plan(cls, plan: Plan) -> JobSetup:
        """Return the set-up of a plan, which is empty if the plan has none."""
        details = plan.details or {}
        kept = details.get(DETAIL) or details.get(OLD_DETAIL) or {}
        return cls(
            tuple(kept.get("modules", ())), kept.get("container", ""), tuple(kept.get("prefix", ()))
        )

    def put_into(self, plan: Plan) -> Plan:
        """Return the plan with this set-up in its script."""
        if self == JobSetup():
            return plan
        return dataclasses.replace(
            plan, details={**(plan.details or {}), DETAIL: dataclasses.asdict(self)}
        )

    def lines(self, *, gpus: bool) -> str:
        """Return the part of the script that loads the modules and defines ``inside``, the command prefix of a rank."""
        prefix = " ".join(map(shlex.quote, self.prefix))
        image = shlex.quote(self.container) if self.container else ""
        return f"""\
modules=${{HPO_MODULES:-{" ".join(self.modules)}}}  # YOURS: module names at your site, such as python cuda nccl
for each in $modules; do
  module load "$each" || exit 1
done
container=${{HPO_CONTAINER:-{image}}}  # YOURS: the Apptainer image in which ranks run
inside=({prefix})  # the prefix of every rank's command
if [[ -n $container ]]; then
  inside+=(apptainer exec {"--nv " if gpus else ""}--bind "$PWD" "$container")
fi"""
