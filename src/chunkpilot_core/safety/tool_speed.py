"""The tool point is not faster than the robot's file allows."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction
import numpy as np


class ToolSpeed(Check):
    """Slows all joints together until the tool is slow enough."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Whether people are near, and rounding."""

        reduced: bool = option(False, 'reduced speed: somebody may be within reach')
        reduced_speed: float = option(
            0.25, 'limit of the tool at reduced speed', unit='m/s', min=0.01, max=1.0
        )
        tolerance: float = option(1e-6, 'of the speed', unit='m/s', min=0.0, max=0.1)

    name = 'tool_speed'
    order = 9
    stage = Stage.MOTION
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Compare the tool's next displacement with the limit."""
        proposal = situation.proposal
        limit = min(situation.robot.max_tool_speed, situation.tool_speed_limit)
        if proposal is None:
            return None
        if self.config.reduced:
            limit = min(limit, self.config.reduced_speed)
        moved = float(np.linalg.norm(proposal.next_tool - proposal.tool))
        speed = moved / situation.dt_s
        if speed <= limit + self.config.tolerance:
            return None
        return Finding(
            Reaction.SLOW,
            f'tool would move at {speed:.3f} m/s, limit {limit:.3f} m/s',
            'tool',
            speed,
            limit,
            scale=limit / speed,
        )
