"""The optimizers as PyTorch optimizers, for any training loop, with parameter groups, schedulers and state dicts.

::

    from trainers.optimizers import LARS, parameter_kinds

    optimizer = LARS(model.parameters(), lr=2.0, momentum=0.9, weight_decay=5e-5, kinds=parameter_kinds(model))

There is one class for each description in :mod:`search_spaces.techniques.optimizers`, including plug-ins, named by its
title. Each takes the settings that its rule uses, with the names and defaults in docs/reference/settings.md; the
learning rate is ``lr``, as PyTorch's schedulers expect. A parameter group may have its own values, which a scheduler
may change. The updates are the same as with that rule in this project's training loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn

from search_spaces.names import nearest_or_all
from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.techniques import OF_LOOP, OPTIMIZERS, described_optimizer
from trainers.errors import CheckpointError
from trainers.optimizers.masters import REDUCED
from trainers.optimizers.optimizer import GroupOptimizer, optimizer_rule_named
from trainers.optimizers.parameter_groups import parameter_groups
from trainers.optimizers.parameter_kinds import Kind

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]


class RuleOptimizer(torch.optim.Optimizer):
    """One of the rules as a PyTorch optimizer.

    ``params`` are parameters or parameter groups, ``lr`` is the learning rate per update, and ``settings`` are the
    settings that the rule uses. The settings determine whether biases and normalization parameters are excluded from
    weight decay and layer-wise adaptation. ``kinds`` identifies these parameters
    (:func:`~trainers.optimizers.parameter_kinds.parameter_kinds`); without it, tensors with at most one dimension count
    as such. A parameter without a gradient counts as having a gradient of zero: unlike with PyTorch's own optimizers,
    it decays, and its momentum moves it.

    Raises :class:`~search_spaces.settings.SettingError` for a setting that the rule does not use, and for weights in
    bf16 or fp16: keep weights in fp32 and compute under ``torch.autocast``.
    """

    rule: ClassVar[str]

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        kinds: Mapping[nn.Parameter, Kind] | None = None,
        **settings: Any,
    ) -> None:
        self._kinds = kinds
        self._rules: list[GroupOptimizer] = []
        for name in settings:
            _check_use(self.rule, name)
        its = TrainingSettings(optimizer=self.rule)
        defaults = {name: its.value(name) for name in used_settings(self.rule)}
        super().__init__(params, {"lr": lr, "updates": 0, **defaults, **settings})
        self._build()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; existing parameters keep their state."""
        for name in param_group:
            if name not in ("params", "lr", "initial_lr", "updates", "numbers", "param_names"):
                _check_use(self.rule, name)
        super().add_param_group(param_group)
        if self._rules:
            self._rules.append(self._rule_of(self.param_groups[-1]))

    @overload
    def step(self, closure: None = None, *, epochs: float | None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float], *, epochs: float | None = None) -> float: ...
    @torch.no_grad()
    def step(
        self, closure: Callable[[], float] | None = None, *, epochs: float | None = None
    ) -> float | None:
        """Update every parameter from its ``grad``.

        ``epochs`` is the training progress before this update (samples processed over data-set size). RMSprop warm-up
        and AdEMAMix with ``ademamix_warmup_epochs`` read it, and raise :class:`~search_spaces.settings.SettingError`
        without it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, rule in zip(self.param_groups, self._rules, strict=True):
            self._follow(group, rule)
        if epochs is None and any(rule.reads_epochs for rule in self._rules):
            raise SettingError(
                f"{type(self).__name__} changes its updates with the training progress, but step() got none; "
                "call step(epochs=samples / train_samples), with the samples processed before the update"
            )
        for group, rule in zip(self.param_groups, self._rules, strict=True):
            rule.step(float(group["lr"]), 0.0 if epochs is None else epochs)
            group["updates"] = rule.updates
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return PyTorch's state dict, with additional state of the rules in their groups."""
        self._keep_numbers()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        """Return what :mod:`copy` and :mod:`pickle` need: PyTorch's own part, and the kinds of the parameters."""
        self._keep_numbers()
        return {**super().__getstate__(), "_kinds": self._kinds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy; PyTorch also calls it to load a state dict, which has no kinds."""
        super().__setstate__(state)
        if "_kinds" in state:
            self._build_from(dict(self.state))

    def _keep_numbers(self) -> None:
        for group, rule in zip(self.param_groups, self._rules, strict=True):
            group["numbers"] = rule.numbers()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Provide a context in which parameters are set for evaluation, which matters only for Schedule-Free."""
        with contextlib.ExitStack() as stack:
            for rule in self._rules:
                stack.enter_context(rule.evaluation())
            yield

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from ``state_dict``; raise :class:`CheckpointError` for the state of another rule."""
        used = {"lr", "updates", *used_settings(self.rule)}
        if not all(used <= group.keys() for group in state_dict["param_groups"]):
            raise CheckpointError(
                f"the state lacks settings of {type(self).__name__}; load the state of the same optimizer"
            )
        super().load_state_dict(state_dict)
        self._build_from({parameter: dict(state) for parameter, state in self.state.items()})

    @torch.no_grad()
    def _build_from(self, loaded: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
        self._build()
        for parameter, mine in self.state.items():
            saved = loaded.get(parameter, {})
            if set(saved) != set(mine):
                raise CheckpointError(
                    f"the state has {', '.join(sorted(saved)) or 'nothing'} for a parameter, "
                    f"but {type(self).__name__} "
                    f"keeps {', '.join(sorted(mine))}; load the state of the same optimizer"
                )
            for name, tensor in mine.items():
                tensor.copy_(saved[name])

    def _build(self) -> None:
        self.state.clear()
        self._rules = [self._rule_of(group) for group in self.param_groups]

    def _rule_of(self, group: dict[str, Any]) -> GroupOptimizer:
        parameters = group["params"]
        if any(parameter.dtype in REDUCED for parameter in parameters):
            raise SettingError(
                f"{type(self).__name__} updates weights in fp32 or fp64, but got "
                f"{parameters[0].dtype}; keep the weights "
                "in fp32 and compute under torch.autocast"
            )
        kinds = (
            None if self._kinds is None else [self._kinds[parameter] for parameter in parameters]
        )
        rule = optimizer_rule_named(self.rule)(
            parameter_groups(parameters, self._settings(group), kinds), self._settings(group)
        )
        rule.go_on_after(group["updates"])
        rule.set_numbers(group.get("numbers", {}))
        for own in rule.groups:
            for index, parameter in enumerate(own.parameters):
                self.state[parameter] = rule.state_of(own, index)
        return rule

    def _settings(self, group: Mapping[str, Any]) -> TrainingSettings:
        return TrainingSettings.from_record(
            {"optimizer": self.rule, **{name: group[name] for name in used_settings(self.rule)}}
        )

    def _follow(self, group: Mapping[str, Any], rule: GroupOptimizer) -> None:
        """Apply a scheduler's changes to a group since the last update."""
        settings = self._settings(group)
        if settings == rule.settings:
            return
        before, now = rule.settings.weight_decay, settings.weight_decay
        if before == 0 < now:
            raise SettingError(
                "a weight decay of 0 cannot be raised later; start with another value and then "
                "set it to 0"
            )
        share = now / before if before else 1.0
        for own in rule.groups:
            own.weight_decay *= share
        for batch in rule.batches:
            batch.weight_decay *= share
        rule.settings = settings


@functools.cache
def optimizer_class(title: str) -> type[RuleOptimizer] | None:
    """Return the class of the optimizer whose description has this title (``LARS``), or None."""
    for name in OPTIMIZERS:
        described = described_optimizer(name)  # None for a faulty plug-in
        if described is not None and described.title == title:
            where = described.rule.partition(":")[0]
            about = f"{described.about}; {described.source}; see :mod:`{where}`."
            names = {"rule": name, "__doc__": about, "__module__": "trainers.optimizers"}
            return type(title, (RuleOptimizer,), names)
    return None


def used_settings(rule: str) -> tuple[str, ...]:
    """Return the settings that an optimizer uses in addition to the learning rate."""
    described = OPTIMIZERS[rule]
    return (
        "weight_decay",
        "decay_norm_and_bias",
        "decay_bias",
        *described.uses,
        *described.uses_if,
        *(name for name in described.settings if name not in OF_LOOP),
    )


def _check_use(rule: str, name: str) -> None:
    if name not in used_settings(rule):
        raise SettingError(
            f"{rule} uses no setting {name!r}{nearest_or_all(name, used_settings(rule))}"
        )
