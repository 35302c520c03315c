"""What is known of the surroundings gets old: then the arm goes slowly, and then not at all."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction, seconds

AHEAD_S = 0.05  # clocks of two machines differ by this


class Obstacles(Check):
    """Matters once somebody has told of obstacles, or is required to."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How old, and how slow."""

        required: bool = option(False, 'no arming before obstacles have been told')
        slow_after_s: float = option(
            0.5, 'older obstacles slow the arm', unit='s', min=0.05, max=60.0
        )
        hold_after_s: float = option(2.0, 'older obstacles hold it', unit='s', min=0.05, max=60.0)
        scale: float = option(0.25, 'of the speed, while obstacles are old', min=0.01, max=1.0)

    name = 'obstacles'
    order = 10
    stage = Stage.INPUT
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Compare their age with the limits."""
        age_s = self._age_s(situation)
        if age_s is None or -AHEAD_S <= age_s <= self.config.slow_after_s:
            return None
        if age_s > self.config.hold_after_s or age_s < -AHEAD_S:
            limit = self.config.hold_after_s
            reason = f'obstacles are {age_s:.2f} s old, limit {limit:g} s{_why(situation)}'
            return Finding(Reaction.HOLD, reason, 'obstacles', age_s, limit)
        limit = self.config.slow_after_s
        reason = f'obstacles are {age_s:.2f} s old, slow after {limit:g} s{_why(situation)}'
        return Finding(Reaction.SLOW, reason, 'obstacles', age_s, limit, scale=self.config.scale)

    def why_not_arm(self, situation: Situation) -> str:
        """Refuse to arm among surroundings that nobody knows."""
        if situation.obstacles is None:
            missing = 'obstacles are required and nobody has told any'
            return missing + _why(situation) if self.config.required else ''
        found = self.check(situation)
        return found.reason if found is not None and found.reaction is Reaction.HOLD else ''

    def _age_s(self, situation: Situation) -> float | None:
        told = situation.obstacles
        if told is None or told.lasting:
            return None
        return seconds(situation.now_ns - told.stamp_ns)


def _why(situation: Situation) -> str:
    return f' ({situation.obstacles_error})' if situation.obstacles_error else ''
