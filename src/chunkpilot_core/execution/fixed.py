"""
Fixed horizon: run the first h rows of every chunk, whatever they are.

The receding horizon of ACT (arXiv 2304.13705) and diffusion policies (arXiv 2303.04137), where it
is called ``n_action_steps``; the yardstick for every other strategy.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, HorizonDecision


class Fixed(Strategy):
    """Runs h rows of each chunk."""

    @dataclass(frozen=True)
    class Config:
        """How far to run."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from row 0', min=1, max=1000
        )

    def __init__(self, config: Config | None = None) -> None:
        super().__init__('fixed', (config or self.Config()).horizon)

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')
