"""``hydra/sweeper=largebatch``: a multirun of a Hydra application is a study.

The application runs as the program of a study, and each trial is a separate run with the overrides that the search
chose. It reports its evaluations by ``hpo.report``; trials that fall behind are stopped, the ladder is extrapolated to
the full scale, and the plan's script starts the same application. Repeating the multirun continues the study.

Annotations in this file are not postponed: Hydra executes it before it is in ``sys.modules``, where dataclasses would
look them up.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)

RESULTS = "optimization_results.yaml"
"""The file of results in the multirun's folder, named as in Hydra's other sweepers."""


@dataclass
class SweeperConfig:
    """The options under ``hydra.sweeper``.

    ``study`` has the keys of a study file except ``workload``, ``program`` and swept settings: ``name``, ``target``,
    ``ladder``, ``full_scale``, ``budget`` and others, with the application's ``train_samples`` and ``metrics`` (true if
    higher is better). ``params`` are sweeps that need not be given on the command line, ``batch`` and ``seed`` the keys
    that take the batch size and the seed; ``names`` maps keys to settings if their last parts differ. ``plan`` writes
    the plan and its script for ``full_scale`` into the folder of the multirun.
    """

    _target_: str = "hydra_plugins.largebatch_sweeper.sweeper.LargebatchSweeper"
    study: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    batch: str = "batch_size"
    seed: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    storage: str = "sqlite:///hpo.db"
    plan: bool = False


class LargebatchSweeper(Sweeper):
    """Runs a multirun as a study; see :class:`SweeperConfig`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._config: DictConfig | None = None

    def setup(
        self,
        *,
        hydra_context: HydraContext,  # noqa: ARG002
        task_function: TaskFunction,  # noqa: ARG002
        config: DictConfig,
    ) -> None:
        """Store the configuration; trials are separate processes and need nothing else from this one."""
        self._config = config

    def sweep(self, arguments: list[str]) -> Any:
        """Train, forecast and, on request, plan; return the contents of ``optimization_results.yaml``."""
        import hpo
        from hpo.planning.launchers.launch import write_plan
        from hydra_plugins.largebatch_sweeper.study_file import best_overrides, make_study

        assert self._config is not None, "Hydra calls setup first"
        options = {name: _container(value) for name, value in self._options.items()}
        values = make_study(
            options["study"],
            options["params"],
            arguments,
            _program(),
            batch=options["batch"],
            seed=options["seed"],
            names=options["names"],
        )
        folder = Path.cwd()
        try:
            spec = hpo.parse_study(_yaml(values), folder=folder)
            result = hpo.run_study(spec, options["storage"], folder=folder)
        except hpo.HpoError as error:
            raise HydraException(str(error)) from error
        out = Path(str(self._config.hydra.sweep.dir))
        out.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {"name": "largebatch", "study": spec.name}
        made = result.forecast
        if made is not None:
            found["forecast"] = made.numbers.to_dict()
            found["best_overrides"] = best_overrides(
                made.settings.to_record(), values["program"]["command"], made.global_batch_size
            )
            log.info("recommended: %s", " ".join(found["best_overrides"]))
        if options["plan"] and result.plan is not None:
            write_plan(result.plan.plan, out / "plan")
            found["plan"] = str(out / "plan")
        (out / RESULTS).write_text(_yaml(found), encoding="utf-8")
        log.info("%s trials; %s", len(result.trials), out / RESULTS)
        return found


def _program() -> Sequence[str]:
    """Return the words of the command that starts this application."""
    return sys.executable, str(Path(sys.argv[0]).absolute())


def _container(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _yaml(values: Any) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(values))


ConfigStore.instance().store(
    group="hydra/sweeper", name="largebatch", node=SweeperConfig, provider="largebatch"
)
