"""
Learned horizon (PolicyTrim, arXiv 2606.22540): the policy says how many rows it can be trusted.

PolicyTrim samples the executed length while it learns and rewards success the more the longer it
is; what comes of it is a head that names the length, sent with each chunk as the diagnostic
``trusted_rows``. Here the number is rounded down and kept between h and the chunk's end.
"""

from dataclasses import dataclass
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, HorizonDecision

TRUSTED_ROWS = 'trusted_rows'


class Trim(Strategy):
    """Runs as many rows as the policy's horizon head says."""

    @dataclass(frozen=True)
    class Config:
        """What runs in any case."""

        horizon: int = option(
            2, 'rows of each chunk that always run, counted from row 0', min=1, max=1000
        )

    needs = (TRUSTED_ROWS,)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__('trim', (config or self.Config()).horizon)

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """
        Return what the head says.

        :raises InvalidDataError: it says nothing, or no finite number
        """
        trusted = chunk.diagnostics.get(TRUSTED_ROWS, math.nan)
        if not math.isfinite(trusted):
            raise InvalidDataError(
                f'diagnostic {TRUSTED_ROWS!r} of the chunk is {trusted}, must be a number'
            )
        if trusted < self.base:
            return HorizonDecision(chunk.id, self.name, self.base, self.base, 'base')
        chosen = min(math.floor(trusted), chunk.horizon)
        reason = 'end of chunk' if chosen == chunk.horizon else TRUSTED_ROWS
        return HorizonDecision(chunk.id, self.name, self.base, chosen, reason)
