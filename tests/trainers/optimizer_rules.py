"""The papers' update rules for one tensor, with NumPy in float64: what the optimizers are tested against.

Each function takes the weight, the gradient, a dictionary that the rule keeps for the tensor, the settings, the number
of the update ``t`` from 1, the rate, the epochs passed, the tensor's decay coefficient, and whether it is adapted;
it returns the new weight.
"""

from __future__ import annotations

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


RULES = {
    "sgd": sgd,
    "lars": lars,
    "larc": larc,
    "lamb": lamb,
    "adam": adam,
    "adamw": adamw,
    "rmsprop_warmup": rmsprop_warmup,
    "shampoo": shampoo,
}


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
