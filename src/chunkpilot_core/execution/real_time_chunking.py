"""
Real-time chunking (arXiv 2506.07339): a new chunk is drawn as the continuation of the old one.

The rows that run until the answer are given to the policy, which completes them as an inpainting:
weight 1 for the d committed rows, which it must meet, then falling to 0 at H - s. Two variants:
``jacobian`` pulls by the true vector-Jacobian product as in the paper, ``identity`` takes the
Jacobian for the identity, as cheap implementations do. Differs from the paper: after an interrupt
(the old plan no longer fits the scene) nothing but the committed rows is held on to, and a delay
that has grown too long for h makes the horizon longer instead of the constraint fail.
"""

from dataclasses import dataclass, replace
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, ChunkRequest, F32, HorizonDecision, PolicySpec
import numpy as np


class RealTimeChunking(Strategy):
    """Runs h rows of chunks that continue what was committed to; s = h - d rows lie between."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and how strongly to hold on to the old chunk."""

        horizon: int = option(
            8,
            'h: rows of each chunk that run, counted from row 0; s = h - d of the paper, so at '
            'least twice the delay',
            min=1,
            max=1000,
        )
        variant: str = option(
            'jacobian',
            'how the correction is computed: jacobian = true vector-Jacobian product, identity = '
            'without derivatives of the network',
            choices=('jacobian', 'identity'),
        )
        decay: str = option(
            'exponential',
            'how weights fall beyond the committed rows',
            choices=('exponential', 'linear'),
        )
        limit: float = option(5.0, 'largest gain of the correction', min=0.0, max=100.0)

    needs = ('guidance',)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('real_time_chunking', self.config.horizon)

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy.

        :raises ConfigError: no delay d >= 1 fits d <= s <= H - d with s = h - d
        """
        super().configure(spec)
        self._rows, self._dt_s = spec.horizon, spec.dt_s
        if self.base < 2:
            raise ConfigError(
                f'strategy {self.name!r}: horizon {self.base} leaves no room for a delay d of at '
                f'least one row with d <= s = h - d; allowed 2 to {spec.horizon}'
            )

    def ask(self, request: ChunkRequest) -> ChunkRequest:
        """Ask for a continuation of the rows that run before the answer, if there are any."""
        count = len(request.prefix)
        if not count:
            return request
        committed = min(request.committed_rows, count)
        end = committed  # after an interrupt
        if request.reason == 'horizon':
            end = min(count, self._rows - max(self.base - committed, 0))
        return replace(
            request,
            guidance=self.config.variant,
            guidance_weights=weights(committed, end, count, self.config.decay),
            guidance_limit=self.config.limit,
        )

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h, or 2 d where the delay d has become longer than s = h - d."""
        delay = math.ceil(state.delay_s / self._dt_s - 1e-6)
        chosen, reason = self.base, 'fixed'
        if 2 * delay > self.base:
            chosen = min(2 * delay, self._rows)
            fits = 'fits' if 2 * delay <= self._rows else 'is too long'
            reason = f'delay of {delay} rows {fits}: d <= s <= H - d'
        return HorizonDecision(chunk.id, self.name, self.base, chosen, reason)


def weights(committed: int, end: int, count: int, decay: str) -> F32:
    """
    Return how strongly each row of a prefix is held on to, shape (count,), equation 5.

    :param committed: d, rows with weight 1
    :param end: H - s, first row with weight 0
    """
    end = max(end, committed)
    left = (end - np.arange(count)) / (end - committed + 1)
    falling = np.clip(left, 0.0, 1.0)
    if decay == 'exponential':
        falling = falling * np.expm1(falling) / (math.e - 1.0)
    falling[:committed] = 1.0
    return falling.astype(np.float32)
