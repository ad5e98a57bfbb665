"""TrainingSettings: one complete large-batch recipe, with the unit and the range of every setting.

The global batch size is not a setting: it is the axis along which settings are extrapolated, and is therefore kept
separately (a trial is one ``TrainingSettings`` together with a ``global_batch_size`` and a ``seed``).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from search_spaces.own_settings import (
    OwnSetting,
    Range,
    Scalar,
    SettingError,
    check_own_choice,
    check_own_flag,
    check_own_number,
    faults_of_own,
    is_finite_number,
)
from search_spaces.plugins import PluginError
from search_spaces.techniques import TECHNIQUES, Technique, own_settings_of
from search_spaces.techniques.parametrizations import MODEL_SIZES

__all__ = [
    "Range",
    "SettingError",
    "TrainingSettings",
    "check_name",
    "check_value",
    "choices_of",
    "default_of",
    "faults_together",
    "is_whole",
    "names",
    "range_of",
]


def _number(
    what: str,
    default: Any,
    unit: str,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> Any:
    bounds = Range(low, high, low_open=open_low, high_open=open_high or math.isinf(high))
    return field(default=default, metadata={"what": what, "unit": unit, "range": bounds})


def _choice(what: str, default: str | None, *choices: str) -> Any:
    return field(default=default, metadata={"what": what, "choices": choices})


def _technique(what: str, default: str) -> Any:
    """Return the field of a setting that chooses a technique; ``TECHNIQUES`` maps its name to the registry."""
    return field(default=default, metadata={"what": what, "technique": True})


def _flag(what: str, default: bool | None) -> Any:
    return field(default=default, metadata={"what": what})


def _list(what: str, unit: str) -> Any:
    return field(default=(), metadata={"what": what, "list": unit})


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """One complete recipe; a value outside its range raises :class:`SettingError` on creation.

    ``learning_rate`` is the peak rate, reached at the end of the warmup. All durations are in epochs (samples
    processed divided by the data-set size), so that they mean the same at any batch size.
    """

    # the optimizer
    optimizer: str = _technique("the update rule for the weights", "sgd")
    learning_rate: float = _number(
        "peak learning rate, reached at the end of the warmup", 0.1, "per update", 0, open_low=True
    )
    momentum: float = _number(
        "decay per update of the momentum buffer", 0.9, "1", 0, 1, open_high=True
    )
    momentum_form: str | None = _choice(
        "where the learning rate enters momentum (corrected: as in timm); null: inside for lars, else outside",
        None,
        "outside",
        "inside",
        "corrected",
    )
    nesterov: bool = _flag("Nesterov momentum instead of heavy-ball", False)
    beta1: float = _number(
        "decay per update of the running average of the gradient", 0.9, "1", 0, 1, open_high=True
    )
    beta2: float = _number(
        "decay per update of the running average of the squared gradient (or of Shampoo's factors)",
        0.999,
        "1",
        0,
        1,
        open_high=True,
    )
    epsilon: float = _number(
        "added to the square root of the second moment; in Shampoo, the relative ridge",
        1e-8,
        "1",
        0,
        open_low=True,
    )
    bias_correction: bool = _flag(
        "divide the moments by 1 - beta^updates, because they start at 0", True
    )
    weight_decay: float = _number(
        "multiple of the weights added to their gradient or, if decoupled, to their update",
        1e-4,
        "1",
        0,
    )
    decay_norm_and_bias: bool = _flag(
        "apply weight decay to biases and normalization parameters too", False
    )
    decay_bias: bool | None = _flag(
        "apply weight decay to biases too; null: same as decay_norm_and_bias", None
    )
    gradient_clip_norm: float | None = _number(
        "scale gradients down to this norm, once per update; null: no clipping",
        None,
        "global gradient norm",
        0,
        open_low=True,
    )

    # layer-wise adaptation: lars, larc, lamb
    trust_coefficient: float = _number(
        "multiple of ||w|| / ||g|| that gives a layer's learning rate", 0.001, "1", 0, open_low=True
    )
    trust_epsilon: float = _number("added to the denominator of the trust ratio", 0.0, "norm", 0)
    adapt_norm_and_bias: bool = _flag(
        "apply layer-wise adaptation to biases and normalization parameters too", False
    )
    weight_norm_limit: float | None = _number(
        "upper limit on ||w|| in LAMB's trust ratio; null: no limit", None, "norm", 0, open_low=True
    )
    larc_mode: str = _choice(
        "cap a layer's own rate at the learning rate (clip), or multiply the two (scale)",
        "clip",
        "clip",
        "scale",
    )
    larc_optimizer: str = _choice(
        "the optimizer that receives the gradients scaled by LARC", "sgd", "sgd", "adam"
    )

    # rmsprop_warmup and shampoo
    rmsprop_learning_rate: float = _number(
        "learning rate of the RMSprop part of the update", 3e-4, "per update", 0, open_low=True
    )
    rmsprop_center_epochs: float = _number(
        "when RMSprop and SGD contribute equally", 10.0, "epochs", 0
    )
    rmsprop_period_epochs: float = _number(
        "length of the transition; half of it after the center, only SGD remains",
        5.0,
        "epochs",
        0,
        open_low=True,
    )
    preconditioner_interval: int = _number(
        "updates between recomputations of Shampoo's roots or SOAP's eigenbasis", 10, "updates", 1
    )
    preconditioner_size_limit: int = _number(
        "largest dimension that is preconditioned", 1024, "rows or columns", 1
    )

    # the learning rate over time
    warmup_shape: str = _technique("how the learning rate rises to its peak", "gradual")
    warmup_epochs: float = _number("length of the warmup", 0.0, "epochs", 0)
    warmup_start_factor: float = _number(
        "learning rate at which the warmup starts", 0.0, "of the peak", 0, 1
    )
    decay: str = _technique("how the learning rate falls after the warmup", "constant")
    decay_epochs: float | None = _number(
        "when the decay ends; null: at the end of the budget",
        None,
        "epochs",
        0,
        open_low=True,
    )
    decay_power: float = _number("exponent of the polynomial decay", 2.0, "1", 0, open_low=True)
    decay_milestones: tuple[float, ...] = _list("when the learning rate changes in steps", "epochs")
    decay_factor: float = _number(
        "factor applied to the learning rate at each milestone", 0.1, "1", 0, 1, open_low=True
    )
    decay_values: tuple[float, ...] = _list(
        "learning rate before the first milestone, then after each one", "multiples of the peak"
    )
    end_learning_rate_factor: float = _number(
        "learning rate at the end of the decay", 0.0, "of the peak", 0, 1
    )

    # the batch size over time
    batch_control: str = _technique(
        "how the batch size changes during training",
        "constant",
    )
    batch_milestones: tuple[float, ...] = _list("when the batch size changes", "epochs")
    batch_factors: tuple[float, ...] = _list(
        "the batch size from each milestone on", "multiples of the first batch size"
    )
    batch_limit_factor: float | None = _number(
        "batch size at which growth ends and the learning rate falls instead; null: no limit",
        None,
        "of the first batch size",
        1,
    )
    batch_rate_rule: str = _choice(
        "how the learning rate follows the batch size", "none", "none", "linear", "sqrt"
    )
    adascale_batch_size: int | None = _number(
        "base batch size of AdaScale, whose gain scales the learning rate; null: no AdaScale",
        None,
        "samples",
        1,
    )

    # loss, normalization, precision
    label_smoothing: float = _number(
        "fraction of the label that is spread over all classes", 0.0, "1", 0, 1, open_high=True
    )
    class_weighting: str = _choice(
        "power of the class frequency that weights a pixel's loss (segmentation)",
        "none",
        "none",
        "inverse_sqrt",
        "inverse_eighth_root",
    )
    zero_gamma: bool | None = _flag(
        "start the last gamma of each residual branch at 0; null: use the model's default", None
    )
    normalization_batch_size: int = _number(
        "samples that share batch-norm statistics", 16, "samples", 1
    )
    normalization_momentum: float = _number(
        "decay of batch norm's running statistics per group of samples",
        0.9,
        "1",
        0,
        1,
        open_high=True,
    )
    precision: str = _choice(
        "data type of matrix products; tf32: fp32 with the GPU's TF32 matrix products",
        "fp32",
        "fp32",
        "tf32",
        "bf16",
        "fp16",
    )
    reduced_weights: bool = _flag(
        "keep weights in the reduced precision, with fp32 master weights in the optimizer", False
    )
    loss_scaling: str = _choice(
        "scale the loss up and its gradient back down, so that small gradients survive in fp16",
        "none",
        "none",
        "static",
        "dynamic",
    )
    loss_scale: float = _number(
        "the loss scale, or its first value if it is dynamic", 65536.0, "1", 0, open_low=True
    )
    loss_scale_growth_updates: int = _number(
        "updates without an overflow after which a dynamic scale doubles", 2000, "updates", 1
    )

    # how the workers' gradients become an update
    gradient_lag: int = _number("age of the gradient that an update uses", 0, "updates", 0, 1)
    gradient_compression: str = _choice(
        "data type for sending gradients between workers; none: unchanged",
        "none",
        "none",
        "fp16",
        "bf16",
    )
    gradient_reduction: str = _choice(
        "how the workers' gradients are combined: their mean, or Adasum", "mean", "mean", "adasum"
    )
    update_mode: str = _choice(
        "updates by all workers together, or a parameter server with or without a staleness bound",
        "synchronous",
        "synchronous",
        "asynchronous",
        "stale_synchronous",
    )
    asynchronous_workers: int = _number("replicas that share the parameter server", 4, "workers", 1)
    staleness_bound: int = _number(
        "updates by which a replica may be ahead of the slowest one", 3, "updates", 0
    )
    epoch_quorum: float = _number(
        "fraction of replicas that must finish an epoch before it ends for all of them",
        0.75,
        "of the workers",
        0,
        1,
        open_low=True,
    )

    # custom settings by name, which only the workload or the chosen technique reads
    own: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", dict(self.own))
        for name in names():
            check_value(name, getattr(self, name))
        described = self.own_settings
        for name, value in self.own.items():
            for fault in faults_of_own(name, value):
                raise SettingError(fault)
            if name in names():
                raise SettingError(f"{name} is a known setting and cannot be your own setting")
            if name in described:
                described[name].check(name, value)
        for fault in faults_together(self):
            raise SettingError(fault)

    @property
    def own_settings(self) -> dict[str, OwnSetting]:
        """The settings, by name, that the chosen optimizer and schedules read in addition to the known settings."""
        return own_settings_of(lambda setting: (getattr(self, setting),))

    @property
    def scale(self) -> dict[str, int]:
        """The model's ``width`` and ``depth`` where a ladder sets them; empty if the model grows in neither."""
        return {
            name: int(size)
            for name, size in self.own.items()
            if name in MODEL_SIZES and isinstance(size, (int, float))
        }

    @property
    def of_workload(self) -> dict[str, Scalar]:
        """The part of ``own`` for the workload: all settings but those that the chosen optimizer and schedules read."""
        described = self.own_settings
        return {name: value for name, value in self.own.items() if name not in described}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingSettings:
        """Create settings from plain values; an unknown name raises :class:`SettingError` with the closest known one.

        Custom settings are grouped under ``own``.
        """
        for name in values:
            if name != "own":
                check_name(name)
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> TrainingSettings:
        """Create settings from the values of a stored trial, which holds custom settings alongside known settings.

        Custom settings may also be grouped under ``own``, as :meth:`to_dict` returns them.
        """
        flat = {**values, **values.get("own", {})}
        flat.pop("own", None)
        known = {name: value for name, value in flat.items() if name in names()}
        own = {name: value for name, value in flat.items() if name not in known}
        return cls.from_dict({**known, "own": own})

    def to_dict(self) -> dict[str, Any]:
        """Return every setting by name, as plain values for JSON, with ``own`` only if there are custom settings."""
        known = {name: getattr(self, name) for name in names()}
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in known.items()
        }
        return plain | ({"own": dict(self.own)} if self.own else {})

    def to_record(self) -> dict[str, Any]:
        """Return every setting by name, in the form that trials store and :meth:`from_record` reads."""
        return {
            **{name: value for name, value in self.to_dict().items() if name != "own"},
            **self.own,
        }

    def value(self, name: str) -> Any:
        """Return the value of a known or custom setting; raise :class:`SettingError` for any other name.

        A setting that a chosen technique reads has its default value if none was given.
        """
        if name in self.own:
            return self.own[name]
        if name not in names():
            described = self.own_settings
            if name in described:
                return described[name].default
        check_name(name)
        return getattr(self, name)

    def replace(self, **changes: Any) -> TrainingSettings:
        """Return a copy with the named values changed, custom settings included; the copy is validated."""
        own = {**self.own, **changes.pop("own", {})}
        described = {
            name: changes.pop(name)
            for name in [*changes]
            if name not in names() and (name in own or name in _described(changes, self))
        }
        return type(self).from_dict({**self.to_dict(), **changes, "own": {**own, **described}})


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all known settings, in display order."""
    return tuple(knob.name for knob in dataclasses.fields(TrainingSettings) if knob.name != "own")


def check_name(name: str) -> None:
    """Raise :class:`SettingError`, with the closest known name, unless ``name`` is a setting."""
    if name not in names():
        near = difflib.get_close_matches(str(name), names(), n=1)
        hint = (
            f"; did you mean {near[0]!r}?" if near else f"; the settings are {', '.join(names())}"
        )
        raise SettingError(f"there is no setting {name!r}{hint}")


def check_value(name: str, value: Any) -> None:
    """Raise :class:`SettingError` unless ``value``, on its own, is allowed for the setting ``name``."""
    check_name(name)
    _check(TrainingSettings.__dataclass_fields__[name], value)


def _described(changes: Mapping[str, Any], settings: TrainingSettings) -> Iterable[str]:
    return own_settings_of(lambda setting: (changes.get(setting, getattr(settings, setting)),))


def default_of(name: str) -> Any:
    """Return the default value of a setting."""
    check_name(name)
    return TrainingSettings.__dataclass_fields__[name].default


def range_of(name: str) -> Range | None:
    """Return the range of a numeric setting; None for a setting that is not a number."""
    check_name(name)
    bounds: Range | None = TrainingSettings.__dataclass_fields__[name].metadata.get("range")
    return bounds


def is_whole(name: str) -> bool:
    """Return whether a setting takes only whole numbers."""
    check_name(name)
    return _kinds()[name] in (int, int | None)


def choices_of(name: str) -> Collection[str] | None:
    """Return the choices of a setting, including those of plug-ins; None for a setting that is not a choice."""
    check_name(name)
    return TECHNIQUES.get(name) or TrainingSettings.__dataclass_fields__[name].metadata.get(
        "choices"
    )


@functools.cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(TrainingSettings)


def _check(knob: dataclasses.Field[Any], value: Any) -> None:
    kind = _kinds()[knob.name]
    if value is None and knob.default is None:
        return
    if "technique" in knob.metadata:
        _check_technique(knob.name, value)
    elif "choices" in knob.metadata:
        check_own_choice(knob.name, knob.metadata["choices"], value)
    elif kind in (bool, bool | None):
        check_own_flag(knob.name, value)
    elif "range" in knob.metadata:
        whole = kind in (int, int | None)
        check_own_number(
            knob.name, knob.metadata["range"], knob.metadata["unit"], value, whole=whole
        )
    else:
        _check_list(knob, value)


def _check_technique(setting: str, name: Any) -> None:
    registry = TECHNIQUES[setting]
    if not isinstance(name, str) or name not in registry:
        check_own_choice(setting, registry, name, registry.explain(name))
    try:
        described: Technique = registry[name]
    except PluginError as error:
        raise SettingError(f"{setting} {name!r} cannot be used: {error}") from error
    for known in described.settings.keys() & set(names()):
        raise SettingError(
            f"{setting} {name!r} cannot be used: its own setting {known} has the name of a "
            f"known setting"
        )


def _check_list(knob: dataclasses.Field[Any], value: Any) -> None:
    unit = knob.metadata["list"]
    if not isinstance(value, tuple):
        raise SettingError(f"{knob.name} must be a list of {unit}, but got {value!r}")
    for entry in value:
        if not is_finite_number(entry) or entry <= 0:
            raise SettingError(f"{knob.name} must hold numbers above 0 ({unit}), but got {entry!r}")


def faults_together(settings: TrainingSettings) -> Iterator[str]:
    """Yield an error message for each invalid combination of values that are valid on their own."""
    if settings.nesterov and settings.momentum == 0:
        yield "nesterov needs a momentum above 0, but got momentum 0"
    for name in ("decay_milestones", "batch_milestones"):
        milestones = getattr(settings, name)
        if list(milestones) != sorted(set(milestones)):
            yield f"{name} must increase, but got {milestones}"
    for setting, registry in TECHNIQUES.items():
        faults = registry[getattr(settings, setting)].faults
        if faults is not None:
            yield from faults(settings)
    end, warmup = settings.decay_epochs, settings.warmup_epochs
    if TECHNIQUES["decay"][settings.decay].ends and end is not None and end <= warmup:
        yield (
            f"decay_epochs must exceed warmup_epochs, but got decay_epochs {end:g} and "
            f"warmup_epochs {warmup:g}"
        )
    if settings.adascale_batch_size is not None and settings.batch_control != "constant":
        yield (
            "AdaScale (adascale_batch_size) sets the rate by itself and needs batch_control 'constant', but got "
            f"{settings.batch_control!r}"
        )
    yield from _faults_of_precision(settings)
    yield from _faults_of_update_mode(settings)


def _faults_of_precision(settings: TrainingSettings) -> Iterator[str]:
    if settings.reduced_weights and settings.precision not in ("bf16", "fp16"):
        yield (
            "reduced_weights needs a precision of bf16 or fp16, but got precision "
            f"{settings.precision!r}"
        )


def _faults_of_update_mode(settings: TrainingSettings) -> Iterator[str]:
    if settings.update_mode == "synchronous":
        return
    for name, plain in (
        ("gradient_lag", 0),
        ("gradient_reduction", "mean"),
        ("adascale_batch_size", None),
        ("batch_control", "constant"),
    ):
        if getattr(settings, name) != plain:
            yield (
                f"update_mode {settings.update_mode!r} needs {name} {plain!r}, but got "
                f"{getattr(settings, name)!r}"
            )
