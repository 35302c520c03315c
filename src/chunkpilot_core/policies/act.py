"""
ACT: a transformer predicts all rows at once, given the style of the demonstrator.

Action chunking with transformers (Zhao et al. 2023, arXiv 2304.13705): a conditional variational
auto-encoder, trained with the L1 distance of the rows and the KL divergence of the style from a
standard normal; the style is 0 when it decides, drawn when samples are wanted. Differs from the
paper: inputs are numbers, not images, each of them a token; fewer and narrower layers; no dropout.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.policies.nets.attention import check_width
from chunkpilot_core.policies.nets.cvae import ActNet
from chunkpilot_core.policies.runtime.net_policy import Batch, masked_mean, NetPolicy
import torch
from torch import nn, Tensor


class ActPolicy(NetPolicy):
    """Predicts the median chunk of a style."""

    @dataclass(frozen=True, slots=True)
    class Config:
        """Network and training of ACT."""

        width: int = option(64, 'Numbers of a token, a multiple of heads.', min=8, max=4096)
        heads: int = option(4, 'Heads of an attention.', min=1, max=64)
        depth: int = option(2, 'Layers of each of the three transformers.', min=1, max=32)
        style_size: int = option(8, 'Numbers of the style.', min=1, max=256)
        kl_weight: float = option(10.0, 'Weight of the KL divergence of the style.', min=0.0)
        training_steps: int = option(4000, 'Updates of the weights.', min=1)
        batch_size: int = option(64, 'Chunks of one update.', min=1, max=65536)
        learning_rate: float = option(5e-4, 'Peak rate of AdamW; falls to 0 as a cosine.', min=0.0)
        weight_decay: float = option(1e-4, 'Decay of AdamW.', min=0.0)
        ema_decay: float = option(
            0.999, 'Moving average of the weights that is kept.', min=0.0, max=1.0
        )

        def __post_init__(self) -> None:
            """Refuse a width that does not fit."""
            check_width(self.width, self.heads)

    config: Config
    capabilities = ('samples', 'future_state')

    def build(self) -> nn.Module:
        """Return both halves of the auto-encoder."""
        config, spec = self.config, self.spec
        return ActNet(
            self.encoded_size,
            spec.horizon,
            spec.space.size,
            config.width,
            config.heads,
            config.depth,
            config.style_size,
        )

    def loss(self, batch: Batch, random: torch.Generator) -> Tensor:
        """Return the L1 distance to the demonstrated rows, and what their style may tell."""
        encoded, chunks = self.encode_inputs(batch.inputs), self.scale_actions(batch.actions)
        mean, log_variance = self.net.style(encoded, chunks, batch.valid)
        drawn = torch.randn(mean.shape, generator=random)
        predicted = self.net(encoded, mean + (0.5 * log_variance).exp() * drawn)
        divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1.0).sum(1).mean()
        distance = masked_mean((predicted - chunks).abs(), batch.valid)
        return distance + self.config.kl_weight * divergence

    def sample(self, encoded: Tensor, count: int, random: torch.Generator) -> Tensor:
        """Return the chunk of the middle style, then chunks of drawn ones."""
        style = torch.randn((count, self.config.style_size), generator=random)
        style[0] = 0.0
        chunks: Tensor = self.net(encoded.expand(count, -1), style)
        return chunks
