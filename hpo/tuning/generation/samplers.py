"""Optuna's samplers, applied to the whole ladder.

Settings with the role ``scaled`` are sampled in a separate Optuna study for every rung. Settings with the role
``shared`` are sampled in one study over the ladder, whose objective is the difference between a trial and the mean of
its rung. These studies are in memory and receive all finished trials again when a sweep resumes; the database remains
the only source of truth. Samplers minimise the logarithm of the epochs to target, or of the shortfall after a fixed
budget, because settings affect both multiplicatively.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hpo.errors import SpecError
from hpo.study.samplers import SAMPLERS
from hpo.study.sizes import Point, sizes_in_words
from hpo.study.spec import StudySpec
from search_spaces.plugins import load_attribute
from search_spaces.scaling_rules import SCALING_RULES
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from storage.records import ConvergencePoint, Trial, TrialState
from trainers.job import HOW_SOON, Question

if TYPE_CHECKING:
    import optuna

Chooser = Callable[[Mapping[str, Any]], tuple[int, Mapping[str, Any]]]

EXPLORED_EVENLY = 4
"""Number of evenly spread trials on the first rung before the sampler takes over."""

LOWER_FOR_LARGER, RATE = 0.5, "learning_rate"
"""The factor on the best learning rate for a model about twice as wide, and the name of the learning-rate setting."""

WARM_START_RULES = ("sqrt", "linear")
"""A rung starts with the best settings of the rung below, scaled by each of these rules in turn."""


Curve = Callable[[], Sequence[ConvergencePoint]]


def no_curve() -> Sequence[ConvergencePoint]:
    """Return no points, for a trial without a curve."""
    return ()


class Sampler(Protocol):
    """Suggests what a sweep trains next. A sampler is rebuilt from the finished trials of a study when a
    sweep resumes.
    """

    def suggest(
        self, global_batch_size: int | None, running: Iterable[Trial] = ()
    ) -> tuple[int, TrainingSettings, int]:
        """Return the batch size and settings to train next, and a ticket to pass back with the finished trial.

        If ``global_batch_size`` is None, the sampler picks it. ``running`` are the trials in flight.
        """

    def began(self, trial: Trial) -> None:
        """Register an unfinished trial from an earlier run."""

    def forget(self, ticket: int, global_batch_size: int) -> None:
        """Discard a suggestion."""

    def tell(self, trial: Trial, ticket: int | None = None, curve: Curve = no_curve) -> None:
        """Learn from a finished trial; without a ticket, it comes from an earlier run or is a repetition.

        ``curve`` reads its convergence points, for samplers that use them.
        """

    def limit_epochs(self, global_batch_size: int, ticket: int | None = None) -> float | None:
        """Return the epochs after which a trial at this batch size may stop; None for the study's budget."""

    def reason(self, ticket: int | None) -> str:
        """Return in one line why a suggestion is not trained beyond its limit; "" if its curve may give a reason.

        Without a ticket, return a message for the end of the sweep, such as why it ended, or "".
        """

    def ended(self, running: Sequence[Trial]) -> bool:
        """Return whether no further trial is worth its cost, as far as is known while ``running`` are in flight."""


def make_sampler(
    spec: StudySpec,
    batches: Sequence[int],
    earlier: int = 0,
    sizes: Point = (),
    smaller: Sampler | None = None,
) -> Sampler:
    """Return the sampler that a study names, over the batch sizes of its trials; ``earlier`` counts earlier trials.

    If model size or training length vary too, each combination of ``sizes`` has its own sampler, which may start from
    the results of the next ``smaller`` one.

    Raises :class:`hpo.errors.SpecError` if a plug-in cannot be imported or does not return a sampler.
    """
    if SAMPLERS[spec.sampler].chooses_rung:
        chooser: Sampler = _call(spec.sampler, spec, earlier)
        return chooser
    return LadderSampler(
        spec.search,
        batches,
        sampler=spec.sampler,
        name=f"{spec.name}/{sizes_in_words(sizes)}" if sizes else spec.name,
        smaller=smaller if isinstance(smaller, LadderSampler) else None,
        epochs=spec.budget.epochs_per_trial,
        earlier=earlier,
        question=spec.question,
    )


