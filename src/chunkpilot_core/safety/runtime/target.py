"""From commands to joint targets: inverse kinematics, and the stream they come in."""

from dataclasses import dataclass

from chunkpilot_core import rotations
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.base import Finding
from chunkpilot_core.types import (
    Command,
    CommandGroup,
    F64,
    Id,
    Kind,
    NS_PER_S,
    Reaction,
    Rotation,
)
import numpy as np

REACHED_M, REACHED_RAD = 1e-4, 1e-3  # error of inverse kinematics that counts as reached
WALL = 0.002  # [m] targets stay this far inside the workspace: catching up bends the path a little


@dataclass(frozen=True, slots=True)
class Target:
    """Joint targets (J,) asked for; ``clipped`` says how a Cartesian one was moved."""

    joints: F64
    clipped: Finding | None = None


class TargetSolver:
    """Turns checked commands into joint targets."""

    def __init__(self, robot: Robot, kinematics: Kinematics) -> None:
        self._kinematics = kinematics
        self._index = {name: i for i, name in enumerate(robot.arm_joints)}
        self._lower = np.array(robot.workspace_lower) + WALL
        self._upper = np.array(robot.workspace_upper) - WALL

    def solve(
        self, command: Command, commanded: F64, gripper: F64, frames: F64 | None = None
    ) -> Target | Finding:
        """
        Return the joint targets, or why there are none.

        :param commanded: joints commanded last, shape (n,): where inverse kinematics starts
        :param gripper: finger targets in force, shape (J - n,), for commands without a gripper
        :param frames: of the arm where it is commanded, if known
        """
        clipped = None
        arm, fingers = commanded, gripper
        for group in command.groups:
            if group.kind is Kind.GRIPPER:
                fingers = np.full(len(gripper), group.values[0] / max(len(gripper), 1))
            elif group.kind is Kind.JOINT_POSITION:
                arm = np.empty(len(commanded))
                arm[[self._index[name] for name in group.names]] = group.values
            else:
                position = np.minimum(np.maximum(group.values[:3], self._lower), self._upper)
                clipped = self._clipping(group.values[:3], position)
                found = self._inverse(group, position, commanded, frames)
                if isinstance(found, Finding):
                    return found
                arm = found
        return Target(np.concatenate((arm, fingers)), clipped)

    def _inverse(
        self, group: CommandGroup, position: F64, commanded: F64, frames: F64 | None
    ) -> F64 | Finding:
        rotation = self._kinematics.tool_rotation
        if group.rotation is Rotation.QUATERNION:
            quaternion = group.values[3:] / np.linalg.norm(group.values[3:])
            rotation = rotations.from_quaternion(quaternion)
        solution = self._kinematics.inverse(position, rotation, commanded, frames=frames)
        near = solution.position_error <= REACHED_M and solution.rotation_error <= REACHED_RAD
        if near and np.isfinite(solution.joints).all():
            return solution.joints
        return Finding(
            Reaction.REJECT_CHUNK,
            f'no joint angles found for the tool at {np.round(position, 4).tolist()} m: '
            f'{solution.position_error:.4f} m and {solution.rotation_error:.4f} rad are left',
            'tool',
            solution.position_error,
            REACHED_M,
            check='kinematics',
        )

    def _clipping(self, asked: F64, allowed: F64) -> Finding | None:
        beyond = np.abs(asked - allowed)
        worst = int(np.argmax(beyond))
        if beyond[worst] == 0.0:
            return None
        value, limit, axis = float(asked[worst]), float(allowed[worst]), 'xyz'[worst]
        reason = f'asked for {axis} = {value:.4f} m, workspace ends at {limit:.4f} m'
        return Finding(Reaction.CLAMP, reason, f'tool.{axis}', value, limit)


class Stream:
    """
    The commands accepted since arming, and the velocity of their targets.

    The velocity is the smaller of the last two differences (zero when they disagree in sign): a
    jump of the target is no velocity, a steady motion is one.
    """

    def __init__(self, period_s: float, coast_s: float) -> None:
        """
        Begin without commands.

        :param period_s: nominal control period
        :param coast_s: how long a moving target goes on when its next command is late
        """
        self._period_s, self._coast_ns = period_s, round(coast_s * NS_PER_S)
        self.reset()

    def reset(self) -> None:
        """Forget every command and all senders."""
        self._channel = 0
        self._senders: dict[int, tuple[int, Id, Id]] = {}
        self.session = 0
        self.last_id = self.last_chunk = Id()
        self.flowed = False
        self.pause()

    def hand_over(self, channel: int) -> None:
        """Go on with the sender of another channel, where it was when it was heard last."""
        self._senders[self._channel] = self.session, self.last_id, self.last_chunk
        self._channel = channel
        unknown = 0, Id(), Id()
        self.session, self.last_id, self.last_chunk = self._senders.pop(channel, unknown)
        self.flowed = False
        self.pause()

    def pause(self) -> None:
        """Forget the target, but not who sent it and in which order."""
        self.accepted: Command | None = None
        self.accepted_ns = 0
        self.target: Target | None = None
        self.velocity = self._difference = np.zeros(0)

    def accept(
        self, command: Command, target: Target, now_ns: int, position: F64, velocity: F64
    ) -> None:
        """
        Take the newest command.

        :param position: sent last, (J,): the target before the first one
        :param velocity: with which it was sent, (J,)
        """
        before, last = self.accepted, self.target
        difference = np.zeros(len(target.joints))
        if before is None or last is None:
            difference = (target.joints - position) / self._period_s
            self._difference = velocity
        else:
            passed_s = (command.stamp_ns - before.stamp_ns) / NS_PER_S
            if 0.2 * self._period_s <= passed_s <= 3.0 * self._period_s:
                difference = (target.joints - last.joints) / passed_s
        agree = np.sign(difference) == np.sign(self._difference)
        smaller = np.minimum(np.abs(difference), np.abs(self._difference))
        self.velocity = np.where(agree, np.sign(difference) * smaller, 0.0)
        self._difference = difference
        self.accepted, self.target, self.accepted_ns = command, target, now_ns
        self.session, self.last_id, self.flowed = command.id.session, command.id, True
        if command.chunk_id:
            self.last_chunk = command.chunk_id

    def at(self, now_ns: int, exact: bool) -> tuple[F64, F64] | None:
        """
        Return where the target is and how fast it moves, (J,) each; None = nothing to follow.

        :param exact: the newest command is of this very tick; otherwise its target coasts on for
            a moment, and a moving one is then given up, so that the arm brakes along its way
        """
        if self.target is None or self.accepted is None:
            return None
        if exact:
            return self.target.joints, self.velocity
        late_ns = max(now_ns - self.accepted.stamp_ns, 0)
        if late_ns <= self._coast_ns:
            ahead = self.velocity * (late_ns / NS_PER_S)
            return self.target.joints + ahead, self.velocity
        if self.velocity.any():
            return None
        return self.target.joints, self.velocity
