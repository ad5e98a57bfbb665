"""The papers' update rules for one tensor, with NumPy in float64: what the optimizers are tested against.

Each function takes the weight, the gradient, a dictionary that the rule keeps for the tensor, the settings, the number
of the update ``t`` from 1, the rate, the epochs passed, the tensor's decay coefficient, and whether it is adapted;
it returns the new weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def sgd(w, g, memory, s, *, rate, decay, **_):
    return _momentum(w, g + decay * w, memory, s, s.momentum_form or "outside", rate)


def lars(w, g, memory, s, *, rate, decay, adapted, **_):
    ratio = 1.0
    if adapted and _norm(w) != 0 and _norm(g) != 0:
        ratio = s.trust_coefficient * _norm(w) / (_norm(g) + decay * _norm(w) + s.trust_epsilon)
    return _momentum(w, g + decay * w, memory, s, s.momentum_form or "inside", rate, ratio)


def larc(w, g, memory, s, *, t, rate, decay, adapted, **_):
    if not adapted:
        g = g + decay * w
    elif (
        _norm(w) != 0 and _norm(g) != 0
    ):  # otherwise the gradient is raw and the decay is lost, as in apex
        factor = s.trust_coefficient * _norm(w) / (_norm(g) + _norm(w) * decay + s.trust_epsilon)
        if s.larc_mode == "clip":
            factor = min(factor / rate, 1)
        g = (g + decay * w) * factor
    if s.larc_optimizer == "sgd":
        return _sgd_outside(w, g, memory, s, rate)
    return w - rate * _adam_direction(g, memory, s, t)


def lamb(w, g, memory, s, *, t, rate, decay, adapted, **_):
    u = _adam_direction(g, memory, s, t) + decay * w
    ratio = 1.0
    if adapted and _norm(w) != 0 and _norm(u) != 0:
        phi = _norm(w) if s.weight_norm_limit is None else min(_norm(w), s.weight_norm_limit)
        ratio = phi / (_norm(u) + s.trust_epsilon)
    return w - rate * ratio * u


def adam(w, g, memory, s, *, t, rate, decay, **_):
    return w - rate * _adam_direction(g + decay * w, memory, s, t)


def adamw(w, g, memory, s, *, t, rate, decay, **_):
    return w - rate * (_adam_direction(g, memory, s, t) + decay * w)


def rmsprop_warmup(w, g, memory, s, *, rate, epochs, decay, **_):
    center, period = s.rmsprop_center_epochs, s.rmsprop_period_epochs
    if epochs < center:
        a_sgd = 0.5 * np.exp(2 * (epochs - center) / period)
    elif epochs < center + period / 2:
        a_sgd = 0.5 + (epochs - center) / period
    else:
        a_sgd = 1.0
    a_rms = (1 - a_sgd) * s.rmsprop_learning_rate / rate
    g = g + decay * w
    memory["m"] = s.beta2 * memory.get("m", 0.0) + (1 - s.beta2) * g * g
    memory["D"] = (
        s.momentum * memory.get("D", 0.0) - (a_sgd + a_rms / (np.sqrt(memory["m"]) + s.epsilon)) * g
    )
    return w + rate * memory["D"]


def shampoo(w, g, memory, s, *, t, rate, decay, adapted, **_):
    d = g
    modes = [mode for mode in range(g.ndim) if 1 < g.shape[mode] <= s.preconditioner_size_limit]
    if adapted:
        for mode in modes:
            others = [axis for axis in range(g.ndim) if axis != mode]
            outer = np.tensordot(g, g, (others, others))
            memory["H", mode] = s.beta2 * memory.get(("H", mode), 0.0) + (1 - s.beta2) * outer
            if (t - 1) % s.preconditioner_interval == 0:
                memory["P", mode] = _inverse_root(memory["H", mode], 2 * len(modes), s.epsilon)
            d = np.moveaxis(np.tensordot(memory["P", mode], d, ([1], [mode])), 0, mode)
        d = d * (_norm(g) / _norm(d)) if _norm(d) > 0 else d
    return _sgd_outside(w, d + decay * w, memory, s, rate)


def muon(w, g, memory, s, *, t, rate, decay, adapted, **more):
    if not adapted:
        return adamw(w, g, memory, s, t=t, rate=rate * s.value("muon_rest_rate"), decay=decay)
    keep = s.value("muon_momentum")
    memory["m"] = keep * memory.get("m", 0.0) + (1 - keep) * g
    d = (1 - keep) * g + keep * memory["m"] if s.value("muon_nesterov") else memory["m"]
    x = d.reshape(len(d), -1)
    rows, columns = x.shape
    x = x / max(_norm(x), 1e-7)
    for _ in range(s.value("muon_iterations")):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    scale = (
        0.2 * max(rows, columns) ** 0.5
        if s.value("muon_rate_scaling") == "rms"
        else max(1, rows / columns) ** 0.5
    )
    return w - rate * decay * w - rate * scale * x.reshape(w.shape)


def lion(w, g, memory, s, *, rate, decay, **_):
    m = memory.get("m", np.zeros_like(w))
    memory["m"] = s.value("lion_beta2") * m + (1 - s.value("lion_beta2")) * g
    return w - rate * (np.sign(s.beta1 * m + (1 - s.beta1) * g) + decay * w)


def nadamw(w, g, memory, s, *, t, rate, decay, **_):
    memory["m"] = s.beta1 * memory.get("m", 0.0) + (1 - s.beta1) * g
    memory["v"] = s.beta2 * memory.get("v", 0.0) + (1 - s.beta2) * g * g
    now, later, second = 1.0, 1.0, 1.0
    if s.bias_correction:
        now, later, second = 1 - s.beta1**t, 1 - s.beta1 ** (t + 1), 1 - s.beta2**t
    n = s.beta1 * memory["m"] / later + (1 - s.beta1) * g / now
    return w - rate * (n / (np.sqrt(memory["v"] / second) + s.epsilon) + decay * w)


def ademamix(w, g, memory, s, *, t, rate, epochs, decay, **_):
    warmup, alpha, keep = (
        s.value(f"ademamix_{name}") for name in ("warmup_epochs", "alpha", "beta3")
    )
    if epochs < warmup:  # the half-life, ln 2 / -ln b, rises by a line
        alpha, share = alpha * epochs / warmup, epochs / warmup
        half_lives = [-np.log(2) / np.log(each) for each in (s.beta1, keep)]
        keep = 0.5 ** (1 / ((1 - share) * half_lives[0] + share * half_lives[1]))
    memory["slow"] = keep * memory.get("slow", 0.0) + (1 - keep) * g
    direction = _adam_direction(g, memory, s, t)
    second = memory["s"] / (1 - s.beta2**t if s.bias_correction else 1.0)
    direction = direction + alpha * memory["slow"] / (np.sqrt(second) + s.epsilon)
    return w - rate * (direction + decay * w)


def schedule_free_sgd(w, g, memory, s, *, t, rate, decay, **_):
    return _schedule_free(w, g, memory, s, t, rate, decay)


def schedule_free_adamw(w, g, memory, s, *, t, rate, decay, **_):
    memory["v"] = s.beta2 * memory.get("v", 0.0) + (1 - s.beta2) * g * g
    second = memory["v"] / (1 - s.beta2**t if s.bias_correction else 1.0)
    return _schedule_free(w, g / (np.sqrt(second) + s.epsilon), memory, s, t, rate, decay)


def _schedule_free(y, d, memory, s, t, rate, decay):
    """With all three points kept, as the paper has them."""
    beta = s.value("schedule_free_beta")
    x, z = memory.get("x", y), memory.get("z", y)
    memory["largest"] = max(memory.get("largest", 0.0), rate)
    weight = t ** s.value("schedule_free_r") * memory["largest"] ** s.value(
        "schedule_free_rate_power"
    )
    memory["sum"] = memory.get("sum", 0.0) + weight
    c = weight / memory["sum"]
    memory["z"] = z - rate * (d + decay * y)
    memory["x"] = (1 - c) * x + c * memory["z"]
    return (1 - beta) * memory["z"] + beta * memory["x"]


def soap(w, g, memory, s, *, t, rate, decay, adapted, **_):
    modes = [mode for mode in range(g.ndim) if 1 < g.shape[mode] <= s.preconditioner_size_limit]
    modes = modes if adapted else []
    beta1, beta2 = s.value("soap_beta1"), s.value("soap_beta2")

    def turned(x, transpose=False):
        for mode in modes:
            q = memory["Q", mode].T if transpose else memory["Q", mode]
            x = np.moveaxis(np.tensordot(x, q, ([mode], [0])), -1, mode)
        return x

    if t > 1:
        memory["m"] = beta1 * memory.get("m", 0.0) + (1 - beta1) * g
        memory["v"] = beta2 * memory.get("v", 0.0) + (1 - beta2) * turned(g) ** 2
        step = rate
        if s.bias_correction:
            step = rate * np.sqrt(1 - beta2 ** (t - 1)) / (1 - beta1 ** (t - 1))
        w = w - step * turned(turned(memory["m"]) / (np.sqrt(memory["v"]) + s.epsilon), True)
        w = w - rate * decay * w
    for mode in modes:
        others = [axis for axis in range(g.ndim) if axis != mode]
        outer = np.tensordot(g, g, (others, others))
        memory["H", mode] = beta2 * memory.get(("H", mode), 0.0) + (1 - beta2) * outer
        h = memory["H", mode]
        if t == 1:
            memory["Q", mode] = np.linalg.eigh(h)[1][:, ::-1]
        elif (t - 1) % s.preconditioner_interval == 0:
            q = memory["Q", mode]
            order = np.argsort(-np.diag(q.T @ h @ q), kind="stable")
            memory["v"] = np.take(memory["v"], order, mode)
            memory["Q", mode] = np.linalg.qr((h @ q)[:, order])[0]
    return w


@dataclass(frozen=True)
class OptimizerCase:
    """How an optimizer is tried: ``rule`` is the paper's, with NumPy.

    ``settings`` are some that it uses, each with another value than its default. ``rate`` and ``training`` are the rate
    and settings at which a small network trains by it. ``tried`` are the settings under which fifty updates are
    compared with the rule in float64, besides the defaults.
    """

    rule: Callable[..., np.ndarray]
    rate: float
    settings: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    tried: Sequence[dict[str, Any]] = ()


ADAPTED = {"adapt_norm_and_bias": True, "decay_norm_and_bias": True}
FORMS = ("outside", "inside", "corrected")
CASES = {
    "sgd": OptimizerCase(
        sgd,
        rate=0.05,
        settings={"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        tried=(
            *(
                {"momentum_form": form, "nesterov": nesterov}
                for form in FORMS
                for nesterov in (False, True)
            ),
            {"momentum": 0.0},
            {"momentum": 0.0, "momentum_form": "inside"},
            {"decay_norm_and_bias": True},
        ),
    ),
    "lars": OptimizerCase(
        lars,
        rate=2.0,
        settings={"momentum_form": "corrected", "trust_coefficient": 0.02, "weight_decay": 0.01},
        tried=(
            *(
                {"trust_coefficient": 0.02, "nesterov": nesterov, **more}
                for nesterov in (False, True)
                for more in ({}, ADAPTED, {"trust_epsilon": 1e-7})
            ),
            *(
                {"trust_coefficient": 0.02, "momentum_form": form, **more}
                for form in FORMS
                for more in ({}, {"nesterov": True}, {"momentum": 0.0})
            ),
            {"momentum": 0.0, "weight_decay": 0.0},
            {"decay_norm_and_bias": True},
            {"adapt_norm_and_bias": True},
        ),
    ),
    "larc": OptimizerCase(
        larc,
        rate=0.1,
        settings={"larc_mode": "scale", "trust_coefficient": 0.02, "decay_norm_and_bias": True},
        tried=(
            *(
                {
                    "larc_mode": mode,
                    "larc_optimizer": inner,
                    "trust_coefficient": 0.05,
                    "trust_epsilon": 1e-8,
                    **more,
                }
                for mode in ("clip", "scale")
                for inner in ("sgd", "adam")
                for more in ({}, ADAPTED)
            ),
            {"trust_coefficient": 0.05, "nesterov": True},
        ),
    ),
    "lamb": OptimizerCase(
        lamb,
        rate=0.01,
        settings={"beta1": 0.8, "weight_decay": 0.05, "weight_norm_limit": 3.0},
        training={"adapt_norm_and_bias": True},
        tried=tuple(
            {"bias_correction": correction, **more}
            for correction in (True, False)
            for more in (
                {},
                ADAPTED,
                {"weight_norm_limit": 1.5},
                {"trust_epsilon": 0.1},
                {"weight_decay": 0.0},
                {"decay_norm_and_bias": True},
            )
        ),
    ),
    "adam": OptimizerCase(
        adam,
        rate=0.002,
        settings={"beta2": 0.99, "epsilon": 1e-6, "bias_correction": False},
        tried=(
            {"bias_correction": True},
            {"bias_correction": False},
            {"decay_norm_and_bias": True, "beta1": 0.0},
        ),
    ),
    "adamw": OptimizerCase(
        adamw,
        rate=0.002,
        settings={"weight_decay": 0.1, "decay_bias": True},
        tried=(
            {"bias_correction": True},
            {"bias_correction": False},
            {"decay_norm_and_bias": True, "beta2": 0.9},
        ),
    ),
    "rmsprop_warmup": OptimizerCase(
        rmsprop_warmup,
        rate=0.02,
        settings={"rmsprop_learning_rate": 1e-3, "rmsprop_center_epochs": 3.0},
        training={"rmsprop_center_epochs": 0.5, "rmsprop_period_epochs": 0.5},
        tried=(
            {"beta2": 0.99, "rmsprop_center_epochs": 5.0},
            {"beta2": 0.9, "rmsprop_center_epochs": 0.0, "rmsprop_period_epochs": 60.0},
        ),
    ),
    "shampoo": OptimizerCase(
        shampoo,
        rate=0.02,
        settings={"preconditioner_interval": 3, "beta2": 0.9},
        # its roots multiply rounding errors by up to 1 / epsilon, for a fused training as for any other
        training={
            "preconditioner_interval": 8,
            "epsilon": 0.1,
            "preconditioner_size_limit": 32,
        },
        tried=(
            {"beta2": 0.95, "preconditioner_interval": 1},
            {
                "beta2": 0.95,
                "preconditioner_interval": 7,
                "preconditioner_size_limit": 5,
                **ADAPTED,
            },
            {"preconditioner_size_limit": 2, "nesterov": True},
        ),
    ),
    "soap": OptimizerCase(
        soap,
        rate=0.002,
        settings={"soap_beta1": 0.9, "soap_beta2": 0.9, "preconditioner_interval": 3},
        training={"preconditioner_size_limit": 8},
        # the first gradient has full rank along these dimensions, so that the first basis is unique
        tried=(
            {"preconditioner_size_limit": 5},
            {
                "preconditioner_size_limit": 5,
                "preconditioner_interval": 3,
                "soap_beta2": 0.9,
                "bias_correction": False,
                "decay_norm_and_bias": True,
            },
        ),
    ),
    "muon": OptimizerCase(
        muon,
        rate=0.01,
        settings={"muon_rate_scaling": "shape", "muon_rest_rate": 0.1, "beta1": 0.8},
        tried=(
            {},
            {"muon_rate_scaling": "shape", "muon_rest_rate": 0.3, "muon_iterations": 3},
            {"muon_nesterov": False, "muon_momentum": 0.8, "decay_norm_and_bias": True},
        ),
    ),
    "lion": OptimizerCase(
        lion,
        rate=0.001,
        settings={"lion_beta2": 0.9, "beta1": 0.8, "weight_decay": 0.1},
        tried=({}, {"lion_beta2": 0.95, "beta1": 0.5, "decay_norm_and_bias": True}),
    ),
    "nadamw": OptimizerCase(
        nadamw,
        rate=0.002,
        settings={"beta1": 0.8, "weight_decay": 0.1},
        tried=({}, {"bias_correction": False}, {"beta1": 0.5, "decay_norm_and_bias": True}),
    ),
    "schedule_free_sgd": OptimizerCase(
        schedule_free_sgd,
        rate=0.2,
        settings={"schedule_free_beta": 0.8, "weight_decay": 0.01},
        tried=(
            {},
            {"schedule_free_beta": 0.6, "schedule_free_r": 1.0, "schedule_free_rate_power": 1.0},
        ),
    ),
    "schedule_free_adamw": OptimizerCase(
        schedule_free_adamw,
        rate=0.002,
        settings={"schedule_free_beta": 0.8, "beta2": 0.95},
        tried=({}, {"bias_correction": False, "decay_norm_and_bias": True, "beta2": 0.9}),
    ),
    "ademamix": OptimizerCase(
        ademamix,
        rate=0.002,
        settings={"ademamix_alpha": 2.0, "ademamix_beta3": 0.99, "beta2": 0.9},
        training={"ademamix_warmup_epochs": 1.0},
        tried=(
            {},
            {"ademamix_warmup_epochs": 6.0, "ademamix_beta3": 0.999},
            {"ademamix_alpha": 1.0, "bias_correction": False, "decay_norm_and_bias": True},
        ),
    ),
}
"""Every optimizer's case, by the names of the setting ``optimizer``."""


