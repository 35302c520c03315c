"""
Diffusion: chunks are noise that a network cleans step by step.

Denoising diffusion (Ho et al. 2020, arXiv 2006.11239) as a policy (Chi et al. 2023, arXiv
2303.04137): the network learns to tell the noise from chunks that are noisy by the squared cosine
schedule (Nichol and Dhariwal 2021, arXiv 2102.09672); sampling skips most noise levels and adds no
noise on its way (DDIM, Song et al. 2021, arXiv 2010.02502), or takes ``ddpm``'s random steps.
Differs from Chi et al.: smaller networks, inputs are numbers, and the chunk that a step believes
in is cut to the bounds of the space instead of to [-1, 1].
"""

from dataclasses import dataclass
from math import pi

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.policies.nets.attention import check_width
from chunkpilot_core.policies.nets.dit import DiT
from chunkpilot_core.policies.nets.unet import GROUPS, UNet
from chunkpilot_core.policies.runtime.net_policy import Batch, masked_mean, NetPolicy
import torch
from torch import nn, Tensor

OFFSET = 0.008  # of the schedule, so that the first noise is not vanishingly small
LEAST_SIGNAL = 1e-4  # share of the chunk in pure noise: the chunk is found by dividing by its root


class DiffusionPolicy(NetPolicy):
    """Samples chunks from what the demonstrations did."""

    @dataclass(frozen=True, slots=True)
    class Config:
        """Network, sampler and training of the diffusion."""

        network: str = option('unet', 'Network that cleans.', choices=('unet', 'transformer'))
        width: int = option(
            32, 'Features of a row; a multiple of 8 (unet) or of heads.', min=8, max=4096
        )
        depth: int = option(3, 'Levels of the U-Net or layers.', min=1, max=32)
        heads: int = option(4, 'Heads of an attention.', min=1, max=64)
        noise_levels: int = option(100, 'Noise levels that are trained.', min=2, max=10000)
        sampler: str = option('ddim', 'How noise becomes a chunk.', choices=('ddim', 'ddpm'))
        sampling_steps: int = option(
            10, 'Noise levels that a sample visits, at most noise_levels.', min=1, max=10000
        )
        temperature: float = option(
            1.0, 'Scale of the noise of the decision; samples always get 1.', min=0.0, max=2.0
        )
        training_steps: int = option(6000, 'Updates of the weights.', min=1)
        batch_size: int = option(64, 'Chunks of one update.', min=1, max=65536)
        learning_rate: float = option(1e-3, 'Peak rate of AdamW; falls to 0 as a cosine.', min=0.0)
        weight_decay: float = option(1e-4, 'Decay of AdamW.', min=0.0)
        ema_decay: float = option(
            0.999, 'Moving average of the weights that is kept.', min=0.0, max=1.0
        )

        def __post_init__(self) -> None:
            """Refuse what no chunk can be sampled with."""
            if self.sampling_steps > self.noise_levels:
                raise ConfigError(
                    f'sampling_steps {self.sampling_steps}: at most noise_levels, '
                    f'{self.noise_levels}'
                )
            if self.network == 'transformer':
                check_width(self.width, self.heads)
            elif self.width % GROUPS:
                raise ConfigError(f'width {self.width}: must be a multiple of {GROUPS}')

    config: Config
    capabilities = ('samples', 'future_state')

    def build(self) -> nn.Module:
        """Return the network that estimates the noise in a chunk."""
        config, spec = self.config, self.spec
        levels = torch.arange(config.noise_levels + 1) / config.noise_levels
        signal = torch.cos((levels + OFFSET) / (1 + OFFSET) * pi / 2) ** 2
        self._signal = (signal / signal[0]).clamp(LEAST_SIGNAL, 1.0)[1:]  # of levels 1 to K
        columns = spec.space.size
        if config.network == 'unet':
            return UNet(self.encoded_size, columns, config.width, config.depth)
        size = (spec.horizon, columns, config.width, config.heads, config.depth)
        return DiT(self.encoded_size, *size)

    def loss(self, batch: Batch, random: torch.Generator) -> Tensor:
        """Return the squared error of the noise at random levels."""
        chunks = self.scale_actions(batch.actions)
        noise = torch.randn(chunks.shape, generator=random)
        levels = torch.randint(self.config.noise_levels, (len(chunks),), generator=random)
        signal = self._signal[levels][:, None, None]
        noisy = signal.sqrt() * chunks + (1.0 - signal).sqrt() * noise
        found = self._noise_in(noisy, self.encode_inputs(batch.inputs), levels)
        return masked_mean((found - noise) ** 2, batch.valid)

    def sample(self, encoded: Tensor, count: int, random: torch.Generator) -> Tensor:
        """Clean noise; the first chunk starts from noise of ``temperature``."""
        config = self.config
        shape = (count, self.spec.horizon, self.spec.space.size)
        chunks = torch.randn(shape, generator=random)
        chunks[0] *= config.temperature
        lower, upper = (self.scale_actions(bound) for bound in self._tensor_bounds())
        inputs = encoded.expand(count, -1)
        visited = torch.linspace(config.noise_levels - 1, 0, config.sampling_steps).round().long()
        for place, level in enumerate(visited):
            signal = self._signal[level]
            noise = self._noise_in(chunks, inputs, level.expand(count))
            clean = (chunks - (1.0 - signal).sqrt() * noise) / signal.sqrt()
            clean = clean.clamp(lower, upper)
            if place + 1 == len(visited):
                return clean
            after = self._signal[visited[place + 1]]
            noise = (chunks - signal.sqrt() * clean) / (1.0 - signal).sqrt()  # of the cut chunk
            fresh = torch.zeros(())
            if config.sampler == 'ddpm':  # the variance of the posterior, Ho et al. equation 7
                fresh = (1.0 - after) / (1.0 - signal) * (1.0 - signal / after)
                drawn = torch.randn(shape, generator=random)
                drawn[0] *= config.temperature
                chunks = fresh.sqrt() * drawn
            else:
                chunks = torch.zeros(shape)
            chunks = chunks + after.sqrt() * clean + (1.0 - after - fresh).sqrt() * noise
        raise AssertionError('a sample visits at least one noise level')

    def _noise_in(self, chunks: Tensor, encoded: Tensor, levels: Tensor) -> Tensor:
        time = (levels + 1) / self.config.noise_levels
        noise: Tensor = self.net(chunks, encoded, time[:, None])
        return noise

    def _tensor_bounds(self) -> tuple[Tensor, Tensor]:
        lower, upper = self._bounds
        return torch.from_numpy(lower).float(), torch.from_numpy(upper).float()
