"""
A leader arm: a second arm of the same joints, moved by hand, whose joint states are followed.

It is followed from the moment on at which a hand has brought it to the arm's own pose, joint by
joint, and its gripper to the width in force. One that lies at rest takes nothing, also when the
arm passes by its pose.
"""

from dataclasses import dataclass
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.teleop import base
from chunkpilot_core.teleop.runtime.bounds import bounded_target
from chunkpilot_core.teleop.runtime.following import Follower, Motion, positions, velocities
from chunkpilot_core.types import F64, JointState, Kind, seconds
import numpy as np

SAME_M = 0.002
"""Change of the leader's width that is none: what the arm holds is not let go by trembling."""


class Leader(base.Source):
    """Follows an arm on ``leader/joint_states``; in a space of tool poses, its tool."""

    @dataclass(frozen=True)
    class Config:
        """When it is followed, and how fast."""

        near_rad: float = option(
            0.1, 'following begins when every joint is so near', unit='rad', min=0.01, max=0.5
        )
        far_rad: float = option(
            0.5, 'and ends when one is further away', unit='rad', min=0.05, max=3.0
        )
        max_speed: float = option(
            1.0, 'of joints; the arm lags behind a faster leader', unit='rad/s', min=0.01, max=3.0
        )
        max_acceleration: float = option(5.0, 'of joints', unit='rad/s2', min=0.1, max=20.0)
        max_tool_speed: float = option(0.5, 'of the tool', unit='m/s', min=0.01, max=1.0)
        max_turn: float = option(1.5, 'of the tool', unit='rad/s', min=0.01, max=3.0)
        gripper_speed: float = option(
            0.1, 'at which the width follows', unit='m/s', min=0.001, max=1.0
        )
        near_width: float = option(
            0.01, 'following begins when the width is so near', unit='m', min=0.001, max=0.1
        )
        moved_rad: float = option(
            0.03, 'a joint that moved by more was moved by a hand', unit='rad', min=0.005, max=0.5
        )
        prefix: str = option('', 'of joint names on leader/joint_states, left out')
        scale: tuple[float, ...] = option(
            (), 'per joint, -1 for one that turns the other way; empty = 1', min=-10.0, max=10.0
        )
        offset: tuple[float, ...] = option(
            (), 'per joint, added after scaling; empty = 0', unit='rad', min=-7.0, max=7.0
        )
        timeout_s: float = option(
            0.2, 'without a message for longer nobody drives', unit='s', min=0.02, max=5.0
        )

    name = 'leader'
    listens = ('leader',)
    config: Config

    def __init__(self, robot: Robot, config: Any = None) -> None:
        super().__init__(robot, config)
        size = len(robot.arm_joints)
        for name in ('scale', 'offset'):
            given = getattr(self.config, name)
            if given and len(given) != size:
                raise ConfigError(f'leader.{name}: {len(given)} values, {size} joints')
        self._scale = np.array(self.config.scale or (1.0,) * size)
        self._offset = np.array(self.config.offset or (0.0,) * size)
        self._pose: F64 | None = None
        self._width: float | None = None
        self._heard_ns = 0
        self._follower = Follower(self.config.max_speed, self.config.max_acceleration)
        self._motion = Motion(self.config.moved_rad)
        self.let_go()

    @property
    def bounds(self) -> base.Bounds:
        """As configured."""
        config = self.config
        return base.Bounds(
            config.max_tool_speed, config.max_turn, config.max_speed, config.gripper_speed
        )

    def take(self, what: str, data: Any, now_ns: int) -> None:
        """Take where the leader is; what makes no sense takes away what was known."""
        self._pose = self._width = None
        if not isinstance(data, JointState):
            raise InvalidDataError(f'{what}: {type(data).__name__}, expected a JointState')
        names = [name.removeprefix(self.config.prefix) for name in data.names]
        unknown = sorted(set(names) - set(self.robot.joints))
        missing = sorted(set(self.robot.arm_joints) - set(names))
        if unknown or missing or len(set(names)) != len(names):
            raise InvalidDataError(
                f'leader/joint_states: unknown joints {unknown}, missing {missing}; '
                f'expected each of {list(self.robot.arm_joints)} once'
            )
        if len(data.positions) != len(names) or not np.isfinite(data.positions).all():
            raise InvalidDataError(
                f'leader/joint_states: {len(names)} names, positions {data.positions.tolist()}'
            )
        values = dict(zip(names, data.positions.tolist(), strict=True))
        pose = np.array([values[name] for name in self.robot.arm_joints])
        self._pose = pose * self._scale + self._offset
        fingers = self.robot.gripper.joints if self.robot.gripper else ()
        if fingers and all(name in values for name in fingers):
            self._width = float(sum(values[name] for name in fingers))
        self._heard_ns = now_ns
        self._motion(self._pose, now_ns)

    def let_go(self) -> None:
        """Wait until a hand brings the leader near again, after a moment of rest."""
        self._motion.forget()
        self._follower.forget()
        self._width_before: float | None = None

    def aim(self, arm: base.Arm) -> base.Aim | str:
        """Follow, no faster than allowed."""
        if self._pose is None:
            return 'no leader was heard'
        if not 0 <= seconds(arm.now_ns - self._heard_ns) <= self.config.timeout_s:
            return 'the leader is silent'
        following = self._follower.at
        if following is None:
            why_not = self._motion.why_not(arm.now_ns) or self._away(
                positions(arm.taken, self.robot.arm_joints), self.config.near_rad
            )
            why_not = why_not or self._width_away(arm)
            if why_not:
                return why_not
            names = self.robot.arm_joints
            self._follower.start(positions(arm.taken, names), velocities(arm.taken, names))
            self._width_before = self._width
        elif why_not := self._away(following, self.config.far_rad):
            return why_not
        self._follower(self._pose, arm.passed_s)
        target = bounded_target(
            arm.space, arm.commanded, self._target(arm), arm.passed_s, self.bounds
        )
        velocity = np.zeros_like(target)
        if arm.passed_s > 0.0:
            velocity = (target - arm.commanded) / arm.passed_s
        for group, columns in spaces.target_slices(arm.space):
            if group.kind is Kind.GRIPPER:
                velocity[columns] = 0.0
        return base.Aim(target, velocity)

    def _away(self, here: F64, limit: float) -> str:
        assert self._pose is not None
        away = np.abs(self._pose - here)
        worst = int(np.argmax(away))
        if away[worst] <= limit:
            return ''
        return (
            f'the leader is {away[worst]:.2f} rad away in {self.robot.arm_joints[worst]}, '
            f'allowed are {limit:g} rad'
        )

    def _width_away(self, arm: base.Arm) -> str:
        for group, columns in spaces.target_slices(arm.space):
            if group.kind is Kind.GRIPPER and self._width is not None:
                away = abs(self._width - float(arm.commanded[columns][0]))
                if away > self.config.near_width:
                    return (
                        f"the leader's gripper is {away:.3f} m away, "
                        f'allowed are {self.config.near_width:g} m'
                    )
        return ''

    def _target(self, arm: base.Arm) -> F64:
        """Return where the pose to follow is in the action space, shape (T,)."""
        assert self._follower.at is not None
        grip = self.robot.gripper
        fingers = positions(arm.measured, grip.joints) if grip else np.zeros(0)
        joints = np.concatenate((self._follower.at, fingers))
        state = JointState(arm.now_ns, self.robot.joints, joints, np.zeros(len(joints)))
        target = spaces.from_joints(arm.space, arm.kinematics, state)
        for group, columns in spaces.target_slices(arm.space):
            if group.kind is Kind.GRIPPER:
                low, high = (grip.min_width, grip.max_width) if grip else (0.0, 0.0)
                width = self._asked_width()
                target[columns] = arm.commanded[columns]
                if width is not None:
                    target[columns] = np.clip(width, low, high)
        return target

    def _asked_width(self) -> float | None:
        """Return the width to follow, None until the hand has moved the gripper."""
        if self._width is None:
            return None
        before = self._width_before
        if before is not None and abs(self._width - before) <= SAME_M:
            return None
        self._width_before = None
        return self._width
