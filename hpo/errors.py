"""Every error that the service raises on purpose; each message names the rule, the value and a way to fix it.

::

    HpoError                       the base class of all errors below                      exit code
    ├── SpecError                  a study file, or a value in it, that breaks a rule              2
    ├── StudyNotFoundError         a name that is not in the storage                               2
    ├── StorageUnavailableError    a database that cannot be opened or has another version         2
    ├── EvidenceError              a table or trials from which nothing can be learned             2
    ├── PlanError                  a plan that cannot be made as requested                         2
    ├── LaunchError                a plan that could not be started or did not finish              1
    ├── TuningError                a sweep that could not continue                                 1
    ├── TrialLostError             a trial that another client now holds                           1
    ├── ExportError                an export that would overwrite something, or lacks its library  2
    ├── StudyFailedError           a study on a server that ended without its result               1
    └── ServiceError               a server that does not do what was requested                    1
        ├── UnreachableError       no answer: not started, wrong URL, network, or overloaded       1
        ├── WaitTimeoutError       the wait for a study timed out, but the study continues         1
        ├── AuthenticationError    a token that is missing, unknown or expired                     2
        ├── NotAllowedError        a token that does not permit the request                        2
        ├── ConflictError          a request that conflicts with the server's state                2
        └── RequestError           a value that the server does not accept                         2

The command line prints the message without a traceback and exits with ``exit_code``: 2 means that the user has to
change the request, 1 that the work failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

MOST_FAULTS = 20
"""Maximum number of faults listed for one file: nobody reads more, and finding them takes time."""


class HpoError(Exception):
    """Base class of the errors that this service raises; the command line returns ``exit_code`` for it."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True)
class SpecFault:
    """One broken rule: what is wrong, and the line (counted from 1) and the dotted key in the file."""

    message: str
    line: int | None = None
    key: str | None = None


class SpecError(HpoError):
    """A study file that breaks rules: one readable line of text for each rule, ``study.yaml, line 7: ...``.

    ``path`` is the file as given, or None for text. ``line`` and ``key`` belong to the first fault, and ``faults``
    holds all faults, or the first ``MOST_FAULTS`` and a note on the others.
    """

    exit_code = 2

    def __init__(
        self, faults: str | SpecFault | Iterable[SpecFault], *, path: str | None = None
    ) -> None:
        if isinstance(faults, str):
            faults = SpecFault(faults)
        every = (faults,) if isinstance(faults, SpecFault) else tuple(faults)
        self.faults = every[:MOST_FAULTS]
        if len(every) > MOST_FAULTS:
            more = f"there are more than {MOST_FAULTS} faults; fix these first"
            self.faults = (*self.faults, SpecFault(more))
        self.path = path
        first = self.faults[0] if self.faults else SpecFault("the study cannot be read")
        self.line, self.key = first.line, first.key
        super().__init__(
            "\n".join(f"{_place(path, fault.line)}: {fault.message}" for fault in self.faults)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _spec_error, (self.faults, self.path)


class StudyNotFoundError(HpoError):
    """The name of a study, plan or trial that is not in the storage."""

    exit_code = 2


class StorageUnavailableError(HpoError):
    """A database that cannot be opened, or that was written by another version of the service."""

    exit_code = 2


class EvidenceError(HpoError):
    """A table or a set of trials from which nothing can be learned, such as one with a broken row or too few batch
    sizes.
    """

    exit_code = 2


class PlanError(HpoError):
    """A plan that cannot be made as requested: an unknown machine, too few nodes, a batch size that does not divide.

    ``nearest`` holds the arguments of ``hpo.make_plan`` that give the nearest possible plan, if there is one.
    """

    exit_code = 2

    def __init__(self, message: str, nearest: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.nearest = dict(nearest or {})


class LaunchError(HpoError):
    """A plan that could not be started, or was started and did not finish."""


class TuningError(HpoError):
    """A sweep that could not continue."""


class FigureError(TuningError):
    """A reported value that is impossible: out of bounds, or inconsistent with earlier ones."""


class TrialLostError(HpoError):
    """A trial that the client does not hold, or no longer holds; the client must stop and report nothing more."""


class ExportError(HpoError):
    """An export that would overwrite something, or that needs a library that is missing."""

    exit_code = 2


class StudyFailedError(HpoError):
    """A study on a server that failed, was cancelled or was interrupted; ``state`` says which."""

    def __init__(self, message: str, state: str = "failed") -> None:
        super().__init__(message)
        self.state = state


class ServiceError(HpoError):
    """A server that does not do what was requested; ``status`` is the HTTP status of its response, and ``request_id``
    identifies the request in its log.
    """

    def __init__(
        self, message: str, *, status: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.request_id = status, request_id


class UnreachableError(ServiceError):
    """No answer after all attempts: the server is not started, the URL is wrong, or the network is down."""


class WaitTimeoutError(ServiceError):
    """The wait for a study timed out; the study itself continues."""


class AuthenticationError(ServiceError):
    """A token that is missing, unknown to the server, expired or revoked."""

    exit_code = 2


class NotAllowedError(ServiceError):
    """A token whose scope does not permit the request, or a study of another owner."""

    exit_code = 2


class ConflictError(ServiceError):
    """A request that conflicts with the server's state, such as a name that is taken or a study that is running."""

    exit_code = 2


class RequestError(ServiceError):
    """A value that the server does not accept."""

    exit_code = 2


def _place(path: str | None, line: int | None) -> str:
    place = path or "study"
    return place if line is None else f"{place}, line {line}"


def _spec_error(faults: tuple[SpecFault, ...], path: str | None) -> SpecError:
    # rebuilds the error on the other side of a process boundary
    return SpecError(faults, path=path)
