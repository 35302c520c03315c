"""Gamepads and action spaces for the tests of teleoperation."""

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.teleop.base import Joystick
from chunkpilot_core.types import ActionGroup, ActionSpace, Kind, Rotation

ROBOT = robots.load('panda')
GRIP = ActionGroup('gripper', 7, 8, Kind.GRIPPER, scale=(0.04,), offset=(0.04,))


def joint_space() -> ActionSpace:
    """Return a space of joint positions and a gripper."""
    arm = ActionGroup(
        'arm',
        0,
        7,
        Kind.JOINT_POSITION,
        names=ROBOT.arm_joints,
        scale=(1.0,) * 7,
        offset=(0.0,) * 7,
    )
    return _make((arm, GRIP), -3.0, 4.0)


def pose_space(gripper: bool = True) -> ActionSpace:
    """Return a space of tool poses, with a gripper or without one."""
    arm = ActionGroup(
        'arm',
        0,
        7,
        Kind.EE_POSE,
        'world',
        rotation=Rotation.QUATERNION,
        scale=(1.0,) * 7,
        offset=(0.0,) * 7,
    )
    return _make((arm, GRIP) if gripper else (arm,), -1.0, 1.0)


def _make(groups: tuple[ActionGroup, ...], lower: float, upper: float) -> ActionSpace:
    count = groups[-1].stop
    bounds = dict.fromkeys(('max_velocity', 'max_acceleration', 'max_jerk'), (1.0,) * count)
    return spaces.make(
        ActionSpace(
            groups,
            lower=(lower,) * count,
            upper=(upper,) * count,
            irreversible=(False,) * count,
            **bounds,
        )
    )


def pad(*axes: float, held: bool = True, buttons: tuple[int, ...] = ()) -> Joystick:
    """Return what a gamepad says; its dead man button is the fifth."""
    pressed = [False] * 11
    pressed[4] = held
    for number in buttons:
        pressed[number - 1] = True
    return Joystick(0, (*axes, *[0.0] * (8 - len(axes))), tuple(pressed))
