"""Random numbers as functions of counters, so that they can be reproduced without storing any state.

The mixer is SplitMix64 (Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195), a bijection of 64-bit words whose
outputs on consecutive counters pass the usual tests of randomness.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_ROUNDS = ((np.uint64(30), np.uint64(_FIRST)), (np.uint64(27), np.uint64(_SECOND)))
_LAST_SHIFT, _HIGH_BITS = np.uint64(31), np.uint64(11)


def mixed_seed(*counters: int) -> int:
    """Mix several counters (seed, epoch, ...) into one 63-bit seed; different counters give unrelated seeds."""
    state = 0
    for counter in counters:
        state = _mix((state + counter + _GAMMA) & _WORD)
    return state >> 1


def sample_uniforms(seed: int, epochs: Tensor, indices: Tensor, count: int) -> Tensor:
    """Return ``count`` uniform numbers in [0, 1) per sample, shape ``(len(indices), count)``, float64, on the CPU.

    The numbers depend only on the seed, the sample's epoch and its index, so that a sample is augmented in the same way
    on any worker and in any micro batch. ``epochs`` and ``indices`` are int64 tensors of shape ``(samples,)`` on the
    CPU.
    """
    # NumPy has unsigned words, and its batched operations take a third of the time of PyTorch's
    base = np.uint64(mixed_seed(seed, 1))
    state = _mix_words(epochs.numpy().view(np.uint64) + base)
    state = _mix_words(state + indices.numpy().view(np.uint64))
    draws = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return torch.from_numpy((_mix_words(state[:, None] + draws) >> _HIGH_BITS) * 2.0**-53)


def _mix(word: int) -> int:
    word = ((word ^ word >> 30) * _FIRST) & _WORD
    word = ((word ^ word >> 27) * _SECOND) & _WORD
    return word ^ word >> 31


def _mix_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the words, in place."""
    for shift, factor in _ROUNDS:
        words ^= words >> shift
        words *= factor
    words ^= words >> _LAST_SHIFT
    return words
