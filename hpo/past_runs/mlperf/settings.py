"""Converts an MLPerf log's hyperparameters to :class:`TrainingSettings`.

Settings that the logs omit (label smoothing, the trust coefficient) keep this project's defaults. Step counts in a log
are converted to epochs of the data set of the run.
"""

from __future__ import annotations

from typing import Any

from hpo.errors import EvidenceError
from hpo.past_runs.mlperf.log import MLPerfLoggedRun
from search_spaces.settings import SettingError, TrainingSettings

OPTIMIZERS = {
    "lars": "lars",
    "sgdwfastlars": "lars",
    "sgd": "sgd",
    "lamb": "lamb",
    "mixedprecisionlamb": "lamb",
    "nvlamb": "lamb",
    "adam": "adam",
    "adamw": "adamw",
}

_RATES = ("base_learning_rate", "learning_rate", "lr")
"""Names of the learning rate, without the prefix of its optimizer."""


def settings_of_mlperf_run(run: MLPerfLoggedRun, *, workers: int) -> TrainingSettings:
    """Return the settings of a logged run; raise :class:`EvidenceError` if optimizer, rate or batch size is missing."""
    name = str(_needed(run, "opt_name"))
    optimizer = OPTIMIZERS.get(name.lower().replace("_", ""))
    if optimizer is None:
        raise EvidenceError(
            f"opt_name must be one of {', '.join(sorted(set(OPTIMIZERS)))}, but got {name!r}"
        )
    rate = _hyperparameter(run, *_RATES)
    if rate is None:
        raise EvidenceError(
            f"the log holds no learning rate of {name}: it needs a key such as opt_{_RATES[0]}"
        )
    found: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate": rate,
        "weight_decay": _hyperparameter(run, "weight_decay"),
        "warmup_epochs": _warmup_epochs(run),
        "normalization_batch_size": _normalization_batch_size(run, workers),
        "gradient_clip_norm": _hyperparameter(run, "max_grad_norm"),
        **_momenta(run, optimizer),
        **_decay(run),
    }
    try:
        return TrainingSettings.from_dict(
            {key: value for key, value in found.items() if value is not None}
        )
    except SettingError as error:
        raise EvidenceError(f"the logged settings are invalid: {error}") from error


def epochs_of(run: MLPerfLoggedRun, steps: float) -> float:
    """Convert updates in an MLPerf log to epochs of the run's data set."""
    return steps * float(_needed(run, "global_batch_size")) / float(_needed(run, "train_samples"))


def _needed(run: MLPerfLoggedRun, key: str) -> Any:
    if run.values.get(key) is None:
        raise EvidenceError(f"the log holds no {key}")
    return run.values[key]


def _hyperparameter(run: MLPerfLoggedRun, *names: str) -> Any:
    """Return the first of ``names`` that is logged, with any of the prefixes ``lars_opt_``, ``sgd_opt_``, ``opt_``."""
    own = str(run.values.get("opt_name", "")).lower()
    prefixes = ("lars_opt_", "lars_", "opt_") if "lars" in own else (f"{own}_opt_", "opt_")
    for name in names:
        for prefix in prefixes:
            if run.values.get(prefix + name) is not None:
                return run.values[prefix + name]
    return None


def _momenta(run: MLPerfLoggedRun, optimizer: str) -> dict[str, Any]:
    if optimizer in ("sgd", "lars"):
        return {
            "momentum": _hyperparameter(run, "momentum"),
            "momentum_form": _momentum_form(run, optimizer),
            "trust_epsilon": _hyperparameter(run, "epsilon") if optimizer == "lars" else None,
        }
    betas = _hyperparameter(run, "betas") or (None, None)
    return {"beta1": betas[0], "beta2": betas[1], "epsilon": _hyperparameter(run, "eps", "epsilon")}


def _momentum_form(run: MLPerfLoggedRun, optimizer: str) -> str | None:
    # NVIDIA's code, also used by other submitters, logs its own name for LARS and multiplies the momentum by the ratio
    # of the learning rate to the previous one
    own = {str(run.values.get(key, "")).lower() for key in ("opt_name", "s_optimizer")}
    return "corrected" if optimizer == "lars" and own & {"sgdwlars", "sgdwfastlars"} else None


def _warmup_epochs(run: MLPerfLoggedRun) -> float:
    epochs = _hyperparameter(run, "learning_rate_warmup_epochs")
    steps = _hyperparameter(run, "learning_rate_warmup_steps") or run.values.get(
        "scheduler_lr_warmup_steps"
    )
    return float(epochs) if epochs is not None else epochs_of(run, float(steps or 0))


def _decay(run: MLPerfLoggedRun) -> dict[str, Any]:
    kind = run.values.get("scheduler_type")
    if kind == "multistep":
        # after a warmup, the reference's MultiStepLRWarmup counts milestones from the next update
        warmup = int(run.values.get("scheduler_lr_warmup_steps") or 0)
        milestones = [
            epochs_of(run, step + warmup + 1 if warmup else step)
            for step in run.values.get("scheduler_milestones", ())
        ]
        return {
            "decay": "step",
            "decay_milestones": milestones,
            "decay_factor": run.values.get("scheduler_decay_rate"),
        }
    if kind == "cosine_annealing":
        return {
            "decay": "cosine",
            "decay_epochs": epochs_of(run, float(_needed(run, "scheduler_t_max"))),
        }
    steps = _hyperparameter(run, "learning_rate_decay_steps")
    if steps is None:
        return {"decay": "constant"}
    rate = float(_hyperparameter(run, *_RATES) or 0)
    end = float(_hyperparameter(run, "end_learning_rate") or 0)
    return {
        "decay": "polynomial",
        "decay_power": _hyperparameter(run, "learning_rate_decay_poly_power") or 2,
        "decay_epochs": _decay_epochs(run, float(steps)),
        "end_learning_rate_factor": min(end / rate, 1.0) if rate else 0.0,
    }


def _decay_epochs(run: MLPerfLoggedRun, steps: float) -> float:
    # Submitters counted either from the first update or from the end of the warmup. The count is taken to be from the
    # first update if the schedule then lasts at least as long as the run.
    epochs = epochs_of(run, steps)
    return epochs if epochs >= run.epochs else epochs + _warmup_epochs(run)


def _normalization_batch_size(run: MLPerfLoggedRun, workers: int) -> int | None:
    span = run.whole("model_bn_span")
    if span is not None:
        return span
    accumulation = run.whole("gradient_accumulation_frequency", "gradient_accumulation_steps") or 1
    micro_batch = int(_needed(run, "global_batch_size")) // (workers * accumulation)
    return max(1, micro_batch * (run.whole("batchnorm_group_size") or 1))
