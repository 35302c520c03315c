"""
Per-row corrector (ACPPO-Corr; also A2C2, arXiv 2509.23224): look once more before each row.

A chunk is as old as its observation. Just before a row runs, a small perceptron reads the newest
observation and the row, and adds a correction within a bound: row + clip(W(observation, row)).
Evaluated in numpy in the control loop; ``execution/runtime/correction.py`` describes the file.
Where an input is unknown, or the answer not finite, the row runs as it was predicted.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import correction
from chunkpilot_core.types import ActionChunk, F32, HorizonDecision, Observation, PolicySpec
import numpy as np


class Corrector(Strategy):
    """Runs h rows of each chunk, each corrected by the newest observation."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and what corrects."""

        horizon: int = option(
            8, 'rows of each chunk that run, counted from row 0', min=1, max=1000
        )
        file: str = option('', 'corrector, a .safetensors file; must be given')

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('corrector', self.config.horizon)

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy.

        :raises ConfigError: no corrector, a damaged one, or one for something else
        """
        super().configure(spec)
        if not self.config.file:
            raise ConfigError("strategy 'corrector': file is '', a corrector must be named")
        self._network = correction.load(self.config.file)
        self._network.check(spec.space, spec.input_names)
        self._bounds = (np.array(spec.space.lower), np.array(spec.space.upper))

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h."""
        return HorizonDecision(chunk.id, self.name, self.base, self.base, 'fixed')

    def correct(self, row: F32, observation: Observation) -> F32:
        """Return the row plus its correction, within the space's bounds."""
        known = {*observation.state_names, *observation.feature_names, *observation.goal_names}
        if not known.issuperset(self._network.inputs):
            return row
        values = observation.vector(self._network.inputs)
        if not np.all(np.isfinite(values)):
            return row
        corrected: F32 = np.clip(row + self._network(values, row), *self._bounds)
        if not np.all(np.isfinite(corrected)):  # finite weights may overflow
            return row
        return corrected.astype(np.float32)
