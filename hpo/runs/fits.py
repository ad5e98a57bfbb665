"""Stores fitted laws, so that a study's posterior is available immediately after a restart.

The particles are stored as text: NumPy's own format without pickles, encoded in base64. Their model follows from the
evidence. A fit is valid only for the evidence that it was computed from, which a fingerprint identifies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import zipfile
from importlib.metadata import version

import numpy as np

from hpo.extrapolation.evidence.evidence import Evidence
from hpo.extrapolation.inference.model import PosteriorModel, make_posterior_models
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.laws.priors import LawPriors
from storage.errors import StoreError
from storage.store import Store

FORM = 5
"""Format version; increase it if the stored content changes, or the way in which a fit is computed from its
evidence.
"""
LARGEST = 16_000_000
"""Maximum length of a stored fit in characters; a longer one is fitted again each time."""
_PLACES, _RESIDUALS, _NOTE, _MODEL = "=places", "=residuals", "=note", "=model"


def fit_fingerprint(evidence: Evidence) -> str:
    """Return a fingerprint of a fit's inputs: the evidence in full precision, and the release that computes the fit."""
    text = f"{FORM} {version('largebatch')} {evidence!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def find_fit(store: Store, study_id: int, evidence: Evidence) -> Posterior | None:
    """Return the posterior stored for exactly this evidence; None if there is no readable one."""
    try:
        content = store.fit(study_id, fit_fingerprint(evidence))
    except StoreError:
        return None
    return None if content is None else unpack_fit(content, evidence)


def keep_fit(store: Store, study_id: int, posterior: Posterior) -> None:
    """Store a posterior; if that fails, the next reader just has to fit it again."""
    content = pack_fit(posterior)
    if len(content) > LARGEST:
        return
    try:
        store.keep_fit(study_id, fit_fingerprint(posterior.evidence), content)
    except StoreError:
        return


def pack_fit(posterior: Posterior) -> str:
    """Return the particles of a posterior as text."""
    arrays = {
        **posterior.values,
        _PLACES: posterior.residual_places,
        _RESIDUALS: posterior.residuals,
        _NOTE: np.array(posterior.note),
        _MODEL: np.array(_kind(posterior.model)),
    }
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return base64.b64encode(file.getvalue()).decode()


def unpack_fit(content: str, evidence: Evidence) -> Posterior | None:
    """Unpack the output of :func:`pack_fit` for the evidence that it was fitted to; return None for any other text."""
    try:
        with np.load(
            io.BytesIO(base64.b64decode(content, validate=True)), allow_pickle=False
        ) as read:
            arrays = {name: read[name] for name in read.files}
        kind, note = str(arrays.pop(_MODEL)), str(arrays.pop(_NOTE))
        places, residuals = arrays.pop(_PLACES), arrays.pop(_RESIDUALS)
    except (binascii.Error, ValueError, OSError, KeyError, zipfile.BadZipFile, EOFError):
        return None
    for model in make_posterior_models(evidence, LawPriors()):
        if _kind(model) == kind:
            return Posterior(evidence, model, arrays, places, residuals, note)
    return None


def _kind(model: PosteriorModel) -> str:
    """Return a name that distinguishes the model from other models of the same evidence."""
    laws = ",".join(f"{law.name}:{type(law).__name__}" for law in model.laws)
    return f"{'descent' if model.descent else 'general'} {laws}"
