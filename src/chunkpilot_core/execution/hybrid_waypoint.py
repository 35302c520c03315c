"""
Hybrid way points (HYDRA, arXiv 2306.17237): far way points or dense actions, a mode per row.

A policy with a mode head says of each row how probably it is a way point (``chunk.waypoint``). The
rows up to a way point are replaced by an even motion to it, so that only way points have to be
right on long reaches; a run of way points is executed as it is, densely. Differs from HYDRA: the
mode comes for each row of a chunk instead of once per decision, and the time to a way point is the
one at which the chunk has it. Demonstrations are relabelled by ``waypoints.straightened``.
"""

from dataclasses import dataclass

from chunkpilot_core import waypoints
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, F32, HorizonDecision, PolicySpec
import numpy as np


class HybridWaypoint(Strategy):
    """Runs h rows, evenly from way point to way point."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and what a way point is."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from row 0', min=1, max=1000
        )
        threshold: float = option(
            0.5, 'probability from which on a row is a way point', min=0.0, max=1.0
        )

    needs = ('waypoints',)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('hybrid_waypoint', self.config.horizon)

    def configure(self, spec: PolicySpec) -> None:
        """Get ready for a policy; see :meth:`Strategy.configure`."""
        super().configure(spec)
        self._space = spec.space

    def rows(self, chunk: ActionChunk, state: ExecutionState) -> F32:
        """
        Return the rows with straight ways between way points.

        :raises InvalidDataError: the chunk does not say which rows are way points
        """
        marked = chunk.waypoint
        if marked is None or marked.shape != (chunk.horizon,) or not np.all(np.isfinite(marked)):
            raise InvalidDataError(
                f'chunk of {chunk.horizon} rows without a finite way point probability for each'
            )
        return waypoints.straightened(
            self._space, chunk.actions, marked >= self.config.threshold, state.last_row
        )

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')
