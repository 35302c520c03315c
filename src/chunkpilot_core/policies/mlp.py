"""
Regression of a whole chunk by a small perceptron.

Chunked behaviour cloning with the L1 loss of ACT (Zhao et al. 2023, arXiv 2304.13705): one forward
pass predicts all rows, and the median of what the demonstrations did is less smeared than their
mean. Differs from ACT: a perceptron on state inputs in place of the CVAE transformer on images;
relative positions are given to the network.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.policies.nets.residual_mlp import ResidualMlp
from chunkpilot_core.policies.runtime.net_policy import Batch, masked_mean, NetPolicy
import torch
from torch import nn, Tensor


class MlpPolicy(NetPolicy):
    """Predicts the median chunk of the demonstrations."""

    @dataclass(frozen=True, slots=True)
    class Config:
        """Network and training of the regression."""

        width: int = option(256, 'Neurons of a hidden layer.', min=8, max=4096)
        depth: int = option(3, 'Hidden layers.', min=1, max=32)
        training_steps: int = option(12000, 'Updates of the weights.', min=1)
        batch_size: int = option(256, 'Chunks of one update.', min=1, max=65536)
        learning_rate: float = option(1e-3, 'Peak rate of AdamW; falls to 0 as a cosine.', min=0.0)
        weight_decay: float = option(1e-4, 'Decay of AdamW.', min=0.0)
        ema_decay: float = option(
            0.999, 'Moving average of the weights that is kept.', min=0.0, max=1.0
        )

    config: Config
    capabilities = ('future_state',)

    def build(self) -> nn.Module:
        """Return the perceptron."""
        rows = self.spec.horizon * self.spec.space.size
        return ResidualMlp(self.encoded_size, rows, self.config.width, self.config.depth)

    def loss(self, batch: Batch, random: torch.Generator) -> Tensor:
        """Return the L1 distance to the demonstrated rows."""
        predicted = self._rows(self.encode_inputs(batch.inputs))
        return masked_mean((predicted - self.scale_actions(batch.actions)).abs(), batch.valid)

    def sample(self, encoded: Tensor, count: int, random: torch.Generator) -> Tensor:
        """Return the one answer that a regression has."""
        return self._rows(encoded)

    def _rows(self, encoded: Tensor) -> Tensor:
        rows: Tensor = self.net(encoded)
        return rows.unflatten(1, (self.spec.horizon, self.spec.space.size))