def _norm(x):
    return float(np.sqrt(np.sum(np.square(x))))


def _sgd_outside(w, d, memory, s, rate):
    memory["v"] = s.momentum * memory.get("v", 0.0) + d
    return w - rate * (d + s.momentum * memory["v"] if s.nesterov else memory["v"])


def _momentum(w, d, memory, s, form, rate, ratio=1.0):
    if form == "outside":
        return _sgd_outside(w, d, memory, s, rate * ratio)
    if form == "corrected" and "rate" in memory:
        memory["v"] = memory["v"] * rate / memory["rate"]
    memory["rate"] = rate
    return _momentum_inside(w, rate * ratio * d, memory, s)


def _momentum_inside(w, update, memory, s):
    memory["v"] = s.momentum * memory.get("v", 0.0) + update
    return w - (s.momentum * memory["v"] + update if s.nesterov else memory["v"])


def _adam_direction(g, memory, s, t):
    memory["m"] = s.beta1 * memory.get("m", 0.0) + (1 - s.beta1) * g
    memory["s"] = s.beta2 * memory.get("s", 0.0) + (1 - s.beta2) * g * g
    first, second = memory["m"], memory["s"]
    if s.bias_correction:
        first, second = first / (1 - s.beta1**t), second / (1 - s.beta2**t)
    return first / (np.sqrt(second) + s.epsilon)


def _inverse_root(h, order, epsilon):
    """(H + epsilon * largest eigenvalue * I)^(-1 / order) by the singular values; I for H = 0."""
    u, values, _ = np.linalg.svd(h, hermitian=True)
    if values[0] == 0:
        return np.eye(len(h))
    return (u * (values + epsilon * values[0]) ** (-1 / order)) @ u.T
