"""Multi-layer perceptrons with residual blocks, plain and on noisy chunks."""

from typing import cast

import torch
from torch import nn, Tensor

TIME_FEATURES = 16


class ResidualMlp(nn.Module):
    """``depth`` hidden layers of ``width``; all but the first add to what they read."""

    def __init__(self, inputs: int, outputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth - 1))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs) to (B, outputs)."""
        hidden = nn.functional.silu(self.first(x))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            hidden = hidden + nn.functional.silu(block(norm(hidden)))
        return cast('Tensor', self.last(hidden))


class FlatField(ResidualMlp):
    """Maps noisy chunks to as many rows: all numbers of a chunk are read at once."""

    def __init__(self, inputs: int, horizon: int, columns: int, width: int, depth: int) -> None:
        rows = horizon * columns
        super().__init__(rows + inputs + TIME_FEATURES, rows, width, depth)

    def forward(self, chunks: Tensor, encoded: Tensor, time: Tensor) -> Tensor:  # type: ignore[override]
        """
        Map noisy chunks (B, H, A) to (B, H, A).

        :param encoded: inputs (B, E)
        :param time: noise level (B, 1), 0 to 1
        """
        level = time_features(time[:, 0], TIME_FEATURES)
        read = torch.cat((chunks.flatten(1), encoded, level), dim=1)
        return super().forward(read).unflatten(1, chunks.shape[1:])


def time_features(time: Tensor, size: int) -> Tensor:
    """Return sines and cosines (B, size) of a flow time (B,) in [0, 1]."""
    rates = torch.pi * 2.0 ** torch.arange(size // 2, dtype=time.dtype, device=time.device)
    angles = time[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)
