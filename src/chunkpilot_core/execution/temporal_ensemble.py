"""
Temporal ensembling of ACT (arXiv 2304.13705): a row is the mean of what all chunks say for it.

Weights are w_i = exp(-m i) with w_0 for the oldest prediction, so a small m takes newer ones in
more. Differs from ACT: chunks are asked for every few rows, not at each; the gripper is that of
the newest chunk, because a mean of open and closed is neither.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.execution.runtime.overlap import OverlapConfig, Overlapping
from chunkpilot_core.types import F32
import numpy as np


class TemporalEnsemble(Overlapping):
    """Runs the exponentially weighted mean of overlapping chunks."""

    @dataclass(frozen=True)
    class Config(OverlapConfig):
        """How to weigh."""

        decay: float = option(0.01, 'm: weight of the i-th oldest is exp(-m i)', min=0.0, max=10.0)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('temporal_ensemble', self.config)

    def blend(self, predictions: F32) -> F32:
        """Return the weighted mean of the predictions (L, A)."""
        rows = self.newest(predictions)
        weights = np.exp(-self.config.decay * np.arange(len(rows)))
        mean = weights @ self.blender.aligned(rows) / weights.sum()
        return self.blender.finished(mean, rows[-1])
