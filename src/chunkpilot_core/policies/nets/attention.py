"""What transformers of this folder share: plain encoder layers, and the places of rows."""

from math import log

from chunkpilot_core.errors import ConfigError
import torch
from torch import nn, Tensor


def check_width(width: int, heads: int) -> None:
    """
    Refuse a width that can't be divided among the heads, or into sines and cosines.

    :raises ConfigError: says what is allowed
    """
    if width % heads:
        raise ConfigError(f'width {width}: must be a multiple of heads, {heads}')
    if width % 2:
        raise ConfigError(f'width {width}: must be even')


def positions(rows: int, width: int) -> Tensor:
    """
    Return sines and cosines (rows, width) of the row's number (Vaswani et al. 2017, 1706.03762).

    :param width: even
    """
    rates = torch.exp(torch.arange(0, width, 2) * (-log(1e4) / width))
    angles = torch.arange(rows)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def encoder(width: int, heads: int, depth: int) -> nn.TransformerEncoder:
    """Return ``depth`` pre-norm layers on tokens (B, T, width)."""
    layer = nn.TransformerEncoderLayer(**_layer(width, heads))
    return nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)


def decoder(width: int, heads: int, depth: int) -> nn.TransformerDecoder:
    """Return ``depth`` pre-norm layers on queries (B, H, width) that read tokens (B, T, width)."""
    layer = nn.TransformerDecoderLayer(**_layer(width, heads))
    return nn.TransformerDecoder(layer, depth, nn.LayerNorm(width))


def _layer(width: int, heads: int) -> dict[str, object]:
    # No dropout: training draws all its random numbers from a generator of its own.
    return {
        'd_model': width,
        'nhead': heads,
        'dim_feedforward': 4 * width,
        'dropout': 0.0,
        'activation': 'gelu',
        'batch_first': True,
        'norm_first': True,
    }
