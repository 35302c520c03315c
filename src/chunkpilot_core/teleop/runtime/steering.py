"""From a wished velocity of the tool to a target that moves with it, in any action space."""

from dataclasses import dataclass

from chunkpilot_core import rotations, spaces
from chunkpilot_core.config import option
from chunkpilot_core.teleop.base import Aim, Arm, Bounds
from chunkpilot_core.teleop.runtime.following import positions, velocities
from chunkpilot_core.types import F64, Kind
import numpy as np

INSIDE_M = 0.002
"""[m] Targets stay this far inside the workspace, where the guard would clip them."""


@dataclass(frozen=True)
class SteeringConfig:
    """How fast a hand may drive the arm."""

    max_speed: float = option(0.15, 'of the tool', unit='m/s', min=0.001, max=1.0)
    max_turn: float = option(0.5, 'of the tool', unit='rad/s', min=0.001, max=3.0)
    max_acceleration: float = option(0.6, 'of the tool', unit='m/s2', min=0.01, max=10.0)
    gripper_speed: float = option(
        0.1, 'at which the width follows a key or button', unit='m/s', min=0.001, max=1.0
    )
    leash: float = option(
        0.05,
        'the target stays so near to the tool, so that a blocked arm is not pushed ever harder',
        unit='m',
        min=0.005,
        max=0.5,
    )


@dataclass(frozen=True, slots=True)
class Stick:
    """
    What a hand wishes, each in [-1, 1]: ``move`` (3,) along and ``turn`` (3,) about the world's
    axes, ``grip``: -1 closes, 1 opens.
    """

    move: F64
    turn: F64
    grip: float


class Steering:
    """Integrates wishes from where the arm is, with limited speed and acceleration."""

    def __init__(self, config: SteeringConfig) -> None:
        self.config = config
        self.let_go()

    @property
    def bounds(self) -> Bounds:
        """What the target never exceeds."""
        config = self.config
        return Bounds(config.max_speed, config.max_turn, gripper=config.gripper_speed)

    def let_go(self) -> None:
        """Begin anew, from the target then in force and as fast as the arm moves then."""
        self._velocity: F64 | None = None

    def __call__(self, stick: Stick, arm: Arm) -> Aim:
        """Move the target on by one tick; ``grip`` moves the width, or leaves it as it is."""
        config = self.config
        before = arm.commanded
        wished = np.concatenate(
            (_bounded(stick.move) * config.max_speed, _bounded(stick.turn) * config.max_turn)
        )
        most = config.max_acceleration * arm.passed_s / config.max_speed
        if self._velocity is None:
            self._velocity = self._moving(arm)
        change = (wished - self._velocity) / np.repeat((config.max_speed, config.max_turn), 3)
        # Both parts get from rest to their full speed in the same time.
        length = float(np.abs(change).max(initial=0.0))
        share = min(1.0, most / length) if length > 0.0 else 1.0
        self._velocity = self._velocity + share * (wished - self._velocity)
        target = self._moved(before, stick, self._velocity * arm.passed_s, arm)
        velocity = np.zeros_like(target)
        if arm.passed_s > 0.0:
            rate = (target - before) / arm.passed_s
            for group, columns in spaces.target_slices(arm.space):
                if group.kind is not Kind.GRIPPER:
                    velocity[columns] = rate[columns]
        return Aim(target, velocity)

    def _moving(self, arm: Arm) -> F64:
        """Return how the tool moves when control is taken (6,), as far as it is allowed here."""
        now, dt_s = positions(arm.taken, arm.robot.arm_joints), 1e-3
        speed = velocities(arm.taken, arm.robot.arm_joints)
        before, after = arm.kinematics.forward(now), arm.kinematics.forward(now + speed * dt_s)
        move = (after.position - before.position) / (dt_s * self.config.max_speed)
        turn = rotations.between(before.rotation, after.rotation) / (dt_s * self.config.max_turn)
        return np.concatenate(
            (_bounded(move) * self.config.max_speed, _bounded(turn) * self.config.max_turn)
        )

    def _moved(self, before: F64, stick: Stick, step: F64, arm: Arm) -> F64:
        target: F64 = before.copy()
        for group, columns in spaces.target_slices(arm.space):
            if group.kind is Kind.GRIPPER and arm.robot.gripper is not None:
                grip = arm.robot.gripper
                if stick.grip:  # otherwise it stays as it is, to the bit: something may be held
                    step_m = stick.grip * self.config.gripper_speed * arm.passed_s
                    width = before[columns] + step_m
                    target[columns] = np.clip(width, grip.min_width, grip.max_width)
            elif group.kind.cartesian:
                target[columns] = self._pose(before[columns], step, arm)
            elif group.kind in (Kind.JOINT_POSITION, Kind.JOINT_DELTA):
                target[columns] = self._joints(group.names, before[columns], step, arm)
        return target

    def _pose(self, pose: F64, step: F64, arm: Arm) -> F64:
        moved: F64 = pose.copy()
        moved[:3] = self._allowed(pose[:3] + step[:3], arm)
        if len(pose) > 3:
            turn = rotations.from_vector(step[3:])
            moved[3:] = rotations.multiply(turn, pose[3:])
            moved[3:] /= np.linalg.norm(moved[3:])
        return moved

    def _joints(self, names: tuple[str, ...], joints: F64, step: F64, arm: Arm) -> F64:
        order = [names.index(name) for name in arm.robot.arm_joints]
        here = joints[order]
        pose = arm.kinematics.forward(here)
        turn = rotations.from_quaternion(rotations.from_vector(step[3:]))
        wanted = self._allowed(pose.position + step[:3], arm)
        solution = arm.kinematics.inverse(wanted, turn @ pose.rotation, here, posture_gain=0.0)
        moved = np.empty_like(joints)
        moved[order] = solution.joints
        return moved

    def _allowed(self, position: F64, arm: Arm) -> F64:
        """Return the nearest position (3,) in the workspace and on the leash."""
        tool = arm.kinematics.forward(positions(arm.measured, arm.robot.arm_joints)).position
        away = position - tool
        length = float(np.linalg.norm(away))
        if length > self.config.leash:
            position = tool + away * (self.config.leash / length)
        lower = np.array(arm.robot.workspace_lower) + INSIDE_M
        upper = np.array(arm.robot.workspace_upper) - INSIDE_M
        inside: F64 = np.clip(position, lower, upper)
        return inside


def _bounded(wish: F64) -> F64:
    """Return a wish (3,) no longer than 1: diagonals are not faster."""
    length = float(np.linalg.norm(wish))
    return wish / length if length > 1.0 else wish
