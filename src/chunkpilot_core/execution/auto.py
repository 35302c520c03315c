"""
Action Upcycling with a ratio that finds itself.

Where a new chunk speaks of times that the plan in force spoke of too, the two disagree, the more
the longer ago that plan was made. What a ratio r does to this depends on policy, robot and task,
so r is moved until the mean disagreement is the wanted one: what Upcycling's user would do by
trial. Its rule (arXiv 2609.34911) is used unchanged, as are the cap on the age of rows and the
surprise interrupt, after which overlaps say nothing and are not counted.
"""

from dataclasses import dataclass
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, F64, HorizonDecision, PolicySpec
import numpy as np


class Auto(Upcycling):
    """Runs h rows, and more while the motion is smooth and replanning changes little."""

    @dataclass(frozen=True)
    class Config(Upcycling.Config):
        """How far replanned rows may be from discarded ones; ``ratio`` is where r begins."""

        target: float = option(
            0.05,
            'wanted disagreement of replanned and old rows, in fractions of the velocity limits',
            min=0.0001,
            max=10.0,
        )
        min_ratio: float = option(1.0, 'smallest r', min=1.0, max=1000.0)
        max_ratio: float = option(1.8, 'largest r', min=1.0, max=1000.0)
        gain: float = option(
            0.1, 'r changes by this share when a chunk is off by the target', min=0.001, max=1.0
        )

        def __post_init__(self) -> None:
            Upcycling.Config.__post_init__(self)
            if not self.min_ratio <= self.ratio <= self.max_ratio:
                raise ConfigError(
                    f'auto.ratio: {self.ratio}, allowed min_ratio {self.min_ratio} to max_ratio '
                    f'{self.max_ratio}'
                )

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config(), 'auto')

    def configure(self, spec: PolicySpec) -> None:
        """See :meth:`Upcycling.configure`; r begins anew with its pool."""
        before = self._spec
        super().configure(spec)
        if self._spec is not before:
            self.ratio = self.config.ratio

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Move r towards the target, then decide as Upcycling."""
        velocity = self.velocities(chunk.actions, state)
        found = self.disagreement(velocity, state)
        if found is not None:
            off = max(-1.0, min(1.0, (self.config.target - found) / self.config.target))
            ratio = self.ratio * math.exp(self.config.gain * off)
            self.ratio = max(self.config.min_ratio, min(self.config.max_ratio, ratio))
        return self.decide(chunk, velocity)

    def disagreement(self, velocity: F64, state: ExecutionState) -> float | None:
        """
        Return how far a chunk's velocities (H, M) are from those of the plan in force, on average.

        :returns: fraction of the velocity limits; None where the two have no rows in common
        """
        if state.previous is None:
            return None
        apart = velocity - self.velocities(state.previous, state)
        squares = np.einsum('ij,ij->i', apart, apart)
        known = squares[squares == squares]  # not NaN
        return float(np.sqrt(known).mean()) if len(known) else None
