"""
Action Upcycling (arXiv 2609.34911): run on while the predicted motion stays smooth.

Past the base horizon h rows are executed as long as the accumulated change of velocity stays at or
below tau; tau is the quantile of past signals at which r h rows run on average. What differs here:
velocities are scaled by the space's limits, a change of the gripper ends the extension, a chunk
without motion runs h rows only, and tau comes from a bounded online pool or a calibration file.
"""

from dataclasses import dataclass, replace

from chunkpilot_core import smoothness
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import calibration
from chunkpilot_core.execution.runtime.calibration import Calibration
from chunkpilot_core.types import ActionChunk, F32, F64, HorizonDecision, Kind, PolicySpec
import numpy as np

STILL = 1e-3  # of the velocity limits; below it a chunk is at rest


class Upcycling(Strategy):
    """Runs h rows, and more while the motion is smooth; r says how many on average."""

    @dataclass(frozen=True)
    class Config:
        """How far to run, and what counts as smooth."""

        horizon: int = option(8, 'base horizon h: rows that always run', min=1, max=1000)
        ratio: float = option(
            1.5, 'r: about r h rows run on average; 1 or less runs h', min=0.0, max=1000.0
        )
        pool: int = option(
            64, 'past chunks whose signals give the threshold online', min=5, max=4096
        )
        min_pool: int = option(5, 'with fewer chunks in the pool h rows run', min=1, max=4096)
        calibration: str = option(
            '', 'file of `chunkpilot calibrate upcycling`; empty = calibrate online'
        )
        gripper_gate: bool = option(True, 'end the extension where the gripper changes')
        gripper_change: float = option(
            0.2, 'what counts as a change, as a fraction of the range', min=0.0, max=1.0
        )

        def __post_init__(self) -> None:
            if self.min_pool > self.pool:  # it would never be full enough
                raise ConfigError(
                    f'upcycling.min_pool: {self.min_pool}, allowed up to pool, {self.pool}'
                )

    def __init__(self, config: Config | None = None, name: str = 'upcycling') -> None:
        self.config = config or self.Config()
        super().__init__(name, self.config.horizon)
        self.ratio = self.config.ratio
        self._calibration = (
            calibration.load(self.config.calibration) if self.config.calibration else None
        )
        self._spec: PolicySpec | None = None

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy; a pool of another policy is dropped, one of an older version kept.

        :raises ConfigError: calibrated for another policy, base horizon or action space
        """
        super().configure(spec)
        if self._calibration is not None:
            self._calibration.check(spec, self.base)
        if (
            self._spec is not None
            and replace(self._spec, version=spec.version, manifest_sha256=spec.manifest_sha256)
            == spec
        ):
            return
        self._spec = spec
        self._scale = smoothness.motion_scale(spec.space, spec.dt_s)
        self._signals = np.zeros((self.config.pool, spec.horizon - self.base))
        self._count = 0
        self._grippers = np.flatnonzero(
            [g.kind is Kind.GRIPPER for g in spec.space.groups for _ in range(g.size)]
        )
        span = np.subtract(spec.space.upper, spec.space.lower)
        self._gripper_step = self.config.gripper_change * span[self._grippers]

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return max{k in [h, H] : c_k <= tau}."""
        return self.decide(chunk, self.velocities(chunk.actions, state))

    def velocities(self, actions: F32, state: ExecutionState) -> F64:
        """Return the velocities (H, M) of rows (H, A) in fractions of the limits."""
        return smoothness.velocities(self._scale, actions, state.last_row)

    def decide(self, chunk: ActionChunk, velocity: F64) -> HorizonDecision:
        """Decide by the velocities (H, M) of a chunk, and remember their signal."""
        signal = smoothness.fluctuation(velocity, self.base)
        moving = max(velocity.max(initial=0.0), -velocity.min(initial=0.0)) > STILL
        tau = self._threshold()
        chosen, reason = self._choose(chunk, signal, tau, moving)
        if moving and chunk.final:  # coarse rows of one that is being refined teach nothing
            self._signals[self._count % len(self._signals)] = signal
            self._count += 1
        return HorizonDecision(
            chunk.id,
            self.name,
            self.base,
            chosen,
            reason,
            signal.astype(np.float32),
            0.0 if tau is None else tau,
        )

    def calibration(self) -> Calibration:
        """
        Return what the pool has seen, to be kept in a file.

        :raises ConfigError: no policy yet, or too few chunks
        """
        return calibration.make(self._spec, self.base, self._pool())

    def _pool(self) -> F64:
        return self._signals[: self._count]

    def _threshold(self) -> float | None:
        """Return tau, or None while too little is known or nothing is to be extended."""
        if self.ratio <= 1.0:
            return None
        if self._calibration is not None:
            return self._calibration.threshold(self.ratio)
        pool = self._pool()
        if len(pool) < self.config.min_pool:
            return None
        return smoothness.threshold(pool, len(pool), self.base, self.ratio)

    def _choose(
        self, chunk: ActionChunk, signal: F64, tau: float | None, moving: bool
    ) -> tuple[int, str]:
        if tau is None:
            return self.base, 'base' if self.ratio <= 1.0 else 'calibrating'
        if not moving:
            return self.base, 'no motion'
        smooth = smoothness.longest(signal, self.base, tau)
        if self.config.gripper_gate and smooth > self.base and len(self._grippers):
            gate = self._gripper_gate(chunk.actions)
            if gate < smooth:
                return gate, 'gripper'
        return smooth, 'end of chunk' if smooth == chunk.horizon else 'fluctuation'

    def _gripper_gate(self, actions: F32) -> int:
        """Return how many rows run before the gripper leaves where it is at the base horizon."""
        grip = actions[self.base - 1 :, self._grippers]
        changed = (np.abs(grip - grip[0]) > self._gripper_step).any(axis=1)
        return self.base + int(changed.argmax()) - 1 if changed.any() else len(actions)