class LadderSampler:
    """Suggests settings rung by rung and learns from finished trials.

    ``sampler`` is one of :data:`hpo.study.samplers.SAMPLERS` that does not choose the rung. Suggestions are the same
    for the same ``name`` and the same trials in the same order. ``earlier`` counts the trials of earlier runs: a
    resumed sweep draws new random numbers instead of repeating those from its start. The first rung starts with the
    best settings of the same rung of ``smaller``, the sampler of a smaller model or a shorter training run, both
    unchanged and at half the rate.
    """

    def __init__(
        self,
        space: SearchSpace,
        ladder: Sequence[int],
        *,
        sampler: str,
        name: str,
        epochs: float,
        earlier: int = 0,
        question: Question = HOW_SOON,
        smaller: LadderSampler | None = None,
    ) -> None:
        self._smaller = smaller
        name = f"{name}/after {earlier}" if earlier else name
        self._space = space
        self._epochs, self._question = epochs, question
        self._scaled = space.to_optuna(space.scaled)
        self._shared = space.to_optuna(space.shared)
        self._constrained = _takes_constraints(sampler) and bool(question.constraints)
        self._rungs = {batch: _new_study(sampler, f"{name}/{batch}") for batch in ladder}
        self._ladder = _new_study(sampler, f"{name}/shared")
        self._tickets = 0
        self._suggested: dict[int, tuple[optuna.Trial | None, optuna.Trial]] = {}
        self._values: dict[int, list[float]] = defaultdict(list)
        self._best: dict[int, tuple[float, Trial]] = {}
        self._started: set[int] = set()

    def suggest(
        self,
        global_batch_size: int | None,
        running: Iterable[Trial] = (),  # noqa: ARG002  Optuna's samplers track trials that were asked and not yet told
    ) -> tuple[int, TrainingSettings, int]:
        """Return the rung, the settings to train next on it, and a ticket to pass back with the finished trial."""
        assert global_batch_size is not None, "only a sampler that chooses the rung picks it"
        if global_batch_size not in self._started:
            self._started.add(global_batch_size)
            for values in self._first_values(global_batch_size):
                self._rungs[global_batch_size].enqueue_trial(values, skip_if_exists=True)
        scaled, shared = (
            self._rungs[global_batch_size].ask(self._scaled),
            self._ladder.ask(self._shared),
        )
        return global_batch_size, *self._ticket(scaled, scaled.params, shared)

    def limit_epochs(self, global_batch_size: int, ticket: int | None = None) -> None:
        """Return None, because trials have the study's budget."""

    def reason(self, ticket: int | None) -> str:  # noqa: ARG002
        """Return "", because there is no limit."""
        return ""

    def ended(self, running: Sequence[Trial]) -> bool:  # noqa: ARG002
        """Return False, because the budget of trials ends the sweep."""
        return False

    def suggest_by(self, choose: Chooser) -> tuple[int, TrainingSettings, int]:
        """Return a rung with settings and a ticket; ``choose`` picks the rung and its scaled settings.

        ``choose`` receives all other settings: the fixed ones, and the shared ones that are sampled here.
        """
        shared = self._ladder.ask(self._shared)
        batch, values = choose({**self._space.fixed, **shared.params})
        return batch, *self._ticket(None, values, shared)

    def _ticket(
        self, scaled: optuna.Trial | None, values: Mapping[str, Any], shared: optuna.Trial
    ) -> tuple[TrainingSettings, int]:
        self._tickets += 1
        self._suggested[self._tickets] = (scaled, shared)
        return self._space.settings({**values, **shared.params}), self._tickets

    def began(self, trial: Trial) -> None:
        """Register an unfinished trial from an earlier run, so that its rung counts as already started."""
        self._started.add(trial.global_batch_size)

    def queue_rest_of(self, before: Sampler, trials: Sequence[Trial]) -> None:
        """Queue the first settings of the rungs that ``before``, the sampler replaced by this one, had started, except
        those of ``trials``, which may be running in other processes.
        """
        if not isinstance(before, LadderSampler):
            return
        for batch in self._started & before._started:
            taken = [trial.settings for trial in trials if trial.global_batch_size == batch]
            for queued in before._rungs[batch].get_trials(deepcopy=False):
                values = queued.system_attrs.get("fixed_params")
                if values is not None and not any(values.items() <= each.items() for each in taken):
                    self._rungs[batch].enqueue_trial(values, skip_if_exists=True)

    def forget(self, ticket: int, global_batch_size: int) -> None:
        """Discard a suggestion."""
        import optuna

        scaled, shared = self._suggested.pop(ticket)
        if scaled is not None:
            self._rungs[global_batch_size].tell(scaled, state=optuna.trial.TrialState.FAIL)
        self._ladder.tell(shared, state=optuna.trial.TrialState.FAIL)

    def tell(
        self,
        trial: Trial,
        ticket: int | None = None,
        curve: Curve = no_curve,  # noqa: ARG002  the epochs suffice here
    ) -> None:
        """Learn from a finished trial; without a ticket, it comes from an earlier run or is a repetition."""
        value, batch = self._value(trial), trial.global_batch_size
        if value is None:
            if ticket is not None:
                self.forget(ticket, batch)
            return
        excess = self._excess(trial)
        self._values[batch].append(value)
        centred = value - math.fsum(self._values[batch]) / len(self._values[batch])
        if ticket is not None:
            scaled, shared = self._suggested.pop(ticket)
            if scaled is not None:
                self._constrain(scaled, excess)
                self._rungs[batch].tell(scaled, value)
            else:
                self._add(self._rungs[batch], self._scaled, trial, value)
            self._constrain(shared, excess)
            self._ladder.tell(shared, centred)
        else:
            self._add(self._rungs[batch], self._scaled, trial, value)
            self._add(self._ladder, self._shared, trial, centred)
            self._started.add(batch)
        answered = self._question.need(trial) is not None
        if answered and value < self._best.get(batch, (math.inf, None))[0]:
            self._best[batch] = (value, trial)

    def _first_values(self, batch: int) -> list[dict[str, Any]]:
        below = [rung for rung in sorted(self._best) if rung < batch]
        if not below:
            return [*self._of_smaller(batch), *self._spread(EXPLORED_EVENLY)]
        source = below[-1]
        best = TrainingSettings.from_record(self._best[source][1].settings)
        moved = [SCALING_RULES[rule](best, source, batch) for rule in WARM_START_RULES]
        return [
            {
                name: self._space.domains[name].clip(settings.value(name))
                for name in self._space.scaled
            }
            for settings in moved
        ]

    def _of_smaller(self, batch: int) -> list[dict[str, Any]]:
        known = {} if self._smaller is None else self._smaller._best
        if batch not in known:
            return []
        best = TrainingSettings.from_record(known[batch][1].settings)
        found = []
        for factor in (1.0, LOWER_FOR_LARGER):
            values = {name: best.value(name) for name in self._space.scaled}
            if RATE in values:
                values[RATE] *= factor
            found.append(
                {name: self._space.domains[name].clip(value) for name, value in values.items()}
            )
        return found

    def _spread(self, count: int) -> list[dict[str, Any]]:
        """Return ``count`` points of a Halton sequence, evenly spread in every setting and every pair of settings."""
        if not self._space.scaled:
            return []
        points = halton(count, len(self._space.scaled))
        return [
            {
                name: self._space.domains[name].from_unit(float(u))
                for name, u in zip(self._space.scaled, point, strict=True)
            }
            for point in points
        ]

    def _value(self, trial: Trial) -> float | None:
        """Return the samplers' objective: the log epochs to target. A trial that missed the target gets a value above
        all others.

        With a fixed budget, the objective is the log shortfall. A trial that was stopped counts with its last value,
        but never as better than the best; one that diverged counts as twice as bad as the worst.
        """
        if need := self._question.need(trial):
            return math.log(need)
        if self._constrained and self._question.target.reached(trial.final_metric or math.nan):
            return math.log(trial.epochs) if trial.epochs else None
        if self._question.fixed:
            return self._value_of_lost(trial)
        if trial.state in (TrialState.CENSORED, TrialState.PRUNED):
            return math.log(2 * self._epochs)
        if trial.state is TrialState.DIVERGED:
            return math.log(4 * self._epochs)
        return None

    def _value_of_lost(self, trial: Trial) -> float | None:
        if trial.state not in (TrialState.CENSORED, TrialState.PRUNED, TrialState.DIVERGED):
            return None
        stood = self._question.shortfall(trial.final_metric)
        known = self._values[trial.global_batch_size]
        if trial.state is TrialState.DIVERGED or stood is None:
            return max(known, default=math.log(stood or 1.0)) + math.log(2)
        best = self._best.get(trial.global_batch_size)
        return math.log(stood) if best is None else max(math.log(stood), best[0])

    def _add(
        self, study: optuna.Study, space: Mapping[str, Any], trial: Trial, value: float
    ) -> None:
        import optuna

        params = {name: trial.settings[name] for name in space}
        if all(
            space[name]._contains(space[name].to_internal_repr(params[name])) for name in params
        ):
            made = optuna.trial.create_trial(params=params, distributions=dict(space), value=value)
            self._constrain(made, self._excess(trial))
            study.add_trial(made)

    def _constrain(self, trial: Any, excess: Mapping[str, float]) -> None:
        """Record on an Optuna trial by how much it exceeds each constraint; a value above 0 is a violation."""
        for name, beyond in excess.items() if self._constrained else ():
            trial.set_constraint(name, beyond)

    def _excess(self, trial: Trial) -> dict[str, float]:
        """Return by how much a trial exceeds each constraint, relative to its bound; 1 for a missing figure."""
        found = {}
        for each in self._question.constraints:
            value, unit = each.value(trial), abs(each.bound) or 1.0
            found[each.name] = 1.0 if value is None else each.excess(value) / unit
        return found


