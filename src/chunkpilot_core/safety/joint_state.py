"""The measured joints must be complete, finite, recent and alive (D1 to D3)."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction, seconds


class JointStateCheck(Check):
    """Holds on a state that can't be trusted, stops when it stays away."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Ages and how long a bit-identical state is believed."""

        hold_s: float = option(0.10, 'age that holds', unit='s', min=0.01, max=10.0)
        stop_s: float = option(1.0, 'age that stops', unit='s', min=0.05, max=60.0)
        future_s: float = option(0.05, 'stamp ahead of the clock', unit='s', min=0.0, max=1.0)
        frozen_s: float = option(
            0.3, 'bit-identical positions while motion is commanded', unit='s', min=0.05, max=10.0
        )
        frozen_speed: float = option(
            0.05,
            'commanded joint speed above which they should change',
            unit='rad/s',
            min=0.001,
            max=1.0,
        )

    name = 'joint_state'
    order = 3
    stage = Stage.INPUT
    config: Config
    _moving_since_ns = 0

    def check(self, situation: Situation) -> Finding | None:
        """Look at the newest state and the newest valid one."""
        config, measured = self.config, situation.measured
        if measured is None:
            reason = situation.joint_error or 'no joint state yet'
            return Finding(Reaction.HOLD, reason, 'joint_states')
        age_s = seconds(situation.now_ns - measured.stamp_ns)
        if age_s > config.stop_s:
            reason = f'newest valid joint state is {age_s:.2f} s old'
            return Finding(Reaction.STOP, reason, 'joint_states', age_s, config.stop_s)
        if situation.joint_error:
            return Finding(Reaction.HOLD, situation.joint_error, 'joint_states')
        if age_s > config.hold_s:
            reason = f'joint state is {age_s:.3f} s old'
            return Finding(Reaction.HOLD, reason, 'joint_states', age_s, config.hold_s)
        if age_s < -config.future_s:
            reason = f'joint state is stamped {-age_s:.3f} s in the future'
            return Finding(Reaction.HOLD, reason, 'joint_states', age_s, config.future_s)
        return self._frozen(situation)

    def _frozen(self, situation: Situation) -> Finding | None:
        measured, config = situation.measured, self.config
        assert measured is not None
        if situation.commanded_speed <= config.frozen_speed:
            self._moving_since_ns = 0
            return None
        self._moving_since_ns = self._moving_since_ns or situation.now_ns
        since_ns = max(measured.changed_ns, self._moving_since_ns)
        still_s = seconds(situation.now_ns - since_ns)
        if still_s <= config.frozen_s:
            return None
        reason = f'joint positions frozen for {still_s:.2f} s while motion is commanded'
        return Finding(Reaction.HOLD, reason, 'joint_states', still_s, config.frozen_s)

    def reset(self) -> None:
        """Forget since when motion is commanded."""
        self._moving_since_ns = 0
