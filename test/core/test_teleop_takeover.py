"""
Control is taken by hand from a policy, with the real guard in the loop: nothing jumps, nothing is
dropped, nobody takes control by accident.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkpilot_core import config, registry, rotations, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.teleop.base import Aim, Source
from chunkpilot_core.teleop.runtime.teleoperation import Teleoperation, TeleoperationConfig
from chunkpilot_core.types import (
    ActionSpace,
    ArmState,
    F64,
    Id,
    Intervention,
    JointState,
    Kind,
    nanoseconds,
    Reaction,
)
from helpers.teleop import joint_space, pad, pose_space
import numpy as np
import pytest

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()
HOLDS_M = 0.02  # width at which the policy holds something


class Loop:
    """A policy and a teleoperator at one guard, at 100 Hz; the arm follows at once."""

    def __init__(self, bench: Any, source: Any, space: ActionSpace = SPACE, **options: Any):
        self.bench, self.space = bench, space
        bench.guard.set_space(space, 0.04)
        bench.armed()
        self.core = self.teleoperator(source, **options)
        self.kinematics = bench.guard.kinematics
        self.policy_at = bench.measured[:7].copy()
        self.commands: list[Any] = []
        self.told: list[Intervention] = []
        self.ticks: list[Any] = []

    def teleoperator(self, source: Any, session: int = 99, **options: Any) -> Teleoperation:
        plugin = registry.get('teleop', source) if isinstance(source, str) else source
        core = Teleoperation(
            plugin(ROBOT, config.build(plugin.Config, options)),
            ROBOT,
            TeleoperationConfig(),
            session,
        )
        core.set_space(self.space, 0.04)
        core.on_speed_scale(1.0)
        return core

    def say(self, what: str, data: Any) -> None:
        self.core.source.take(what, data, self.now_ns)

    @property
    def now_ns(self) -> int:
        return nanoseconds(self.bench.now_s + 0.01)

    def sent(self) -> JointState | None:
        verdict = self.bench.last.verdict
        return JointState(
            verdict.stamp_ns, verdict.joint_names, verdict.sent, verdict.sent_velocity
        )

    def hear(self, core: Teleoperation) -> Any:
        core.on_guard(self.bench.guard.status())
        core.on_joint_state(
            JointState(self.now_ns, ROBOT.joints, self.bench.measured.copy(), np.zeros(9))
        )
        return core.tick(self.now_ns, self.now_ns, self.sent)

    def tick(self, policy: Callable[[], Any] | None = None, say: Any = None) -> Any:
        """Let 10 ms pass; return the command of the teleoperator, if any."""
        if say is not None:
            self.say(*say)
        tick = self.hear(self.core)
        if tick.command is not None:
            self.commands.append(tick.command)
            self.ticks.append(self.bench.tick(tick.command))
        else:
            self.bench.tick(policy() if policy else None)
        if tick.intervention is not None:
            self.told.append(tick.intervention)
            self.bench.guard.on_intervention(tick.intervention, self.bench.now_ns())
        return tick.command

    def policy(self, speed: float = 0.3, width: float = HOLDS_M) -> Callable[[], Any]:
        """Return a policy that turns the first joint and the wrist, and holds something."""

        def make() -> Any:
            self.policy_at[[0, 6]] += speed * 0.01
            if self.space is SPACE:  # its tool points down, whatever the joints are
                at = self.kinematics.forward(self.policy_at).position
                made = self.bench.tool(at, width, source='policy')
            else:
                made = self.bench.joints(self.policy_at, width, source='policy')
            return replace(made, id=Id(1, self.bench.seq))

        return make

    @property
    def target(self) -> F64:
        """What was sent last, in the action space."""
        return spaces.from_joints(self.space, self.kinematics, self.sent())


def values(command: Any) -> F64:
    return np.concatenate([group.values for group in command.groups])


def leader(joints: F64, width: float) -> JointState:
    positions = np.array([*joints, width / 2, width / 2])
    return JointState(0, ROBOT.joints, positions, np.zeros(9))


def assert_bounded(loop: Loop, before: F64) -> None:
    """No command, the first one included, is further from the one before than allowed."""
    assert loop.commands
    bounds = loop.core.source.bounds
    for command in loop.commands:
        after = values(command)
        for group, columns in spaces.target_slices(loop.space):
            step = after[columns] - before[columns]
            sent = next(g for g in command.groups if g.name == group.name)
            if group.kind is Kind.GRIPPER:
                assert np.abs(step).max() <= bounds.gripper * 0.01 + 1e-9
                continue
            if group.kind.cartesian:
                assert np.linalg.norm(step[:3]) <= bounds.tool * 0.01 + 1e-9
                assert np.linalg.norm(sent.velocity[:3]) <= bounds.tool + 1e-6
                if len(step) > 3:
                    turn = rotations.to_vector(
                        rotations.multiply(
                            after[columns][3:], rotations.conjugate(before[columns][3:])
                        )
                    )
                    assert np.linalg.norm(turn) <= bounds.turn * 0.01 + 1e-9
                    assert np.linalg.norm(sent.velocity[3:]) <= 0.5 * bounds.turn + 1e-6
            else:
                assert np.abs(step).max() <= bounds.joint * 0.01 + 1e-9
                assert np.abs(sent.velocity).max() <= bounds.joint + 1e-6
        before = after


def assert_passed(loop: Loop) -> None:
    """The guard had nothing to alter."""
    found = {(t.verdict.reaction.name, t.verdict.reason) for t in loop.ticks}
    assert {reaction for reaction, _ in found} == {Reaction.PASS.name}, found
    assert loop.bench.state is ArmState.ARMED


# ---- what control is taken from -----------------------------------------------------------------


@pytest.mark.parametrize('space', [SPACE, joint_space(), pose_space()])
@pytest.mark.parametrize('source', ['joy', 'keyboard'])
def test_control_is_taken_from_where_the_policy_has_brought_the_arm_not_where_it_was_armed(
    bench, source, space
) -> None:
    """Long after arming: what is held stays held, the tool stays where it is."""
    loop = Loop(bench(), source, space)
    idle = ('joy', pad(held=False)) if source == 'joy' else ('keys', '')
    drive = ('joy', pad()) if source == 'joy' else ('keys', ' ')
    for _ in range(300):
        assert loop.tick(loop.policy(0.15), idle) is None
    for _ in range(50):  # it stands, and holds
        loop.tick(loop.policy(0.0), idle)
    before = loop.target
    assert before[-1] == pytest.approx(HOLDS_M)
    for i in range(50):
        loop.tick(None, drive if source == 'joy' or i == 0 else ('keys', ''))
        np.testing.assert_allclose(values(loop.commands[-1]), before, atol=1e-9)
    assert_bounded(loop, before)
    assert_passed(loop)


@pytest.mark.parametrize('space', [SPACE, joint_space(), pose_space()])
def test_taken_again_elsewhere_and_pushed_every_step_stays_within_its_bounds(bench, space) -> None:
    loop = Loop(bench(), 'joy', space)
    for speed in (0.2, -0.3, 0.1):
        loop.policy_at = loop.bench.measured[:7].copy()
        for _ in range(120):
            loop.tick(loop.policy(speed), ('joy', pad(held=False)))
        for _ in range(30):
            loop.tick(loop.policy(0.0), ('joy', pad(held=False)))
        before, loop.commands = loop.target, []
        for _ in range(60):
            loop.tick(None, ('joy', pad(1.0, -0.5, 0.0, 0.6, -0.8, buttons=(2,))))
        assert len(loop.commands) == 60
        assert_bounded(loop, before)
    assert_passed(loop)


@pytest.mark.parametrize('speed', [0.1, 0.5])
def test_taken_from_an_arm_in_motion_it_brakes_and_nothing_stops(bench, speed) -> None:
    loop = Loop(bench(), 'joy')
    for _ in range(100):
        loop.tick(loop.policy(speed), ('joy', pad(held=False)))
    before = loop.target
    for _ in range(60):
        loop.tick(None, ('joy', pad()))
    assert_bounded(loop, before)
    if speed < 0.2:  # the guard brakes what is faster than a hand may be
        assert_passed(loop)
    assert loop.bench.state is ArmState.ARMED
    assert np.linalg.norm(loop.target[:3] - before[:3]) < 0.05
    assert not loop.bench.last.verdict.sent_velocity.any()
    assert loop.target[-1] == pytest.approx(HOLDS_M)


class Jumper(Source):
    """A device whose author forgot every limit."""

    name = 'jumper'
    listens = ()
    space: Any = None

    def take(self, what: str, data: Any, now_ns: int) -> None:
        """Nothing."""

    def aim(self, arm: Any) -> Aim:
        target = arm.commanded + 0.3
        target[-1] = 0.08
        return Aim(target, np.full(len(target), 500.0))


@pytest.mark.parametrize('space', [SPACE, joint_space()])
def test_a_source_without_limits_of_its_own_is_bounded_all_the_same(bench, space) -> None:
    loop = Loop(bench(), Jumper, space)
    loop.core.enabled = False
    for _ in range(100):
        loop.tick(loop.policy(0.1))
    before = loop.target
    loop.core.enabled = True
    for _ in range(20):
        loop.tick()
    assert len(loop.commands) == 20
    assert_bounded(loop, before)


# ---- a leader arm -------------------------------------------------------------------------------


def test_a_leader_at_rest_takes_nothing_when_the_policy_passes_by(bench) -> None:
    loop = Loop(bench(), 'leader')
    lies = loop.policy_at.copy()
    lies[[0, 6]] += 0.5
    for _ in range(300):
        assert loop.tick(loop.policy(0.4), ('leader', leader(lies, HOLDS_M))) is None
    assert not any(word.active for word in loop.told)


@pytest.mark.parametrize('space', [SPACE, joint_space(), pose_space()])
def test_a_leader_brought_near_by_hand_is_followed_without_a_jump(bench, space) -> None:
    loop = Loop(bench(), 'leader', space)
    for _ in range(150):
        loop.tick(loop.policy(0.2))
    hand = loop.policy_at.copy()
    hand[6] += 0.15
    for _ in range(80):
        assert loop.tick(loop.policy(0.0), ('leader', leader(hand, 0.024))) is None
    before = loop.target
    for i in range(200):
        hand = loop.policy_at.copy()
        hand[6] += max(0.15 - 0.003 * i, -0.1)
        hand[0] += 0.08 - 0.0008 * i
        loop.tick(loop.policy(0.0), ('leader', leader(hand, 0.024)))
        if loop.commands:  # its gripper is not touched: what is held stays held
            assert values(loop.commands[-1])[-1] == pytest.approx(HOLDS_M, abs=1e-9)
    assert len(loop.commands) > 100
    assert_bounded(loop, before)
    assert_passed(loop)
    for _ in range(100):
        loop.tick(None, ('leader', leader(hand, 0.05)))
    assert values(loop.commands[-1])[-1] == pytest.approx(0.05)
    assert_bounded(loop, before)


def test_a_leader_with_an_open_hand_does_not_drop_what_is_held(bench) -> None:
    loop = Loop(bench(), 'leader')
    hand = loop.policy_at.copy()
    for i in range(200):
        hand[6] = loop.policy_at[6] + (0.08 if i < 90 else 0.05 * np.sin(i / 5.0))
        assert loop.tick(loop.policy(0.0), ('leader', leader(hand, 0.08))) is None
    assert "leader's gripper is 0.060 m away" in loop.core.idle


def test_after_a_fault_a_leader_in_motion_has_to_rest_first(bench) -> None:
    loop = Loop(bench(), 'leader')

    def sway(i: int) -> JointState:
        return leader(loop.policy_at + 0.05 * np.sin(i / 5.0), HOLDS_M)

    for _ in range(150):
        loop.tick(loop.policy(0.0), ('leader', leader(loop.policy_at, HOLDS_M)))
    assert not loop.commands
    for i in range(60):
        loop.tick(loop.policy(0.0), ('leader', sway(i)))
    assert loop.core.engaged
    with pytest.raises(InvalidDataError):
        loop.say('leader', leader(np.full(7, np.nan), HOLDS_M))
    loop.core.end(loop.now_ns)
    loop.core.enabled = True
    for i in range(200):
        assert loop.tick(None, ('leader', sway(i))) is None
    assert 'rest' in loop.core.idle


# ---- who must not take, or keep, control --------------------------------------------------------


def test_after_a_fault_the_button_has_to_be_released_and_pressed_again(bench) -> None:
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    assert loop.tick(None, ('joy', pad(0.0, 1.0))) is not None
    with pytest.raises(InvalidDataError):
        loop.say('joy', pad(float('nan')))
    told = loop.core.end(loop.now_ns).intervention
    assert told is not None
    assert not told.active
    loop.core.enabled = True
    assert loop.tick() is None  # the last input before the fault does not count
    for _ in range(100):
        assert loop.tick(None, ('joy', pad(0.0, 1.0))) is None
    assert 'release button 5' in loop.core.idle
    loop.tick(None, ('joy', pad(held=False)))
    assert loop.tick(None, ('joy', pad())) is not None


def test_what_is_pressed_while_disabled_means_nothing_later(bench) -> None:
    for source, idle, pressed in (
        ('joy', ('joy', pad(held=False)), ('joy', pad(0.0, 1.0))),
        ('keyboard', ('keys', ''), ('keys', ' w')),
    ):
        loop = Loop(bench(), source)
        loop.tick(None, idle)
        loop.core.enabled = False
        loop.tick(None, pressed)
        loop.core.enabled = True
        assert loop.tick(None, pressed if source == 'joy' else None) is None
        assert loop.tick() is None


@pytest.mark.parametrize('ahead_s', [0.1, 3600.0])
def test_a_joint_state_of_the_future_does_not_count(bench, ahead_s) -> None:
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    assert loop.tick(None, ('joy', pad())) is not None
    stamp_ns = loop.now_ns + nanoseconds(ahead_s)
    loop.core.on_joint_state(
        JointState(stamp_ns, ROBOT.joints, loop.bench.measured.copy(), np.zeros(9))
    )
    assert loop.core.tick(loop.now_ns, 0, loop.sent).command is None
    assert loop.core.idle == 'no joint state of now'


def test_a_joint_state_that_makes_no_sense_takes_away_the_last_one(bench) -> None:
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    loop.tick(None, ('joy', pad()))
    now_ns = loop.now_ns
    for names, positions in (
        (ROBOT.joints, np.zeros(2)),
        ((*ROBOT.joints, ROBOT.joints[0]), np.zeros(10)),
        (ROBOT.joints, np.full(9, np.nan)),
    ):
        with pytest.raises(InvalidDataError, match='joint state'):
            loop.core.on_joint_state(JointState(now_ns, names, positions, np.zeros(9)))
        assert loop.core.tick(now_ns, 0, loop.sent).command is None


def test_control_is_not_taken_while_the_guard_is_silent(bench) -> None:
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    old = loop.sent()
    assert old is not None
    fresh = loop.sent
    loop.sent = lambda: replace(old, stamp_ns=loop.now_ns - nanoseconds(2.0))
    assert loop.tick(None, ('joy', pad())) is None
    assert 'guard' in loop.core.idle
    loop.sent = fresh
    assert loop.tick(None, ('joy', pad())) is None
    assert 'release' in loop.core.idle


def test_a_source_that_aims_at_nan_commands_nothing(bench) -> None:
    class Lost(Jumper):
        def aim(self, arm: Any) -> Aim:
            return Aim(np.full(4, np.nan), np.zeros(4))

    loop = Loop(bench(), Jumper)
    loop.core.source = Lost(ROBOT)
    with pytest.raises(InvalidDataError, match='aims at'):
        loop.tick()
    assert not loop.commands


# ---- two at once --------------------------------------------------------------------------------


def test_of_two_teleoperators_the_second_is_refused_and_does_not_end_the_first(bench) -> None:
    """A gamepad drives; somebody at a keyboard starts, presses space, and goes away."""
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    loop.tick(None, ('joy', pad(0.0, 0.3)))
    epoch = loop.bench.guard.machine.epoch
    second = loop.teleoperator('keyboard', session=100)
    heard = len(loop.told)

    def both(keys: str = '') -> Any:
        nonlocal heard
        assert loop.tick(None, ('joy', pad(0.0, 0.3))) is not None
        for word in loop.told[heard:]:
            second.on_intervention(word)
            loop.core.on_intervention(word)  # one's own words come back
        heard = len(loop.told)
        second.source.take('keys', keys, loop.now_ns)
        tick = loop.hear(second)
        if tick.intervention is not None:
            loop.core.on_intervention(tick.intervention)
            loop.bench.guard.on_intervention(tick.intervention, loop.bench.now_ns())
        return tick.command

    for _ in range(80):
        assert both() is None
    for _ in range(80):
        assert both(' w') is None
    assert second.idle == 'another teleoperator has control'
    assert second.end(loop.now_ns).intervention is None
    assert loop.bench.guard.machine.epoch == epoch  # the first one never lost control
    assert loop.core.engaged


def test_of_two_who_took_control_at_once_the_later_one_yields(bench) -> None:
    loop = Loop(bench(), 'joy')
    loop.tick(None, ('joy', pad(held=False)))
    loop.tick(None, ('joy', pad()))
    mine = loop.told[-1]
    assert mine.active
    loop.core.on_intervention(replace(mine, stamp_ns=mine.stamp_ns + 1_000_000))
    assert loop.tick(None, ('joy', pad())) is not None
    loop.core.on_intervention(replace(mine, stamp_ns=mine.stamp_ns, active=False))
    other = replace(mine, stamp_ns=mine.stamp_ns - 5_000_000, operator_name='Ada')
    loop.core._peers._other = None
    loop.core.on_intervention(other)
    assert loop.tick(None, ('joy', pad())) is None
    assert loop.core.idle == 'Ada has control'
