"""The tool stays in its box, also where it would come to rest if it braked now."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction
import numpy as np


class Workspace(Check):
    """
    Brakes as long as braking ends inside, so the tool stops at the wall; leaving it is free.

    Cartesian targets outside are moved onto the wall before (and reported here), so that the tool
    slides along it.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Rounding."""

        tolerance_m: float = option(
            0.0005, 'of the braking path, which is curved', unit='m', min=0.0, max=0.01
        )

    name = 'workspace'
    order = 9
    stage = Stage.MOTION
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Look at the tool now, next and at rest, worst axis first."""
        proposal, robot = situation.proposal, situation.robot
        if proposal is None:
            return None
        lower, upper = np.array(robot.workspace_lower), np.array(robot.workspace_upper)
        now = np.maximum(lower - proposal.tool, proposal.tool - upper)
        worst = -1
        for tool in (proposal.next_tool, proposal.stop_tool):
            beyond = np.maximum(lower - tool, tool - upper)
            deeper = (beyond > self.config.tolerance_m) & (beyond > now + 1e-6)
            if deeper.any():
                worst = int(np.argmax(np.where(deeper, beyond, -np.inf)))
                value = float(tool[worst])
        if worst < 0:
            return proposal.clipped
        axis = 'xyz'[worst]
        limit = float(upper[worst] if value > upper[worst] else lower[worst])
        return Finding(
            Reaction.SLOW,
            f'tool would come to rest at {axis} = {value:.4f} m, workspace ends at {limit:.4f} m',
            f'tool.{axis}',
            value,
            limit,
            brake=True,
        )
