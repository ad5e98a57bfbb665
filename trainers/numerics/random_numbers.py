"""Random numbers as functions of their counters, so that nothing has to be stored to repeat them.

The mixer is SplitMix64 (Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195): a bijection of 64-bit
words whose outputs on consecutive counters pass the usual tests of randomness.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


def mixed_seed(*counters: int) -> int:
    """One 63-bit seed from several counters (seed, epoch, ...); other counters give unrelated seeds."""
    state = 0
    for counter in counters:
        state = _mix((state + counter + _GAMMA) & _WORD)
    return state >> 1


def sample_uniforms(seed: int, epochs: Tensor, indices: Tensor, count: int) -> Tensor:
    """``count`` uniform numbers in [0, 1) for each sample, shape ``(len(indices), count)``, float64.

    They depend on the seed, the sample's epoch and its index alone, so that a sample is augmented in the
    same way on whichever worker and in whichever micro batch it is processed.
    """
    base = _as_signed(mixed_seed(seed, 1))
    state = _mix_tensor(_mix_tensor(epochs + base) + indices)
    draws = torch.arange(1, count + 1, dtype=torch.int64) * _as_signed(_GAMMA)
    return (_mix_tensor(state[:, None] + draws) >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mix(word: int) -> int:
    word = ((word ^ word >> 30) * _FIRST) & _WORD
    word = ((word ^ word >> 27) * _SECOND) & _WORD
    return word ^ word >> 31


def _mix_tensor(words: Tensor) -> Tensor:
    words = (words ^ _shift(words, 30)) * _as_signed(_FIRST)
    words = (words ^ _shift(words, 27)) * _as_signed(_SECOND)
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    # int64 shifts in the sign bit; the mask makes it the logical shift of the published mixer
    return words >> bits & (1 << 64 - bits) - 1


def _as_signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
