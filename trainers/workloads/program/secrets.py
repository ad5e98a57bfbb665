"""Hide the user's secrets from a program: remove them from its environment and from its quoted output.

The program of a service's user runs with the variables that the operator allows (``HPO_PROGRAM_ENVIRONMENT``, names
separated by commas, with a final ``*`` for any letters), in addition to the variables that its study sets. If
``HPO_PROGRAM_ENVIRONMENT`` is not set, as in `hpo run`, the program belongs to the user and gets the user's
environment, without this project's secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

ALLOWED = "HPO_PROGRAM_ENVIRONMENT"
WRAPPER = "HPO_PROGRAM_WRAPPER"
"""Environment variable: words to put before the program's command, to run it as another user or in a container."""
DEFAULT_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "ROCR_*", "HIP_*", "RCCL_*", "ZE_*", "CCL_*"),
    *("OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "NUMEXPR_*", "GOMP_*"),
    *("SLURM_*", "SLURMD_*", "PBS_*", "PMI_*", "PMIX_*", "OMPI_*", "MPICH_*", "I_MPI_*", "FI_*"),
    *("UCX_*", "GLOO_*", "HOROVOD_*", "TORCH_NCCL_*", "TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME"),
)
"""Variables that programs need under torchrun, Horovod, MPI and Slurm: paths, locale, accelerators, threads, the
network between workers, and the job. None of these variables is meant to hold a secret.
"""
_ALWAYS = ("HPO_WORKER_PROCESS", "HPO_LAUNCHER")
"""Variables by which a worker and the processes that it starts recognize each other."""
_OURS = re.compile(r"HPO_(STORAGE|TOKEN|ARGUMENTS|SERVE_.*)|PGPASSWORD")
_NAMES = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY)", re.IGNORECASE
)
_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/@]{0,200}:)[^\s/@]{1,500}@")
_LOGIN = re.compile(r"lb_[A-Za-z0-9_-]{43}")
_LEAST_CHARACTERS = 6
HIDDEN = "***"


def program_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a program gets."""
    told = environment.get(ALLOWED)
    if told is None:
        return {name: value for name, value in environment.items() if not _OURS.fullmatch(name)}
    allowed = [*_ALWAYS, *(name.strip() for name in told.split(",") if name.strip())]
    return {
        name: value
        for name, value in environment.items()
        if not _OURS.fullmatch(name) and any(fnmatchcase(name, each) for each in allowed)
    }


def text_without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text that others may see, with ``***`` in place of passwords in URLs, login tokens and secret values."""
    given = os.environ if environment is None else environment
    text = _LOGIN.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}@", text))
    secrets = {
        value
        for name, value in given.items()
        if len(value) >= _LEAST_CHARACTERS and (_OURS.fullmatch(name) or _NAMES.search(name))
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
