"""Sources of teleoperation: who drives when, how fast, and what is refused."""

from typing import Any

from chunkpilot_core import config, registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.teleop.base import Joystick
from chunkpilot_core.teleop.runtime.teleoperation import Teleoperation, TeleoperationConfig
from chunkpilot_core.types import (
    ActionSpace,
    ArmState,
    F64,
    GuardStatus,
    JointState,
    Kind,
    nanoseconds,
)
from helpers.teleop import joint_space, pad, pose_space
import numpy as np
import pytest

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()


class Hand:
    """A teleoperation at 100 Hz whose arm follows at once."""

    def __init__(self, source: str, space: ActionSpace = SPACE, **options: Any) -> None:
        plugin = registry.get('teleop', source)
        self.source = plugin(ROBOT, config.build(plugin.Config, options))
        self.core = Teleoperation(self.source, ROBOT, TeleoperationConfig(), 5)
        self.space, self.now_s = space, 100.0
        self.joints = np.array([*ROBOT.home, 0.04, 0.04])
        self.words: list[Any] = []
        self.commands: list[Any] = []
        self.core.set_space(space, 0.04)
        self.core.on_speed_scale(1.0)
        self.guard(ArmState.ARMED)

    @property
    def now_ns(self) -> int:
        return nanoseconds(self.now_s)

    def guard(self, state: ArmState, epoch: int = 3) -> None:
        self.core.on_guard(GuardStatus(self.now_ns, state, epoch, self.now_ns))

    def say(self, what: str, data: Any) -> None:
        self.source.take(what, data, self.now_ns)

    def tick(self, count: int = 1, during: Any = None) -> Any:
        """Tick; return the command of the last one."""
        for _ in range(count):
            self.now_s += 0.01
            self.core.on_joint_state(
                JointState(self.now_ns, ROBOT.joints, self.joints.copy(), np.zeros(9))
            )
            if during is not None:
                during()
            tick = self.core.tick(self.now_ns, self.now_ns)
            if tick.intervention is not None:
                self.words.append(tick.intervention)
            if tick.command is not None:
                self.commands.append(tick.command)
                self.follow(tick.command)
        return tick.command

    def follow(self, command: Any) -> None:
        group = next(group for group in command.groups if group.name == 'arm')
        if group.kind is Kind.JOINT_POSITION:
            self.joints[:7] = group.values
            return
        kinematics = self.core._kinematics
        solution = kinematics.inverse(
            group.values[:3], kinematics.tool_rotation, self.joints[:7], posture_gain=0.0
        )
        self.joints[:7] = solution.joints

    @property
    def tool(self) -> F64:
        return self.core._kinematics.forward(self.joints[:7]).position


# ---- gamepad ------------------------------------------------------------------------------------


def test_nothing_moves_unless_the_dead_man_button_is_held():
    hand = Hand('joy')
    hand.say('joy', pad(1.0, 1.0, held=False))
    assert hand.tick(20, lambda: hand.say('joy', pad(1.0, 1.0, held=False))) is None
    assert 'not held' in hand.core.idle
    hand.tick(50, lambda: hand.say('joy', pad(0.0, 1.0)))
    assert hand.tool[0] > 0.03
    hand.tick(1, lambda: hand.say('joy', pad(0.0, 1.0, held=False)))
    assert hand.tick() is None
    assert [word.active for word in hand.words if word.active] != []
    assert not hand.words[-1].active


def test_a_button_held_since_before_has_to_be_pressed_anew():
    """A gamepad on which something lies does not start the arm when the guard is armed."""
    hand = Hand('joy')
    assert hand.tick(20, lambda: hand.say('joy', pad(0.0, 1.0))) is None
    assert 'release' in hand.core.idle
    hand.say('joy', pad(held=False))
    assert hand.tick(5, lambda: hand.say('joy', pad(0.0, 1.0))) is not None
    hand.guard(ArmState.ARMED, epoch=4)
    assert hand.tick(5, lambda: hand.say('joy', pad(0.0, 1.0))) is None


