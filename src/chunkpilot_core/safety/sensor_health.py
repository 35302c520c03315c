"""
An observation that perception calls bad may not drive the arm (D4 to D6 find, this reacts).

Only a policy is driven by observations: a hand may lead the arm away from a camera that is dark,
and demonstrations are recorded at their own pace.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Health, Id, Reaction


class SensorHealth(Check):
    """Holds after several bad observations in a row, slows down where images are missing."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Hysteresis."""

        count: int = option(3, 'bad observations in a row that hold', min=1, max=100)
        dropped_scale: float = option(
            0.5, 'speed scale while images are missing', min=0.05, max=1.0
        )

    name = 'sensor_health'
    order = 6
    stage = Stage.INPUT
    config: Config
    _bad = 0
    _last = Id()

    def check(self, situation: Situation) -> Finding | None:
        """Count observations, not ticks."""
        observation = situation.observation
        if observation is None:
            return None
        if observation.id != self._last:
            self._last = observation.id
            self._bad = self._bad + 1 if observation.health is Health.BAD else 0
        if not (situation.silence_matters and situation.policy_drives):
            return None
        if self._bad < self.config.count:
            return self._dropped(observation.dropped)
        reason = (
            f'{self._bad} bad observations in a row: {observation.health_reason or "no reason"}'
        )
        value, limit, frozen = float(self._bad), float(self.config.count), bool(observation.frozen)
        return Finding(Reaction.HOLD, reason, 'observation', value, limit, escalate=frozen)

    def _dropped(self, cameras: tuple[str, ...]) -> Finding | None:
        if not cameras:
            return None
        reason, scale = f'images of {", ".join(cameras)} are missing', self.config.dropped_scale
        return Finding(Reaction.SLOW, reason, cameras[0], scale=scale)

    def reset(self) -> None:
        """Start counting anew."""
        self._bad = 0
