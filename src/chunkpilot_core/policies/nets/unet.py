"""A 1-D U-Net along the rows of a chunk, as in diffusion policy (Chi et al. 2023, 2303.04137)."""

from chunkpilot_core.policies.nets.residual_mlp import TIME_FEATURES, time_features
import torch
from torch import nn, Tensor
from torch.nn import functional

KERNEL = 5
GROUPS = 8


class UNet(nn.Module):
    """
    Maps noisy chunks to as many rows; inputs and noise level scale and shift features (FiLM).

    From level to level there are half as many rows; a chunk is extended by its last row until
    they can be halved.
    """

    def __init__(self, inputs: int, columns: int, width: int, depth: int) -> None:
        """
        Make the network.

        :param width: features of the first level, a multiple of 8; each level has as many more
        :param depth: levels
        """
        super().__init__()
        widths = [width * (level + 1) for level in range(depth)]
        condition = inputs + TIME_FEATURES
        self.first = nn.Conv1d(columns, width, 1)
        self.down = nn.ModuleList(
            _Block(before, after, condition)
            for before, after in zip([width, *widths], widths, strict=False)
        )
        self.shorten = nn.ModuleList(nn.Conv1d(size, size, 3, 2, 1) for size in widths[:-1])
        self.middle = _Block(widths[-1], widths[-1], condition)
        self.lengthen = nn.ModuleList(
            nn.ConvTranspose1d(size, size, 4, 2, 1) for size in widths[:0:-1]
        )
        self.up = nn.ModuleList(
            _Block(below + own, own, condition)
            for below, own in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.last = nn.Conv1d(width, columns, 1)

    def forward(self, chunks: Tensor, encoded: Tensor, time: Tensor) -> Tensor:
        """
        Map noisy chunks (B, H, A) to (B, H, A).

        :param encoded: inputs (B, E)
        :param time: noise level (B, 1), 0 to 1
        """
        rows = chunks.shape[1]
        part = 2 ** len(self.shorten)
        x = functional.pad(chunks.mT, (0, -rows % part), mode='replicate')
        condition = torch.cat((encoded, time_features(time[:, 0], TIME_FEATURES)), dim=1)
        x, kept = self.first(x), []
        for block, shorten in zip(self.down[:-1], self.shorten, strict=True):
            x = block(x, condition)
            kept.append(x)
            x = shorten(x)
        x = self.middle(self.down[-1](x, condition), condition)
        for block, lengthen in zip(self.up, self.lengthen, strict=True):
            x = block(torch.cat((lengthen(x), kept.pop()), dim=1), condition)
        out: Tensor = self.last(x)[..., :rows].mT
        return out


class _Block(nn.Module):
    """Two convolutions beside a short cut; the condition scales and shifts between them."""

    def __init__(self, before: int, after: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(before, after, KERNEL, padding='same')
        self.second = nn.Conv1d(after, after, KERNEL, padding='same')
        self.norm_first = nn.GroupNorm(GROUPS, after)
        self.norm_second = nn.GroupNorm(GROUPS, after)
        self.film = nn.Linear(condition, 2 * after)
        self.short = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map features (B, before, rows) to (B, after, rows)."""
        scale, shift = self.film(condition)[..., None].chunk(2, dim=1)
        y = functional.mish(self.norm_first(self.first(x))) * (1.0 + scale) + shift
        out: Tensor = functional.mish(self.norm_second(self.second(y))) + self.short(x)
        return out