def test_speed_and_acceleration_stay_within_their_limits_and_the_workspace():
    hand = Hand('joy', max_speed=0.2, max_acceleration=0.5)
    hand.say('joy', pad(held=False))
    hand.tick(400, lambda: hand.say('joy', pad(1.0, 1.0, 0.0, 0.0, 1.0)))
    path = np.array([c.groups[0].values for c in hand.commands])
    speed = np.linalg.norm(np.diff(path, axis=0), axis=1) / 0.01
    assert speed.max() <= 0.2 + 1e-9
    free = path[:60]  # before it comes to a wall
    assert np.abs(np.diff(free, 2, axis=0)).max() / 1e-4 <= 0.5 + 1e-6
    assert np.all(path <= np.array(ROBOT.workspace_upper))
    assert np.all(path >= np.array(ROBOT.workspace_lower))


def test_a_blocked_arm_is_not_pushed_ever_harder():
    hand = Hand('joy', leash=0.03)
    hand.follow = lambda command: None
    hand.say('joy', pad(held=False))
    hand.tick(300, lambda: hand.say('joy', pad(0.0, 1.0)))
    assert np.linalg.norm(hand.commands[-1].groups[0].values - hand.tool) <= 0.03 + 1e-9


def test_a_silent_gamepad_lets_go():
    hand = Hand('joy', timeout_s=0.2)
    hand.say('joy', pad(held=False))
    hand.tick(10, lambda: hand.say('joy', pad(0.0, 1.0)))
    assert hand.tick(40) is None
    assert 'silent' in hand.core.idle


@pytest.mark.parametrize(
    ('message', 'reason'),
    [
        (Joystick(0, (0.0,) * 2, (False,) * 11), '2 axes'),
        (Joystick(0, (0.0,) * 8, (False,) * 3), '3 buttons'),
        (Joystick(0, (float('nan'),) * 8, (False,) * 11), 'nan'),
        (Joystick(0, (7.0,) * 8, (False,) * 11), 'allowed -1 to 1'),
    ],
)
def test_a_gamepad_that_makes_no_sense_is_refused(message, reason):
    with pytest.raises(InvalidDataError, match=reason):
        Hand('joy').say('joy', message)


def test_the_gripper_follows_its_buttons():
    hand = Hand('joy')
    hand.say('joy', pad(held=False))
    hand.tick(100, lambda: hand.say('joy', pad(buttons=(1,))))
    assert hand.commands[-1].groups[1].values[0] == pytest.approx(0.0)
    hand.tick(100, lambda: hand.say('joy', pad(buttons=(2,))))
    assert hand.commands[-1].groups[1].values[0] == pytest.approx(0.08)


# ---- keyboard -----------------------------------------------------------------------------------


def test_keys_drive_only_after_space_and_until_any_other_key():
    hand = Hand('keyboard')
    hand.say('keys', 'wwww')
    assert hand.tick(5) is None
    hand.say('keys', ' ')
    hand.tick(30, lambda: hand.say('keys', 'w'))
    assert hand.tool[0] > 0.01
    at = hand.tool[0]
    hand.tick(100)
    assert hand.tool[0] - at < 0.04  # released: it comes to rest, and stays in control
    assert hand.core.engaged
    hand.say('keys', '\x1b')
    assert hand.tick() is None


def test_space_typed_before_the_guard_is_armed_moves_nothing_later():
    hand = Hand('keyboard')
    hand.guard(ArmState.DISARMED)
    hand.say('keys', ' w')
    hand.tick(3)
    hand.guard(ArmState.ARMED, epoch=9)
    assert hand.tick(5) is None


# ---- leader arm ---------------------------------------------------------------------------------


def leader(joints: F64, names: tuple[str, ...] = ROBOT.arm_joints) -> JointState:
    return JointState(0, names, np.asarray(joints, np.float64), np.zeros(len(names)))


def bring(hand: Hand, pose: F64, width: float | None = None) -> None:
    """Let the leader rest a little beside a pose, then move it there by hand."""
    for angle in (*[0.08] * 80, 0.04, 0.0, 0.0):
        beside = pose.copy()
        beside[6] += angle
        joints, names = beside, ROBOT.arm_joints
        if width is not None:
            joints, names = np.array([*beside, width / 2, width / 2]), ROBOT.joints
        hand.say('leader', leader(joints, names))
        hand.tick()


