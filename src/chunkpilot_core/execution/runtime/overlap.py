"""What strategies share that run an average of overlapping chunks: they ask every few rows."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime.blending import Blender
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    F32,
    HorizonDecision,
    nanoseconds,
    PolicySpec,
)


@dataclass(frozen=True)
class OverlapConfig:
    """How often to ask, and how many predictions to look at."""

    horizon: int = option(
        8, 'rows of each chunk that run when no newer one comes', min=1, max=1000
    )
    every: int = option(
        1, 'rows between two requests; the policy may take longer', min=1, max=1000
    )
    chunks: int = option(8, 'predictions of a row that are looked at', min=1, max=32)


class Overlapping(Strategy):
    """Asks again long before the horizon; a member says how predictions become a row."""

    def __init__(self, name: str, config: OverlapConfig) -> None:
        super().__init__(name, config.horizon)
        self.overlap = config
        self._asked_ns: int | None = None

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy.

        :raises ConfigError: chunks would never overlap, or their rows can't be averaged
        """
        super().configure(spec)
        if self.overlap.every >= spec.horizon:
            raise ConfigError(
                f'strategy {self.name!r}: every {self.overlap.every} rows a chunk of '
                f'{spec.horizon} rows; they never overlap, at most {spec.horizon - 1} is allowed'
            )
        self.blender = Blender(spec.space)
        self._period_ns = nanoseconds(self.overlap.every * spec.dt_s)

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')

    def wants_chunk(self, state: ExecutionState) -> bool:
        """Return whether ``every`` rows have passed; a clock that jumped back counts as that."""
        if self._asked_ns is None:
            return True
        return not 0 <= state.now_ns - self._asked_ns < self._period_ns

    def ask(self, request: ChunkRequest) -> ChunkRequest:
        """Note when was asked, for whatever reason."""
        self._asked_ns = request.stamp_ns
        return request

    def newest(self, predictions: F32) -> F32:
        """Return the predictions (L, A) that are looked at, the newest last."""
        rows: F32 = predictions[-self.overlap.chunks :]
        return rows
