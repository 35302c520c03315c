"""ROS time must go forwards at about its own pace: a jump makes every stamp meaningless."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction, seconds


class Clock(Check):
    """Compares ROS time with the steady clock from tick to tick."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How far the clocks may part."""

        jump_s: float = option(1.0, 'jump forwards within a tick', unit='s', min=0.05, max=60.0)
        stopped_s: float = option(
            0.5, 'ROS time that stands still this long', unit='s', min=0.05, max=60.0
        )

    name = 'clock'
    order = 2
    stage = Stage.INPUT
    config: Config
    _stopped_at_ns = 0

    def check(self, situation: Situation) -> Finding | None:
        """Compare with the tick before."""
        if not situation.last_ns:
            return None
        passed_s = seconds(situation.now_ns - situation.last_ns)
        steady_s = seconds(situation.steady_ns - situation.last_steady_ns)
        if passed_s < 0.0 or passed_s - steady_s > self.config.jump_s:
            return Finding(
                Reaction.HOLD,
                f'ROS time jumped by {passed_s:.3f} s within {steady_s:.3f} s',
                'clock',
                passed_s,
                self.config.jump_s,
                flush=True,
            )
        if passed_s > 0.0 or not self._stopped_at_ns:
            self._stopped_at_ns = situation.steady_ns
        still_s = seconds(situation.steady_ns - self._stopped_at_ns)
        if still_s > self.config.stopped_s:
            reason = f'ROS time has stood still for {still_s:.2f} s'
            return Finding(Reaction.HOLD, reason, 'clock', still_s, self.config.stopped_s)
        return None