def test_a_leader_is_followed_only_from_near_and_never_faster_than_allowed():
    hand = Hand('leader', space=joint_space(), max_speed=0.5)
    away = np.array(ROBOT.home)
    away[0] += 0.6
    away[1] += 0.1
    assert hand.tick(80, lambda: hand.say('leader', leader(away))) is None
    away[1] -= 0.1
    assert hand.tick(20, lambda: hand.say('leader', leader(away))) is None
    assert 'panda_joint1' in hand.core.idle
    pose = np.array(ROBOT.home)
    hand.tick(5, lambda: hand.say('leader', leader(pose)))
    assert hand.core.engaged
    jump = pose.copy()
    jump[0] += 0.3
    hand.tick(20, lambda: hand.say('leader', leader(jump)))
    assert 0.06 < hand.joints[0] < 0.11  # at 0.5 rad/s, after getting there
    hand.tick(100, lambda: hand.say('leader', leader(jump)))
    assert hand.joints[0] == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize(
    ('state', 'reason'),
    [
        (leader(np.zeros(6), ROBOT.arm_joints[:6]), 'missing'),
        (leader(np.zeros(8), (*ROBOT.arm_joints, 'elbow')), 'elbow'),
        (leader(np.full(7, np.nan)), 'nan'),
        (leader(np.zeros(8), (*ROBOT.arm_joints, ROBOT.arm_joints[0])), 'once'),
    ],
)
def test_a_leader_of_other_joints_is_refused(state, reason):
    with pytest.raises(InvalidDataError, match=reason):
        Hand('leader').say('leader', state)


def test_a_leader_of_other_numbers_of_joints_is_refused_when_configured():
    with pytest.raises(ConfigError, match=r'leader\.offset: 2 values, 7 joints'):
        Hand('leader', offset=[0.0, 0.0])


def test_in_a_space_of_tool_poses_the_tool_of_the_leader_is_followed():
    hand = Hand('leader')
    pose = np.array(ROBOT.home)
    bring(hand, pose)
    for angle in np.linspace(0.0, 0.2, 60):
        pose[0] = angle
        hand.tick(1, lambda: hand.say('leader', leader(pose)))
    hand.tick(30, lambda: hand.say('leader', leader(pose)))
    wanted = hand.core._kinematics.forward(pose).position
    np.testing.assert_allclose(hand.commands[-1].groups[0].values, wanted, atol=1e-6)


# ---- whatever drives ----------------------------------------------------------------------------


@pytest.mark.parametrize('space', [joint_space(), pose_space(gripper=False)])
def test_the_same_stick_drives_any_action_space(space):
    hand = Hand('joy', space=space)
    hand.say('joy', pad(held=False))
    before = hand.tool
    hand.tick(100, lambda: hand.say('joy', pad(0.0, 1.0)))
    moved = hand.tool - before
    assert moved[0] > 0.08
    assert np.abs(moved[1:]).max() < 0.003
    assert hand.commands[-1].space_hash == space.hash


@pytest.mark.parametrize('state', [ArmState.DISARMED, ArmState.HOLD, ArmState.STOPPED])
def test_nothing_is_commanded_unless_the_guard_is_armed(state):
    hand = Hand('joy')
    hand.guard(state)
    hand.say('joy', pad(held=False))
    assert hand.tick(10, lambda: hand.say('joy', pad(0.0, 1.0))) is None
    assert state.name in hand.core.idle


def test_control_is_taken_from_where_the_guard_has_sent_the_arm():
    hand = Hand('joy')
    hand.say('joy', pad(held=False))
    sent = hand.joints.copy()
    sent[0] += 0.02  # the arm lags behind
    hand.now_s += 0.01
    hand.core.on_joint_state(JointState(hand.now_ns, ROBOT.joints, hand.joints, np.zeros(9)))
    hand.say('joy', pad())
    tick = hand.core.tick(
        hand.now_ns, 0, lambda: JointState(hand.now_ns, ROBOT.joints, sent, np.zeros(9))
    )
    wanted = hand.core._kinematics.forward(sent[:7]).position
    np.testing.assert_allclose(tick.command.groups[0].values, wanted, atol=1e-9)


def test_disabled_nobody_drives():
    hand = Hand('joy')
    hand.say('joy', pad(held=False))
    hand.core.enabled = False
    assert hand.tick(10, lambda: hand.say('joy', pad(0.0, 1.0))) is None
    assert hand.core.idle == 'not enabled'
