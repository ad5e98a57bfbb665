"""A decoder-only transformer: pre-norm, with learned positions and an output that is not tied to the embedding.

As in Radford et al. 2019 (GPT-2), section 2.3, layer normalization precedes each block and follows the last, and the
initial matrices that write to the residual stream are divided by the square root of their number, 2 depth. All other
matrices and the embedding tables start with standard deviation sqrt(2 / (5 width)) (Nguyen and Salazar,
arXiv:1910.05895, section 2.2, SmallInit). At a width of about 768, this equals the 0.02 in GPT-2's code, which is far
too small for narrow networks. Wider models have more heads of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.numerics.parametrization import InitialLaw

INITIALIZATION: Mapping[str, InitialLaw] = {
    "": "fan_in",
    "token_embedding": "fan_out",
    "position_embedding": "fan_out",
}
"""How the initial values scale with the width, by parameter name prefix."""
RESIDUAL_OUTPUTS = ("attention_output", "network_output")
"""The modules whose outputs each block adds to the residual stream."""


class DecoderBlock(nn.Module):
    """A decoder block: causal attention, then an MLP of four times the width, each added to its input."""

    def __init__(self, width: int, heads: int, attention_scale: float) -> None:
        super().__init__()
        self.heads, self.attention_scale = heads, attention_scale
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.network_input = nn.Linear(width, 4 * width)
        self.network_output = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """Map ``(samples, positions, width)`` to the same shape."""
        samples, positions, width = stream.shape
        joint = self.queries_keys_values(self.attention_norm(stream))
        queries, keys, values = joint.view(
            samples, positions, 3, self.heads, width // self.heads
        ).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=self.attention_scale
        )
        mixed = mixed.transpose(1, 2).reshape(samples, positions, width)
        stream = stream + self.attention_output(mixed)
        hidden = F.gelu(self.network_input(self.network_norm(stream)))
        output: Tensor = stream + self.network_output(hidden)
        return output


class TransformerDecoder(nn.Module):
    """Predicts each token of a sequence from the preceding tokens; ``heads`` must divide ``width``.

    ``attention_scale`` multiplies the query-key product. Initial values are drawn as for a network of
    ``initial_depth`` blocks.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        initial_depth: int,
        heads: int,
        positions: int,
        tokens: int,
        attention_scale: float,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(tokens, width)
        self.position_embedding = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(
            DecoderBlock(width, heads, attention_scale) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(tuple(f"{each}.weight" for each in RESIDUAL_OUTPUTS))
                scale = 1 / math.sqrt(2 * initial_depth) if writes else 1.0
                nn.init.normal_(parameter, std=math.sqrt(2 / (5 * width)) * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for the next token, ``(samples, positions, tokens)``, from ``(samples, positions)`` int64."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.token_embedding(tokens) + self.position_embedding(places)
        for block in self.blocks:
            stream = block(stream)
        scores: Tensor = self.head(self.norm(stream))
        return scores
