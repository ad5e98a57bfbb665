"""A study's budgets of samples processed and accelerator hours."""

from __future__ import annotations

from hpo.tuning.retry import StorageRetry
from storage.records import Study
from storage.store import Store


class BudgetUse:
    """Compares a study's usage, according to the database, with its budget.

    The database is queried only if the study has such a budget.
    """

    def __init__(self, study: Study, store: Store, retry: StorageRetry) -> None:
        self._study, self._store, self._retry = study, store, retry

    def spent(self) -> str:
        """Return a message that says which budget is exhausted; "" if none is."""
        samples, hours = self._study.max_samples, self._study.max_accelerator_hours
        if samples is None and hours is None:
            return ""
        used = self._retry(lambda: self._store.usage(self._study.id))
        if samples is not None and used.samples >= samples:
            return f"the study's budget of {samples:,} samples is spent ({used.samples:,} were processed)"
        if hours is not None and used.accelerator_seconds >= 3600 * hours:
            return (
                f"the study's budget of {hours:g} accelerator hours is spent "
                f"({used.accelerator_seconds / 3600:.4g} were used)"
            )
        return ""
