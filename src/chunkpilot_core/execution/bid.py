"""
Bidirectional decoding (BID, arXiv 2408.17355): of several samples, the one that fits.

Backward coherence keeps the samples nearest to what the plan in force says for the same times,
near rows weighing more (beta^k); forward contrast then takes the one that lies near the other
strong samples and far from those of a weaker policy. Without weak samples the nearest runs.
Differs from BID: coherence counts from the first row that is not late, distances are fractions of
half the range of each column.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime.blending import Blender
from chunkpilot_core.types import ActionChunk, F32, F64, HorizonDecision, PolicySpec
import numpy as np


class Bid(Strategy):
    """Asks for N samples of each decision and runs h rows of the best."""

    @dataclass(frozen=True)
    class Config:
        """How many samples, and what makes one good."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from row 0', min=1, max=1000
        )
        samples: int = option(15, 'N, samples of each decision', min=2, max=256)
        beta: float = option(
            0.5, 'weight of a row in comparison to the row before it', min=0.0, max=1.0
        )
        keep: int = option(
            5, 'nearest samples that the forward contrast chooses from', min=1, max=256
        )

    needs = ('samples',)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('bid', self.config.horizon)
        self.n_samples = self.config.samples

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy.

        :raises ConfigError: rows of different chunks can't be compared
        """
        super().configure(spec)
        Blender(spec.space)
        self._half_range = np.subtract(spec.space.upper, spec.space.lower) / 2.0
        self._contrasts = 'weak_samples' in spec.capabilities

    def rows(self, chunk: ActionChunk, state: ExecutionState) -> F32:
        """
        Return the best of ``chunk.samples``.

        :raises InvalidDataError: not the samples that were asked for
        """
        strong, weak = self._split(chunk)
        if state.previous is not None:
            distance = self._coherence(strong, state.previous, state.late_rows)
            kept = np.argsort(distance, kind='stable')[: self.config.keep]
        else:
            kept = np.arange(len(strong))
        if weak is None:
            best = int(kept[0])  # the policy's own decision where there is no plan
        else:
            if state.previous is not None:
                far = self._coherence(weak, state.previous, state.late_rows)
                weak = weak[np.argsort(far, kind='stable')[: self.config.keep]]
            best = int(kept[np.argmin(_contrast(strong[kept], weak))])
        assert chunk.samples is not None
        chosen: F32 = chunk.samples[best]
        return chosen

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')

    def _split(self, chunk: ActionChunk) -> tuple[F64, F64 | None]:
        """Return strong and weak samples (N, H, A) in units of half the range."""
        wanted = self.n_samples * (2 if self._contrasts else 1)
        found = 0 if chunk.samples is None else len(chunk.samples)
        if chunk.samples is None or found != wanted:
            raise InvalidDataError(f'{found} samples, asked for {wanted}')
        scaled = chunk.samples / self._half_range
        strong = scaled[: self.n_samples]
        return strong, scaled[self.n_samples :] if self._contrasts else None

    def _coherence(self, samples: F64, previous: F32, late: int) -> F64:
        """Return the distance of each sample to the plan in force, shape (N,)."""
        gaps = np.linalg.norm(samples - previous / self._half_range, axis=2)
        age = np.arange(len(previous)) - late
        weights = np.where(age >= 0, self.config.beta ** np.maximum(age, 0.0), 0.0)
        distances: F64 = np.where(np.isfinite(gaps), gaps, 0.0) @ weights
        return distances


def _contrast(strong: F64, weak: F64) -> F64:
    """Return how far each strong sample is from the strong ones, less that from weak ones."""
    result: F64 = _mean_distance(strong, strong) - _mean_distance(strong, weak)
    return result


def _mean_distance(samples: F64, others: F64) -> F64:
    gaps = np.linalg.norm(samples[:, None] - others[None], axis=3)
    mean: F64 = gaps.sum(axis=2).mean(axis=1)
    return mean
