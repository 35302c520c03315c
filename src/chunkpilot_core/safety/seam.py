"""Where a chunk of absolute rows begins must be reachable from where the arm is (D7)."""

from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import ActionGroup, F64, JointState, Kind, Reaction
import numpy as np


class Seam(Check):
    """
    Rejects a chunk whose first row is too far away; the limiter blends what is not.

    Rows of relative kinds begin where the arm is, whatever they say.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How far is too far."""

        rows: float = option(
            2.0, 'distance at full speed that is no jump', unit='rows', min=1.0, max=100.0
        )
        joints: float = option(0.1, 'jump that is rejected', unit='rad', min=0.01, max=3.0)
        tool: float = option(0.05, 'jump that is rejected', unit='m', min=0.001, max=1.0)

    name = 'seam'
    order = 12
    stage = Stage.CHUNK
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Look at the row that is due."""
        space, heard = situation.space, situation.chunks[-1]
        if space is None or heard.targets is None or situation.commanded is None:
            return None
        if all(g.kind.relative or g.kind is Kind.GRIPPER for g in space.groups):
            return None
        names = situation.robot.joints
        state = JointState(0, names, situation.commanded, np.zeros(len(names)))
        here = spaces.from_joints(space, situation.kinematics, state)
        worst: Finding | None = None
        for group, columns in spaces.target_slices(space):
            if group.kind not in (Kind.JOINT_POSITION, Kind.EE_POSE):
                continue
            jump = np.abs(heard.targets[0][columns] - here[columns])
            speed = np.array(space.max_velocity[group.start : group.stop])
            reach = self.config.rows * speed * heard.chunk.dt_s
            found = self._jump(group, jump, reach)
            if found is not None and (worst is None or found.reaction > worst.reaction):
                worst = found
        return worst

    def _jump(self, group: ActionGroup, jump: F64, reach: F64) -> Finding | None:
        joints = group.kind is Kind.JOINT_POSITION
        size = len(jump) if joints else 3  # orientations are the limiter's business
        beyond = np.where(jump[:size] > reach[:size], jump[:size], 0.0)
        worst = int(np.argmax(beyond))
        if beyond[worst] <= 0.0:
            return None
        limit, unit = (self.config.joints, 'rad') if joints else (self.config.tool, 'm')
        value = float(jump[worst])
        name = group.names[worst] if len(group.names) == len(jump) else f'{group.name}[{worst}]'
        reason = f'the chunk begins {value:.3f} {unit} from where the arm is'
        if value < limit:
            return Finding(Reaction.CLAMP, f'{reason}: blended', name, value, limit)
        return Finding(Reaction.REJECT_CHUNK, reason, name, value, limit)
