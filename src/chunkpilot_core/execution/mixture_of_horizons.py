"""
Mixture of horizons (arXiv 2511.19433): run on while heads of several horizons agree.

A policy with one head per horizon predicts the near rows several times; where the heads depart
from the row that they are fused to, the prediction can not be trusted. Rows beyond h run while
their disagreement is at most the mean of the first h rows times a ratio, and while at least two
heads predict them. The heads' chunks come as ``samples``, NaN beyond a head's horizon.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, F64, HorizonDecision, PolicySpec
import numpy as np
from numpy.typing import NDArray


class MixtureOfHorizons(Strategy):
    """Runs h rows, and more while the heads agree as they do there."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and what counts as agreement."""

        horizon: int = option(
            5, 'h: rows that always run, whose disagreement is the yardstick', min=1, max=1000
        )
        ratio: float = option(
            1.2,
            'disagreement that is allowed, in that of the first h rows; 1.1 to 1.4 published',
            min=0.0,
            max=100.0,
        )
        heads: int = option(2, 'heads that must predict a row for it to run', min=1, max=64)

    needs = ('horizons',)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('mixture_of_horizons', self.config.horizon)

    def configure(self, spec: PolicySpec) -> None:
        """Get ready for a policy; see :meth:`Strategy.configure`."""
        super().configure(spec)
        self._half_range = np.subtract(spec.space.upper, spec.space.lower) / 2.0

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """
        Return how far the heads agree.

        :raises InvalidDataError: the chunk comes without the predictions of its heads
        """
        distance, heads = self._disagreement(chunk)
        tail = distance[self.base :]
        threshold = self.config.ratio * float(distance[: self.base].mean())
        alone = heads[self.base :] < self.config.heads
        apart = tail > threshold
        stop = alone | apart
        more = int(stop.argmax()) if stop.any() else len(stop)
        reason = 'end of chunk'
        if more < len(stop):
            reason = 'too few heads' if alone[more] else 'disagreement'
        return HorizonDecision(
            chunk.id,
            self.name,
            self.base,
            self.base + more,
            reason,
            tail.astype(np.float32),
            threshold,
        )

    def _disagreement(self, chunk: ActionChunk) -> tuple[F64, NDArray[np.intp]]:
        """Return the heads' mean distance to each row and how many there are, shapes (H,)."""
        if chunk.samples is None or not len(chunk.samples):
            raise InvalidDataError('no predictions of the heads (samples) in the chunk')
        gaps = np.abs(chunk.samples - chunk.actions) / self._half_range
        known = np.isfinite(gaps).all(axis=2)
        heads = known.sum(axis=0)
        total = np.where(known, np.where(known[..., None], gaps, 0.0).mean(axis=2), 0.0).sum(
            axis=0
        )
        return total / np.maximum(heads, 1), heads
