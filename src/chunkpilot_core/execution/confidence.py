"""
Confidence (Jetson-PI): go on with the action expert alone until the policy doubts its foresight.

A full round encodes the scene; later rounds run the action expert alone (``mode`` "act") on what a
small module predicts of it, which also says how sure it is. kappa is the mean over the rows of
``chunk.confidence``, minus the predicted log-variance; when it has fallen by more than 0.2 below
that of the full round, the whole policy is asked at once. A policy without mode "act" is always
asked for a full round, and its doubt only makes the next one come earlier.
"""

from dataclasses import dataclass, replace

from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.types import ActionChunk, ChunkRequest, HorizonDecision, Id, PolicySpec
import numpy as np


class Confidence(Strategy):
    """Runs h rows of each chunk, and has everything replanned when the confidence falls."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and how much doubt is too much."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from row 0', min=1, max=1000
        )
        drop: float = option(
            0.2,
            'fall of the mean confidence since the last full round that has everything replanned',
            min=0.0,
            max=1000.0,
        )

    needs = ('confidence',)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('confidence', self.config.horizon)
        self._acts = False
        self._forget()

    def _forget(self) -> None:
        self._yardstick: float | None = None  # kappa of the full round, None = not answered yet
        self._round = Id()  # request of the full round
        self._doubts = False

    def configure(self, spec: PolicySpec) -> None:
        """Get ready for a policy, which has not encoded anything yet."""
        super().configure(spec)
        self._acts = 'act' in spec.capabilities
        self._forget()

    def ask(self, request: ChunkRequest) -> ChunkRequest:
        """Ask for the action expert alone while a full round holds, else for a full one."""
        # After a start, a stop or an interrupt the scene is another one.
        if request.reason == 'horizon' and self._yardstick is not None and not self._doubts:
            return replace(request, mode='act') if self._acts else request
        self._forget()
        self._round = request.id
        return request

    def wants_chunk(self, state: ExecutionState) -> bool:
        """Return whether the confidence has fallen and nothing was asked for since."""
        return self._doubts

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """
        Return h, and note how sure the policy is.

        :raises InvalidDataError: the chunk comes without a finite confidence
        """
        if chunk.confidence is None or not np.all(np.isfinite(chunk.confidence)):
            raise InvalidDataError('no finite confidence in the chunk')
        kappa, reason = float(np.mean(chunk.confidence)), 'confident'
        if chunk.request_id == self._round:
            self._yardstick, reason = kappa, 'full round'
        elif self._yardstick is not None and kappa < self._yardstick - self.config.drop:
            self._doubts, reason = True, 'confidence fell'
        return HorizonDecision(chunk.id, self.name, self.base, self.base, reason)
