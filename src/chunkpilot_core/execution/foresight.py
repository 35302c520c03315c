"""
Future state (VLASH, arXiv 2512.01031): plan from where the arm will be, not from where it was.

The state in the observation is replaced by that of the last committed row, and the chunk starts
when that row has run, so that no row of it is late and it goes on where the old one ends. What the
scene does until then stays unknown; only an object in the hand is moved along.
"""

from dataclasses import dataclass, replace

from chunkpilot_core.config import option
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, ChunkRequest, HorizonDecision


class Foresight(Strategy):
    """Runs h rows of chunks that were predicted from the robot's state at their start."""

    @dataclass(frozen=True)
    class Config:
        """How far to run."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from its start', min=1, max=1000
        )

    needs = ('future_state',)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__('foresight', (config or self.Config()).horizon)

    def ask(self, request: ChunkRequest) -> ChunkRequest:
        """Ask for a chunk from the state at ``request.start_ns``."""
        return replace(request, state_at_start=True)

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')
