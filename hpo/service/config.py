"""ServerConfig: the configuration of a server, from a YAML file, the environment and the command line.

Later sources override earlier ones: defaults, file, environment, command line. An environment variable is named
``HPO_SERVE_`` followed by a top-level key in capitals (``HPO_SERVE_PORT=80``; items of a list are separated by
commas); the storage is set by ``HPO_STORAGE``, as for every command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hpo.errors import SpecError, SpecFault
from hpo.study import faults as study_faults
from hpo.study import rules, yaml_text
from search_spaces.plugins import TAKEN
from trainers.workloads.described import WORKLOADS

BUILT_IN_WORKLOADS = tuple(name for name, its in WORKLOADS.built_in.items() if its.served)
ENVIRONMENT_PREFIX = "HPO_SERVE_"


class _ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServiceLimits(_ConfigSection):
    """The limits of one request, one token and one owner; None means no limit."""

    body_bytes: int = Field(2_500_000, ge=1_000, description="Largest request body, in bytes.")
    body_seconds: float = Field(
        30, gt=0, description="Time within which a request body must arrive."
    )
    requests_per_second: float = Field(
        500, gt=0, description="Requests per second of one token, on average."
    )
    burst: int = Field(1_000, ge=1, description="Requests that a token may send in a burst.")
    requests_at_once: int = Field(
        6,
        ge=1,
        description="Requests of one owner that are processed at the same time; fewer if other "
        "owners send requests too.",
    )
    streams: int = Field(500, ge=1, description="Open event streams of the server.")
    streams_per_token: int = Field(50, ge=1, description="Open event streams of one token.")
    queued_studies: int = Field(1_000, ge=1, description="Studies of one owner in the queue.")
    priority: int = Field(10, ge=0, description="Highest priority allowed without the admin scope.")
    trials: int = Field(100_000, ge=1, description="Budget of one study, in trials.")
    samples: int | None = Field(None, ge=1, description="Budget of one study, in training samples.")
    accelerator_hours: float | None = Field(
        None, gt=0, description="Budget of one study, in accelerator hours."
    )
    epochs: float = Field(100_000, gt=0, description="Budget of one trial, in epochs.")
    evaluations: int = Field(100_000, ge=1, description="Evaluations of one trial.")
    points: int = Field(50_000_000, ge=1, description="Evaluations of all trials of one study.")
    train_samples: int = Field(
        100_000_000, ge=1, description="Training samples that a study generates or simulates."
    )
    modes: int = Field(100_000, ge=1, description="Modes of a noisy quadratic.")
    updates: int = Field(20_000_000, ge=1, description="Updates of one simulated trial.")
    generated_bytes: int = Field(
        20_000_000_000, ge=1, description="Size of the data that a study generates, in bytes."
    )
    launch_workers: int | None = Field(
        None,
        ge=1,
        description="Processes of a validation run on a worker's machine; default: the number "
        "of cores of this machine.",
    )
    stored_bytes: int | None = Field(
        10_000_000_000, ge=1, description="Database size of the studies of one owner."
    )
    study_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Memory limit for a study's processes in the built-in worker; default: 90 "
        "% of the machine's memory.",
    )
    study_disk_bytes: int = Field(
        100_000_000_000,
        ge=1,
        description="Disk limit for a study in the folder of the built-in worker.",
    )
    forecasts_per_minute: int = Field(
        60,
        ge=1,
        description="Forecasts and plans of one owner that need a computation, per minute.",
    )
    check_seconds: float = Field(
        10, gt=0, description="Time within which the check of a submission must finish."
    )
    head_seconds: float = Field(
        10, gt=0, description="Time within which the headers of a request must arrive."
    )
    head_bytes: int = Field(
        65_536, ge=1_000, description="Maximum size of the headers of a request, in bytes."
    )
    send_seconds: float = Field(
        30, gt=0, description="Time within which a client must read some of the data sent to it."
    )
    connections_per_address: int = Field(
        200, ge=1, description="Open connections from one address; trusted proxies have no limit."
    )
    curves: int = Field(100, ge=1, description="Trials whose convergence one request may read.")


class ServerConfig(_ConfigSection):
    """Configuration of one server: where it listens, what it stores, and what submitted studies may use."""

    storage: str = "sqlite:///hpo.db"
    host: str = "127.0.0.1"
    port: int = Field(8642, ge=0, le=65535, description="0 takes any free port.")
    folder: Path = Field(Path(".hpo"), description="Where plans and the login token are kept.")
    workloads: tuple[Annotated[str, AfterValidator(rules.check_workload)], ...] = Field(
        BUILT_IN_WORKLOADS,
        description="Names of the workloads that studies may train, including those of "
        "plug-ins; package.module:Class names code on the server.",
    )
    plugins: tuple[str, ...] = Field(
        (), description="Packages whose optimizers, schedules and other plug-ins studies may use."
    )
    trackers: tuple[str, ...] = Field(
        (),
        description="Trackers that studies may use in the built-in worker, such as wandb; the "
        "worker's environment decides where they write.",
    )
    data_folders: tuple[Path, ...] = Field(
        (), description="Folders that studies may read data from."
    )
    program_environment: tuple[str, ...] = Field(
        (),
        description="Environment variables of the built-in worker that programs receive in "
        "addition to the usual ones; * matches any characters.",
    )
    program_wrapper: str = Field(
        "",
        max_length=2000,
        description="Prefix of a program's command, to run it as another user or in a container.",
    )
    shared_reading: bool = Field(
        True, description="Whether every token may read the studies of all owners."
    )
    threads: int = Field(
        12, ge=1, le=200, description="Requests that are processed at the same time."
    )
    limits: ServiceLimits = Field(default_factory=lambda: ServiceLimits.model_validate({}))
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto "
        "headers are trusted.",
    )
    hosts: tuple[str, ...] = Field(
        (),
        description="Host names that requests may use; default: the names of this machine if the "
        "server listens only locally, else any.",
    )
    path: str = Field(
        "",
        max_length=200,
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="Path prefix of all addresses, such as /hpo, if a proxy serves the pages under one.",
    )
    log_format: Literal["text", "json"] = "text"

    @field_validator("data_folders")
    @classmethod
    def _absolute(cls, folders: tuple[Path, ...]) -> tuple[Path, ...]:
        for folder in folders:
            if not folder.is_absolute():
                raise ValueError(
                    f"must be absolute paths, because workers may start in any folder, but got "
                    f"{str(folder)!r}"
                )
        return folders

    @model_validator(mode="after")
    def _both_of_tls(self) -> ServerConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be given together")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def scheme(self) -> str:
        """URL scheme: https if there is a certificate, else http."""
        return "https" if self.tls_certificate else "http"


def load_server_config(
    path: str | Path | None = None, environment: Mapping[str, str] | None = None, **given: Any
) -> ServerConfig:
    """Read the configuration from a YAML file; the environment overrides it, as do ``given`` values that are not None.

    Raises :class:`SpecError` with every error and its line.
    """
    document = yaml_text.YamlDocument({}) if path is None else _read(Path(path))
    values = dict(document.value)
    values.update(_from_environment(environment or {}))
    values.update({name: value for name, value in given.items() if value is not None})
    try:
        return ServerConfig.model_validate(values)
    except ValidationError as error:
        faults = [
            SpecFault(
                message, document.line(location), study_faults.dotted_location(location) or None
            )
            for location, message in study_faults.explain_fault(error, ServerConfig)
        ]
        raise SpecError(
            faults, path="server configuration" if path is None else str(path)
        ) from error


def _read(path: Path) -> yaml_text.YamlDocument:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(
            f"the configuration must be a readable file, but {reason}", path=str(path)
        ) from None
    document = yaml_text.read(text)
    if document.faults:
        raise SpecError(
            [
                SpecFault(
                    fault.message.replace("a study file", "a configuration"), fault.line, fault.key
                )
                for fault in document.faults
            ],
            path=str(path),
        )
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        raise SpecError(
            f"the configuration must be a mapping of keys to values, but got "
            f"{study_faults.shown_value(document.value)}",
            path=str(path),
        )
    return document


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ServerConfig.model_fields:
        text = environment.get(
            "HPO_STORAGE" if name == "storage" else f"{ENVIRONMENT_PREFIX}{name.upper()}"
        )
        if text is None and name == "plugins":
            text = environment.get(TAKEN)  # as all other commands do
        if text is not None and name != "limits":
            is_list = name in (
                "workloads",
                "plugins",
                "trackers",
                "data_folders",
                "trusted_proxies",
                "hosts",
                "program_environment",
            )
            found[name] = [part for part in text.split(",") if part] if is_list else text
    return found
