"""SearchSpace: which settings are fixed, and which are tuned and over what domain.

In a study file, a plain value fixes a setting, and a domain like those below tunes it: with ``role: scaled`` at
every rung, with ``role: shared`` (the default) once for all rungs::

    learning_rate: {log_uniform: [0.01, 1.28], role: scaled}
    momentum: {uniform: [0.8, 0.98]}
    normalization_batch_size: {choice: [8, 16]}      # also int_uniform, log_int_uniform

Custom settings of a workload are written in the same way.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from search_spaces import settings as _settings
from search_spaces.domains import Categorical, Domain, Float, Int, Role
from search_spaces.names import nearest_or_all
from search_spaces.own_settings import OwnSetting, Scalar, faults_of_own
from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.techniques import (
    fault_of_replaced,
    fault_of_use,
    own_setting_named,
    own_settings_of,
    uses_of,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_RANGES: dict[str, tuple[type[Float] | type[Int], bool]] = {
    "uniform": (Float, False),
    "log_uniform": (Float, True),
    "int_uniform": (Int, False),
    "log_int_uniform": (Int, True),
}
_KINDS = (*_RANGES, "choice")
_MAX_CORNERS = 4096


class SearchSpaceError(SettingError):
    """Error for an invalid search space; ``faults`` pairs each message with a setting (None for the whole space)."""

    def __init__(self, faults: Sequence[tuple[str | None, str]]) -> None:
        super().__init__("\n".join(message for _, message in faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,)


@dataclass(frozen=True)
class SearchSpace:
    """A search space: ``fixed`` values and tuned ``domains`` by setting; all other settings keep their defaults.

    On creation, the space is checked against :class:`TrainingSettings`: every name must exist; every value, every end
    of a domain and every combination of ends must be allowed; and every named setting must affect some of the trials.
    One :class:`SearchSpaceError` reports all errors. ``own`` holds the names of the settings that the workload reads in
    addition to the known settings; it is None if only the workload itself knows them.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    own: InitVar[Collection[str] | None] = ()

    def __post_init__(self, own: Collection[str] | None) -> None:
        object.__setattr__(self, "fixed", dict(self.fixed))
        object.__setattr__(self, "domains", dict(self.domains))
        faults = [*_faults_of_each(self.fixed, self.domains, own)] or [
            *_faults_of_use(self),
            *_faults_of_corners(self),
        ]
        if faults:
            raise SearchSpaceError(faults)

    @classmethod
    def parse(
        cls,
        search: Mapping[str, Any],
        inherited: Mapping[str, Any] | None = None,
        own: Collection[str] | None = (),
    ) -> SearchSpace:
        """Parse the ``search:`` section of a study file, in the form that the docstring of this module shows.

        ``inherited`` holds fixed values for settings that the section does not name; settings that have no effect on
        any of its trials are left out. ``own`` is as in :class:`SearchSpace`.
        """
        fixed: dict[str, Any] = {}
        domains: dict[str, Domain] = {}
        faults: list[tuple[str | None, str]] = []
        named = partial(_named_values, search)
        for name, value in search.items():
            try:
                _check_name(name, own, named)
                if isinstance(value, Mapping):
                    domains[name] = _parse_domain(value)
                else:
                    fixed[name] = _plain_value(value)
            except SettingError as error:
                faults.append((name, _named(name, error)))
        if faults:
            raise SearchSpaceError([*faults, *_faults_of_each(fixed, domains, own)])
        together = {
            name: _plain_value(value)
            for name, value in (inherited or {}).items()
            if name not in search
        }
        possible = partial(_possible, {**together, **fixed}, domains)
        return cls(
            {
                name: value
                for name, value in {**together, **fixed}.items()
                if name in search
                or (fault_of_use(name, possible) or fault_of_replaced(name, possible)) is None
            },
            domains,
            own,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the ``search:`` section that :meth:`parse` reads back into an equal search space."""
        fixed = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.fixed.items()
        }
        return fixed | {name: _plain_domain(domain) for name, domain in self.domains.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The tuned settings, in the given order; they are the axes of the unit cube."""
        return tuple(self.domains)

    @property
    def scaled(self) -> tuple[str, ...]:
        """The settings tuned at every rung and extrapolated by a law."""
        return tuple(name for name, domain in self.domains.items() if domain.role is Role.SCALED)

    @property
    def shared(self) -> tuple[str, ...]:
        """The settings tuned once over all rungs."""
        return tuple(name for name, domain in self.domains.items() if domain.role is Role.SHARED)

    def possible(self, name: str) -> tuple[Any, ...]:
        """Return a setting's possible values: its fixed value, its choices, the ends of its domain, or its default."""
        return _possible(self.fixed, self.domains, name)

    def faults_of_new(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that a new study must not have, with the reason.

        A search space with such settings can be created, because studies that were stored earlier may have them.
        """
        yield from _faults_of_use(self, fault_of_replaced)
        if "noise_scale" in self.possible("batch_control"):
            for reduction in self.possible("gradient_reduction"):
                if reduction != "mean":
                    yield (
                        "gradient_reduction",
                        "batch_control 'noise_scale' measures the noise of averaged gradients and needs "
                        f"gradient_reduction 'mean', but got {reduction!r}; change one of the two",
                    )

    def settings(self, values: Mapping[str, Any]) -> TrainingSettings:
        """Return complete settings: the fixed values, and ``values`` for the tuned settings.

        Values may lie outside their domain, as extrapolated values do, but not outside what
        :class:`TrainingSettings` allows. A missing or surplus name raises :class:`SettingError`.
        """
        for name in values:
            if name not in self.domains:
                if name not in self.fixed:
                    _settings.check_name(name)
                raise SettingError(
                    f"only tuned settings can be given a value, but got {name!r}; {self._listing()}"
                )
        missing = [name for name in self.domains if name not in values]
        if missing:
            raise SettingError(
                f"every tuned setting needs a value, but got none for {', '.join(missing)}"
            )
        return TrainingSettings.from_record({**self.fixed, **values})

    @property
    def own_names(self) -> tuple[str, ...]:
        """The workload's own settings, fixed and tuned, in the given order."""
        described = own_settings_of(self.possible)
        return tuple(
            name
            for name in (*self.fixed, *self.domains)
            if not _is_known(name) and name not in described
        )

    def to_optuna(self, names: Iterable[str] | None = None) -> dict[str, BaseDistribution]:
        """Return the Optuna distributions of the tuned settings (of all, or of ``names``)."""
        return {name: self._domain(name).to_optuna() for name in self._axes(names)}

    def to_unit(
        self, values: Mapping[str, Any], names: Iterable[str] | None = None
    ) -> tuple[float, ...]:
        """Return the point of ``values`` in the unit cube; its axes are ``names``, or all tuned settings."""
        return tuple(self._domain(name).to_unit(values[name]) for name in self._axes(names))

    def from_unit(
        self, point: Sequence[float], names: Iterable[str] | None = None
    ) -> dict[str, Scalar]:
        """Return the values at a point of the unit cube; its axes are ``names``, or all tuned settings."""
        axes = self._axes(names)
        if len(point) != len(axes):
            raise SettingError(
                f"a point must have {len(axes)} coordinates ({', '.join(axes)}), "
                f"but got {len(point)}"
            )
        return {
            name: self._domain(name).from_unit(float(unit))
            for name, unit in zip(axes, point, strict=True)
        }

    def _axes(self, names: Iterable[str] | None) -> tuple[str, ...]:
        return self.names if names is None else tuple(names)

    def _domain(self, name: str) -> Domain:
        if name not in self.domains:
            if name not in self.fixed:
                _settings.check_name(name)
            raise SettingError(f"{name} is not tuned; {self._listing()}")
        return self.domains[name]

    def _listing(self) -> str:
        return f"tuned settings: {', '.join(self.domains) or 'none'}"


def _plain_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parse_domain(plain: Mapping[str, Any]) -> Domain:
    for key in plain:
        if key not in (*_KINDS, "role"):
            near = difflib.get_close_matches(str(key), (*_KINDS, "role"), n=1)
            hint = (
                f"; did you mean {near[0]!r}?"
                if near
                else f"; a domain has {', '.join(_KINDS)}, and role"
            )
            raise SettingError(f"unknown key {key!r}{hint}")
    kinds = [key for key in plain if key != "role"]
    if len(kinds) != 1:
        raise SettingError(
            f"a domain must have exactly one of {', '.join(_KINDS)}, but got "
            f"{', '.join(kinds) or 'none'}"
        )
    kind, role, ends = kinds[0], _parse_role(plain.get("role", Role.SHARED)), plain[kinds[0]]
    if kind == "choice":
        return Categorical(ends, role)
    if not isinstance(ends, (list, tuple)) or len(ends) != 2:
        raise SettingError(f"{kind} must be a list of two numbers, [low, high], but got {ends!r}")
    build, log = _RANGES[kind]
    return build(ends[0], ends[1], log=log, role=role)


def _parse_role(text: Any) -> Role:
    roles = [str(role) for role in Role]
    if text not in roles:
        near = difflib.get_close_matches(str(text), roles, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingError(f"role must be scaled or shared, but got {text!r}{hint}")
    return Role(text)


def _plain_domain(domain: Domain) -> dict[str, Any]:
    role = str(domain.role)
    if isinstance(domain, Categorical):
        return {"choice": list(domain.values), "role": role}
    kind = next(
        kind for kind, (build, log) in _RANGES.items() if (build, log) == (type(domain), domain.log)
    )
    return {kind: [domain.low, domain.high], "role": role}


def _is_known(name: str) -> bool:
    return name in _settings.names()


def _check_name(
    name: str, own: Collection[str] | None, possible: Callable[[str], Collection[Any]]
) -> None:
    """Raise :class:`SettingError` unless ``name`` is known, or is a setting that a technique or the workload reads."""
    if _is_known(name) or (own is None and not any(faults_of_own(name, None))):
        return
    described = own_settings_of(possible)
    if name in described:
        return
    fault = fault_of_use(name, possible) if uses_of(name) else None
    if fault is not None:
        raise SettingError(f"{name} {fault}; choose one of these, or leave {name} out")
    others = (*(own or ()), *described)
    if not others:
        _settings.check_name(name)
    elif name not in others:
        raise SettingError(
            f"there is no setting {name!r}, and the workload has none with that name"
            f"{nearest_or_all(str(name), (*others, *_settings.names()))}"
        )


def _check_value(name: str, value: Any, described: Mapping[str, OwnSetting]) -> None:
    if _is_known(name):
        _settings.check_value(name, value)
        return
    for fault in faults_of_own(name, value):
        raise SettingError(fault)
    if name in described:
        described[name].check(name, value)


def _faults_of_each(
    fixed: Mapping[str, Any],
    domains: Mapping[str, Domain],
    own: Collection[str] | None,
) -> Iterator[tuple[str | None, str]]:
    possible = partial(_possible, fixed, domains)
    described = own_settings_of(possible)
    for name in [*fixed, *domains]:
        try:
            _check_name(name, own, possible)
            if name in domains:
                _check_domain(name, domains[name], described)
            if name in fixed:
                _check_value(name, fixed[name], described)
        except SettingError as error:
            yield name, _named(name, error)
    for name in fixed.keys() & domains.keys():
        yield name, f"{name} must be fixed or tuned, but got both"


def _check_domain(name: str, domain: Domain, described: Mapping[str, OwnSetting]) -> None:
    known, its = _is_known(name), described.get(name)
    whole = _settings.is_whole(name) if known else its is not None and its.whole
    if isinstance(domain, Float) and whole:
        raise SettingError(f"{name} is a whole number; use int_uniform, log_int_uniform or choice")
    is_number = (
        _settings.range_of(name) is not None if known else its is None or its.range is not None
    )
    if isinstance(domain, (Float, Int)) and not is_number:
        raise SettingError(f"{name} is not a number; use choice")
    for value in _ends(domain):
        _check_value(name, value, described)


def _named_values(search: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Return the values that an unchecked ``search:`` section gives to a setting that chooses a technique."""
    value = search.get(name, _settings.default_of(name))
    if isinstance(value, Mapping):
        choices = value.get("choice", ())
        return tuple(choices) if isinstance(choices, (list, tuple)) else ()
    return (value,)


def _possible(
    fixed: Mapping[str, Any], domains: Mapping[str, Domain], name: str
) -> tuple[Any, ...]:
    if name in domains:
        return _ends(domains[name])
    if name in fixed:
        return (fixed[name],)
    described = None if _is_known(name) else own_setting_named(name)
    return (_settings.default_of(name) if described is None else described.default,)


def _faults_of_use(
    space: SearchSpace,
    fault_of: Callable[[str, Callable[[str], Collection[Any]]], str | None] = fault_of_use,
) -> Iterator[tuple[str, str]]:
    # a setting fixed to null needs no effect
    for name in (
        *space.domains,
        *(name for name, value in space.fixed.items() if value is not None),
    ):
        fault = fault_of(name, space.possible)
        if fault is not None:
            given = "tuned" if name in space.domains else "fixed"
            yield name, f"{name} is {given}, but {fault}; choose one of these, or leave {name} out"


def _faults_of_corners(space: SearchSpace) -> Iterator[tuple[str | None, str]]:
    # rules that relate settings (decay_epochs > warmup_epochs) are tightest at the ends of the domains
    corners = itertools.product(*(_ends(domain) for domain in space.domains.values()))
    for corner in itertools.islice(corners, _MAX_CORNERS):
        try:
            space.settings(dict(zip(space.names, corner, strict=True)))
        except SettingError as error:
            yield (
                None,
                f"the domains allow invalid settings: {error}" if corner else str(error),
            )
            return


def _ends(domain: Domain) -> tuple[Scalar, ...]:
    return domain.values if isinstance(domain, Categorical) else (domain.low, domain.high)


def _named(name: str, error: SettingError) -> str:
    return str(error) if str(name) in str(error) else f"{name}: {error}"