def halton(count: int, dimensions: int) -> list[list[float]]:
    """Return ``count`` points of the Halton sequence, each with ``dimensions`` numbers in (0, 1), without the origin.

    To get element i of a dimension, the digits of i in that dimension's prime base are mirrored at the radix point (J.
    H. Halton, Numerische Mathematik 2, 1960). SciPy gives the same numbers, but its statistics module takes a second to
    import.
    """
    primes: list[int] = []
    number = 2
    while len(primes) < dimensions:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return [[_mirrored(index, prime) for prime in primes] for index in range(1, count + 1)]


def _mirrored(number: int, base: int) -> float:
    value, weight = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        value += digit * weight
        weight /= base
    return value


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's TPE sampler, which counts trials in flight as poor ones (constant liar)."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, n_startup_trials=EXPLORED_EVENLY, constant_liar=True)


def gp(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's Gaussian-process sampler."""
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed, n_startup_trials=EXPLORED_EVENLY)


def cmaes(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's CMA-ES sampler; categorical parameters, and a single parameter, are drawn
    independently instead.
    """
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(
        seed=seed, n_startup_trials=EXPLORED_EVENLY, warn_independent_sampling=False
    )


def qmc(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's quasi-Monte Carlo sampler, a scrambled Sobol sequence."""
    from optuna.samplers import QMCSampler

    return QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)


def random(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's random sampler."""
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _takes_constraints(sampler: str) -> bool:
    """Return whether the sampler receives the constraints. It does not with Optuna before 5.0, and a violation then
    counts as a missed target.
    """
    import optuna

    return SAMPLERS[sampler].takes_constraints and hasattr(optuna.trial.Trial, "set_constraint")


def _new_study(sampler: str, name: str) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made: Any = _call(sampler, seed)
    if not isinstance(made, optuna.samplers.BaseSampler):
        raise SpecError(
            f"sampler {sampler!r} must give an optuna.samplers.BaseSampler, but gave {made!r:.100}"
        )
    return optuna.create_study(sampler=made, direction="minimize")


def _call(sampler: str, *arguments: Any) -> Any:
    rule = SAMPLERS[sampler].rule
    try:
        found = load_attribute(rule)
    except Exception as error:
        raise SpecError(
            f"sampler {sampler!r} cannot be used: {rule} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        return found(*arguments)
    except (TypeError, ValueError, ImportError) as error:
        raise SpecError(f"sampler {sampler!r} cannot be used: {rule} refuses: {error}") from error
