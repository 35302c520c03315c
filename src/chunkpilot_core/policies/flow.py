"""
Flow matching: chunks are noise that a learned velocity field carries to the demonstrations.

Lipman et al. 2023 (arXiv 2210.02747), as an action head as in pi0 (Black et al. 2024, arXiv
2410.24164): the network is trained on the straight path x_t = (1 - t) noise + t chunk to predict
its velocity chunk - noise, and sampling integrates it with a few Euler steps. Differs from pi0: a
perceptron or a small transformer that is trained from nothing; and ``temperature`` scales the
noise that sampling starts from (1 = the learned distribution, 0 = its centre). Guidance completes
a chunk whose first rows are given, as in real-time chunking (Black et al. 2025, arXiv 2506.07339).
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.policies.nets.attention import check_width
from chunkpilot_core.policies.nets.dit import DiT
from chunkpilot_core.policies.nets.residual_mlp import FlatField
from chunkpilot_core.policies.runtime.net_policy import Batch, Guide, masked_mean, NetPolicy
import torch
from torch import nn, Tensor


class FlowPolicy(NetPolicy):
    """Samples chunks from what the demonstrations did."""

    @dataclass(frozen=True, slots=True)
    class Config:
        """Network, sampler and training of the flow."""

        network: str = option(
            'mlp', 'mlp: a perceptron; dit: a transformer over rows.', choices=('mlp', 'dit')
        )
        width: int = option(
            256, 'Neurons of a hidden layer, or numbers of a row.', min=8, max=4096
        )
        depth: int = option(4, 'Hidden layers.', min=1, max=32)
        heads: int = option(4, 'Heads of an attention of dit.', min=1, max=64)
        flow_steps: int = option(10, 'Euler steps of one sample.', min=1, max=1000)
        guided_steps: int = option(
            5, 'Euler steps of a sample that continues given rows.', min=1, max=1000
        )
        temperature: float = option(
            1.0, 'Scale of the noise of the decision; samples always get 1.', min=0.0, max=2.0
        )
        training_steps: int = option(20000, 'Updates of the weights.', min=1)
        batch_size: int = option(256, 'Chunks of one update.', min=1, max=65536)
        learning_rate: float = option(1e-3, 'Peak rate of AdamW; falls to 0 as a cosine.', min=0.0)
        weight_decay: float = option(1e-4, 'Decay of AdamW.', min=0.0)
        ema_decay: float = option(
            0.999, 'Moving average of the weights that is kept.', min=0.0, max=1.0
        )

        def __post_init__(self) -> None:
            """Refuse a width that does not fit."""
            if self.network == 'dit':
                check_width(self.width, self.heads)

    config: Config
    capabilities = ('samples', 'guidance', 'future_state')

    def build(self) -> nn.Module:
        """Return the velocity field: of the noisy chunk, the inputs and the flow time."""
        config, spec = self.config, self.spec
        size = (self.encoded_size, spec.horizon, spec.space.size, config.width)
        if config.network == 'mlp':
            return FlatField(*size, config.depth)
        return DiT(*size, config.heads, config.depth)

    def loss(self, batch: Batch, random: torch.Generator) -> Tensor:
        """Return the squared error of the velocity on random points of the straight paths."""
        chunks = self.scale_actions(batch.actions)
        noise = torch.randn(chunks.shape, generator=random)
        time = torch.rand(len(chunks), generator=random)
        at = time[:, None, None]
        velocity = self._velocity(
            (1 - at) * noise + at * chunks, self.encode_inputs(batch.inputs), time
        )
        return masked_mean((velocity - (chunks - noise)) ** 2, batch.valid)

    def sample(self, encoded: Tensor, count: int, random: torch.Generator) -> Tensor:
        """Integrate the field from noise; the first chunk starts from noise of ``temperature``."""
        chunks = self._noise(count, random)
        inputs = encoded.expand(count, -1)
        steps = self.config.flow_steps
        for step in range(steps):
            time = torch.full((count,), step / steps)
            chunks = chunks + self._velocity(chunks, inputs, time) / steps
        return chunks

    def guided(self, encoded: Tensor, count: int, random: torch.Generator, guide: Guide) -> Tensor:
        """
        Integrate the field pulled to given rows, arXiv 2506.07339 equations 2 to 4.

        ``jacobian`` carries the error of the estimated end of the path back through the network,
        ``identity`` adds it as it is.
        """
        chunks = self._noise(count, random)
        inputs = encoded.expand(count, -1)
        steps = self.config.guided_steps
        for step in range(steps):
            time = step / steps
            at = chunks.detach().requires_grad_(guide.jacobian)
            with torch.set_grad_enabled(guide.jacobian):
                velocity = self._velocity(at, inputs, torch.full((count,), time))
                end = at + (1.0 - time) * velocity
            pull = (guide.rows - end.detach()) * guide.weights
            if guide.jacobian:
                (pull,) = torch.autograd.grad(end, at, pull)
            chunks = chunks + (velocity.detach() + guide.gain(time) * pull) / steps
        return chunks

    def _noise(self, count: int, random: torch.Generator) -> Tensor:
        chunks = torch.randn((count, self.spec.horizon, self.spec.space.size), generator=random)
        chunks[0] *= self.config.temperature
        return chunks

    def _velocity(self, chunks: Tensor, encoded: Tensor, time: Tensor) -> Tensor:
        velocity: Tensor = self.net(chunks, encoded, time[:, None])
        return velocity
