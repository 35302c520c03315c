"""Silence of the sender, and rows whose observation is too old, hold the arm (D2)."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction, seconds


class Staleness(Check):
    """Looks at the age of the newest accepted command and of the observation behind its row."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Ages."""

        command_s: float = option(
            0.20, 'silence of the sender, after commands flowed', unit='s', min=0.02, max=5.0
        )
        row_extra_s: float = option(
            0.2, "beyond the policy's own max_row_age_s", unit='s', min=0.0, max=5.0
        )

    name = 'staleness'
    order = 5
    stage = Stage.INPUT
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Compare ages with their limits."""
        command, flow = situation.flow.accepted, situation.flow
        if command is None or not situation.silence_matters:
            return None
        silent_s = seconds(situation.now_ns - flow.accepted_ns)
        if silent_s > self.config.command_s:
            reason = f'no acceptable command for {silent_s:.3f} s'
            return Finding(Reaction.HOLD, reason, 'command', silent_s, self.config.command_s)
        if command.row < 0 or not command.observation_stamp_ns:
            return None
        cap_s = situation.robot.max_row_age_s
        limit_s = min(command.max_row_age_s or cap_s, cap_s) + self.config.row_extra_s
        age_s = seconds(situation.now_ns - command.observation_stamp_ns)
        if age_s <= limit_s:
            return None
        reason = f'row {command.row} rests on an observation {age_s:.2f} s old'
        return Finding(Reaction.HOLD, reason, 'row', age_s, limit_s)
