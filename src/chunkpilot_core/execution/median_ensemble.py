"""
Median ensembling: each column of a row is the median of what overlapping chunks say for it.

The robust sibling of ACT's temporal ensembling (arXiv 2304.13705): one chunk that has gone astray
does not pull the others along. Differs from it in the gripper, too, whose median is taken over an
odd number of predictions, so that it is always one that was predicted.
"""

from dataclasses import dataclass

from chunkpilot_core.execution.runtime.overlap import OverlapConfig, Overlapping
from chunkpilot_core.types import F32
import numpy as np


class MedianEnsemble(Overlapping):
    """Runs the median of overlapping chunks."""

    @dataclass(frozen=True)
    class Config(OverlapConfig):
        """How many chunks to look at."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('median_ensemble', self.config)

    def blend(self, predictions: F32) -> F32:
        """Return the median of the predictions (L, A), column by column."""
        rows = self.newest(predictions)
        odd = rows[1 - len(rows) % 2 :]  # without the oldest where the number is even
        median = np.median(self.blender.aligned(rows), axis=0)
        return self.blender.finished(median, np.median(odd, axis=0).astype(np.float32))
