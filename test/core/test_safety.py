"""What the guard does: rows of the fault matrix of docs/safety.md that need no process."""

from dataclasses import replace
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.safety.base import Check, Stage
from chunkpilot_core.safety.clock import Clock
from chunkpilot_core.safety.estop import EStop
from chunkpilot_core.safety.runtime.checks import MANDATORY
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.safety.tool_speed import ToolSpeed
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    CommandGroup,
    Health,
    Id,
    JointState,
    Kind,
    nanoseconds,
    Observation,
    Reaction,
    Rotation,
    RowSource,
)
import numpy as np
import pytest

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()
HOME = np.array(ROBOT.home)
BRAKING = 0.5 / 15.0 + 0.011  # [s] from 0.5 rad/s of joint 1, and one tick


def observation(seq: int, health: Health, reason: str = '') -> Observation:
    return Observation(
        Id(3, seq), 0, 0, (), np.zeros(0, np.float32), health=health, health_reason=reason
    )


# ---- D1: what is no command --------------------------------------------------------------------


def bad(change: str) -> Any:
    """Return a function from a bench to a faulty command."""
    nan_joint = HOME.copy()
    nan_joint[3] = np.nan

    def make(bench: Any) -> Any:
        names = ROBOT.arm_joints
        arm = bench.home().groups[0]
        match change:
            case 'nan':
                return bench.joints(nan_joint)
            case 'inf':
                return bench.joints(np.where(np.isnan(nan_joint), np.inf, HOME))
            case '1e308':
                return bench.joints(np.where(np.isnan(nan_joint), 1e308, HOME))
            case 'nan velocity':
                return bench.command((replace(arm, velocity=np.full(7, np.nan)),))
            case 'six':
                return bench.command((replace(arm, values=HOME[:6]),))
            case 'eight':
                return bench.command((replace(arm, values=np.append(HOME, 0.0)),))
            case 'unknown joint':
                return bench.command((replace(arm, names=(*names[:6], 'elbow')),))
            case 'no names':
                return bench.command((replace(arm, names=()),))
            case 'doubled joint':
                return bench.command((replace(arm, names=(*names[:6], names[0])),))
            case 'no arm':
                return bench.command(())
            case 'two arms':
                return bench.command((arm, arm))
            case 'velocity kind':
                return bench.command((replace(arm, kind=Kind.JOINT_VELOCITY),))
            case 'foreign frame':
                pose = CommandGroup('arm', Kind.EE_POSE, np.zeros(3), np.zeros(3), 'camera')
                return bench.command((pose,))
            case 'quaternion':
                values = np.array([0.0, 0.0, 0.2, 1.0, 1.0, 0.0, 0.0])
                pose = CommandGroup(
                    'arm', Kind.EE_POSE, values, np.zeros(7), 'world', Rotation.QUATERNION
                )
                return bench.command((pose,))
            case 'nan width':
                return bench.joints(HOME, width=np.nan)
            case 'old stamp':
                return bench.home(stamp_ns=bench.now_ns() - nanoseconds(10.0))
            case 'future stamp':
                return bench.home(stamp_ns=bench.now_ns() + nanoseconds(10.0))
            case _:
                raise AssertionError(change)

    return make


BAD = [
    ('nan', 'panda_joint4 is nan', 'panda_joint4'),  # rows 1 and 2
    ('inf', 'panda_joint4 is inf', 'panda_joint4'),
    ('1e308', '1e\\+308', 'panda_joint4'),
    ('nan velocity', 'is nan', 'panda_joint1'),
    ('six', '6 values', 'arm'),  # row 4
    ('eight', '8 values', 'arm'),
    ('unknown joint', 'elbow', ''),  # row 6
    ('no names', 'expected each of', ''),
    ('doubled joint', 'expected each of', ''),
    ('no arm', 'exactly one must move the arm', ''),
    ('two arms', 'exactly one must move the arm', ''),
    ('velocity kind', 'exactly one must move the arm', ''),
    ('foreign frame', "'camera'", ''),
    ('quaternion', 'norm', 'quaternion'),
    ('nan width', 'gripper', 'gripper[0]'),
    ('old stamp', 'stamp is 10', 'stamp'),  # row 21
    ('future stamp', 'in the future', 'stamp'),
]


@pytest.mark.matrix(1, 2, 4, 6, 21)
@pytest.mark.parametrize(('change', 'reason', 'joint'), BAD)
def test_a_faulty_command_is_rejected_and_the_last_target_kept(
    bench: Any, change: str, reason: str, joint: str
) -> None:
    import re

    arm = bench().armed()
    arm.ticks(5, arm.home)
    before = arm.last.positions
    tick = arm.tick(bad(change)(arm))
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK
    assert re.search(reason, tick.verdict.reason), tick.verdict.reason
    assert tick.verdict.joint == joint
    assert arm.state is ArmState.ARMED
    assert np.array_equal(tick.positions, before)
    assert [event.kind for event in tick.events] == ['rejection']
    assert arm.tick(arm.home()).verdict.reaction is Reaction.PASS


@pytest.mark.matrix(1)
def test_more_than_five_faults_a_second_hold_and_more_than_twenty_stop(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(5, arm.home)
    for count in range(1, 21):
        arm.tick(bad('nan')(arm))
        assert arm.state is (ArmState.ARMED if count <= 5 else ArmState.HOLD)
    arm.tick(bad('nan')(arm))
    assert arm.state is ArmState.STOPPED
    assert 'panda_joint4 is nan' in arm.last.verdict.reason
    rejections = [event for event in arm.events if event.kind == 'rejection']
    assert len(rejections) == 1, 'repeated events are counted, not repeated'


@pytest.mark.matrix(5)
def test_the_order_of_joint_names_does_not_matter(bench: Any) -> None:
    """Row 5."""
    order = np.array([6, 2, 0, 1, 5, 3, 4])
    target = HOME + 0.001 * np.arange(7)
    sent = []
    for permutation in (np.arange(7), order):
        arm = bench().armed()
        arm.ticks(2, arm.home)
        group = CommandGroup(
            'arm',
            Kind.JOINT_POSITION,
            target[permutation],
            np.zeros(0),
            names=tuple(ROBOT.arm_joints[i] for i in permutation),
        )
        sent.append(arm.tick(arm.command((group,))).positions)
    assert np.array_equal(*sent)


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.matrix(9)
@pytest.mark.parametrize('value', [float('nan'), -1.0, 0.0, 'fast', None])
def test_a_limit_that_is_none_stops_the_configuration(value: Any, tmp_path: Any) -> None:
    """Row 9."""
    import yaml

    data = yaml.safe_load(robots.find('panda').read_text())
    data['robot']['joint_limits']['panda_joint2']['max_velocity'] = value
    file = tmp_path / 'broken.yaml'
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match='panda_joint2'):
        robots.load(file)


@pytest.mark.matrix(11)
def test_a_target_beyond_the_limit_is_clamped_and_said_so(bench: Any) -> None:
    """Row 11."""
    arm = bench().armed()
    beyond = HOME.copy()
    beyond[6] = 2.8973 + 1.0
    tick = arm.ticks(300, lambda: arm.joints(beyond))
    verdict = tick.verdict
    assert verdict.reaction is Reaction.CLAMP
    assert (verdict.check, verdict.joint) == ('joint_limits', 'panda_joint7')
    assert verdict.value == pytest.approx(3.8973)
    assert verdict.limit == pytest.approx(2.8473)
    assert verdict.margin == pytest.approx(-1.05)
    assert tick.positions[6] == pytest.approx(2.8473, abs=1e-9)
    assert tick.positions[6] <= 2.8473


@pytest.mark.matrix(14)
def test_a_jump_of_the_setpoint_is_followed_within_the_limits(bench: Any) -> None:
    """Row 14; the bench checks velocity and acceleration at every tick."""
    arm = bench().armed()
    arm.ticks(3, arm.home)
    target = HOME.copy()
    target[6] += 2.0
    first = arm.tick(arm.joints(target))
    assert first.verdict.reaction is Reaction.CLAMP
    assert first.verdict.joint == 'panda_joint7'
    last = arm.ticks(150, lambda: arm.joints(target))
    assert np.array_equal(last.positions[:7], target)
    assert last.verdict.reaction is Reaction.PASS
    assert any(event.kind == 'reaction' and event.check == 'joint_limits' for event in arm.events)


@pytest.mark.matrix(12)
def test_arming_outside_a_soft_limit_lets_the_arm_only_inwards(bench: Any) -> None:
    """Row 12."""
    arm = bench()
    arm.measured[5] = -0.0175 + 0.02  # hard limit of joint 6; the soft one lies 0.03 further in
    arm.armed()
    assert arm.last.positions[5] == pytest.approx(0.0025), 'arming does not move'
    tick = arm.ticks(50, lambda: arm.joints(np.array([*HOME[:5], 1.0, HOME[6]])))
    assert tick.positions[5] > 0.0025
    assert np.abs(tick.verdict.sent_velocity[5]) <= 0.1 or tick.positions[5] > 0.0325 - 1e-9


@pytest.mark.matrix(13)
def test_arming_outside_a_hard_limit_is_refused(bench: Any) -> None:
    """Row 13."""
    arm = bench()
    arm.measured[5] = -0.03
    arm.ticks(2)
    done, why_not = arm.guard.arm(arm.now_ns())
    assert not done
    assert 'panda_joint6' in why_not
    assert arm.last.status.can_arm is False
    assert 'panda_joint6' in arm.last.status.why_not


@pytest.mark.matrix(13)
@pytest.mark.parametrize(('joint', 'start'), [(5, -0.06), (6, 2.95), (4, -2.95)])
def test_recovery_brings_it_in_slowly_and_never_farther_out(
    bench: Any, joint: int, start: float
) -> None:
    arm = bench()
    arm.measured[joint] = start
    low, high = arm.limiter.hard_lower[joint], arm.limiter.hard_upper[joint]
    arm.outside = max(low - start, start - high)
    arm.ticks(2)
    done, why_not = arm.guard.arm(arm.now_ns())
    assert not done
    assert 'guard/recover' in why_not
    done, message = arm.guard.recover(arm.now_ns())
    assert done, message
    arm.ticks(101)
    assert arm.last.positions[joint] == start  # nothing moves by itself, and nothing jumps
    outwards = arm.measured[:7].copy()
    outwards[joint] += 0.2 * np.sign(start - (low + high) / 2.0)
    arm.ticks(50, lambda: arm.joints(outwards))
    assert arm.outside >= max(low - arm.measured[joint], arm.measured[joint] - high)
    done, message = arm.guard.move_to(None, 0.5, arm.now_ns())
    assert done, message
    before = arm.last.positions[joint]
    for _ in range(600):
        here = arm.tick().positions[joint]
        if not low <= before <= high:
            assert abs(here - before) <= 0.1 * 0.01 + 1e-9
        before = here
    assert arm.state is ArmState.ARMED
    assert np.allclose(arm.measured[:7], HOME, atol=1e-6)


@pytest.mark.matrix(13)
def test_too_far_outside_there_is_no_recovery(bench: Any) -> None:
    arm = bench()
    arm.measured[6] = 3.05
    arm.ticks(2)
    for request in (arm.guard.arm, arm.guard.recover):
        done, why_not = request(arm.now_ns())
        assert not done
        assert 'by hand' in why_not
    assert arm.guard.silent


def test_at_reduced_speed_the_tool_keeps_a_quarter_of_a_metre_a_second(bench: Any) -> None:
    arm = bench(checks={'tool_speed': ToolSpeed.Config(reduced=True)}).armed()
    fastest = 0.0
    for _ in range(300):
        before = arm.last.positions
        tick = arm.tick(arm.joints(HOME + np.array([0.5, 0, 0, 0, 0, 0, 0])))
        tools = [arm.guard.kinematics.forward(q[:7]).position for q in (before, tick.positions)]
        fastest = max(fastest, float(np.linalg.norm(tools[1] - tools[0])) / 0.01)
    assert 0.2 < fastest <= 0.25 + 1e-4
    assert np.allclose(arm.measured[0], 0.5)


def test_an_admissible_motion_passes_bit_for_bit(bench: Any) -> None:
    """P4, joints."""
    arm = bench().armed()
    began = arm.now_s
    for _ in range(300):
        passed = arm.now_s + 0.01 - began
        target = HOME + 0.15 * (1.0 - np.cos(2.0 * passed)) * np.array([1, 0.3, -1, 0.4, 1, -1, 1])
        tick = arm.tick(arm.joints(target))
        assert np.array_equal(tick.positions[:7], target)
        assert tick.verdict.reaction is Reaction.PASS


def test_a_smooth_tool_motion_passes_unchanged_even_with_jitter(bench: Any) -> None:
    """P4 behind inverse kinematics: what is sent is its result, not a recomputed one."""
    arm = bench().armed()
    start = arm.guard.kinematics.forward(HOME).position
    random, began = np.random.default_rng(0), arm.now_s
    changed = 0
    for tick_number in range(400):
        dt = 0.01 + float(random.uniform(-0.004, 0.004))
        stamp_s = arm.now_s + dt
        angle = 1.2 * (stamp_s - began)
        offset = np.array([0.08 * np.sin(angle), 0.1 * (1 - np.cos(angle)), -0.05 * np.sin(angle)])
        begun = min(1.0, 0.5 * (stamp_s - began))
        offset *= begun**2 * (3.0 - 2.0 * begun)
        command = arm.tool(start + offset, stamp_ns=nanoseconds(stamp_s))
        tick = arm.tick(command, dt=dt)
        changed += tick.verdict.reaction is not Reaction.PASS
        if tick_number > 0 and tick.verdict.reaction is Reaction.PASS:
            assert np.array_equal(tick.positions, tick.verdict.requested)
            reached = arm.guard.kinematics.forward(tick.positions[:7]).position
            assert np.abs(reached - start - offset).max() < 1e-6
    assert changed <= 4


# ---- workspace and tool ------------------------------------------------------------------------


def test_a_tool_target_outside_the_box_slides_along_its_wall(bench: Any) -> None:
    arm = bench().armed()
    start = arm.guard.kinematics.forward(HOME).position
    height = start[2]
    while height > -0.05:
        height -= 0.002
        tick = arm.tick(arm.tool(np.array([start[0], start[1], height])))
    assert tick.verdict.reaction is Reaction.CLAMP
    assert (tick.verdict.check, tick.verdict.joint) == ('workspace', 'tool.z')
    assert tick.verdict.limit == pytest.approx(0.007)
    tool = arm.guard.kinematics.forward(tick.positions[:7]).position
    assert tool[2] >= 0.005
    aside = start[0]
    for _ in range(60):
        aside += 0.001
        tick = arm.tick(arm.tool(np.array([aside, start[1], -0.05])))
    moved = arm.guard.kinematics.forward(tick.positions[:7]).position
    assert moved[0] == pytest.approx(aside, abs=5e-3), 'free along the wall'


@pytest.mark.matrix(27)
def test_joint_targets_that_leave_the_box_stop_inside_and_may_come_back(bench: Any) -> None:
    """Row 27."""
    arm = bench().armed()
    out = HOME.copy()
    out[0] = 1.2  # the tool swings out at the side
    deepest = 0.0
    reactions = set()
    for _ in range(150):
        tick = arm.tick(arm.joints(out))
        tool = arm.guard.kinematics.forward(tick.positions[:7]).position
        deepest = max(deepest, tool[1])
        reactions.add(tick.verdict.reaction)
    assert Reaction.SLOW in reactions
    assert deepest <= 0.40 + 1e-3
    assert not np.any(tick.verdict.sent_velocity)
    assert tick.verdict.joint == 'tool.y'
    back = arm.ticks(150, arm.home)
    assert np.allclose(back.positions[:7], HOME)


def test_the_tool_is_not_faster_than_its_limit(bench: Any) -> None:
    arm = bench().armed()
    target = HOME.copy()
    target[0], target[3] = 0.5, -1.5
    fastest, before = 0.0, HOME
    for _ in range(100):
        tick = arm.tick(arm.joints(target))
        tools = [arm.guard.kinematics.forward(q[:7]).position for q in (before, tick.positions)]
        fastest = max(fastest, float(np.linalg.norm(tools[1] - tools[0])) / 0.01)
        before = tick.positions
    assert 0.5 < fastest <= ROBOT.max_tool_speed * 1.02


def test_a_pose_out_of_reach_is_rejected_with_the_reason(bench: Any) -> None:
    arm = bench().armed()
    flipped = np.array([-0.4, 0.0, 0.02, 0.0, 0.0, 0.0, 1.0])  # pointing up, close to the base
    pose = CommandGroup('arm', Kind.EE_POSE, flipped, np.zeros(7), 'world', Rotation.QUATERNION)
    tick = arm.tick(arm.command((pose,)))
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK
    assert tick.verdict.check == 'kinematics'
    assert 'no joint angles found' in tick.verdict.reason
    assert np.array_equal(tick.positions[:7], HOME)


# ---- silence, measured state, clock ------------------------------------------------------------


@pytest.mark.matrix(18)
def test_silence_holds_after_200_ms_and_the_arm_rests_long_before(bench: Any) -> None:
    """Row 18."""
    arm = bench().armed()
    arm.ticks(50, arm.moving())
    sent_last_s = arm.now_s
    while arm.state is ArmState.ARMED:
        tick = arm.tick()
        assert arm.now_s - sent_last_s < 0.25
    assert arm.now_s - sent_last_s == pytest.approx(0.21, abs=0.0101)
    assert not np.any(tick.verdict.sent_velocity[:7])
    assert tick.verdict.check == 'staleness'
    held = tick.positions
    for _ in range(40):
        assert np.array_equal(arm.tick().positions, held), 'constant output while holding'


@pytest.mark.matrix(20)
def test_a_late_command_neither_holds_nor_jerks(bench: Any) -> None:
    """Row 20, a gap of 20 ms: the target coasts on, and the stream is met where it is."""
    arm = bench().armed()
    send = arm.moving(0.5)
    arm.ticks(50, send)
    for _ in range(2):
        tick = arm.tick()
        assert tick.verdict.sent_velocity[0] == pytest.approx(0.5, abs=1e-6)
    tick = arm.tick(send())
    assert tick.verdict.reaction is Reaction.PASS
    assert tick.verdict.sent_velocity[0] == pytest.approx(0.5, abs=1e-6)


def test_a_hold_for_silence_releases_itself_into_a_new_epoch(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(50, arm.moving())
    old_epoch = arm.guard.machine.epoch
    hold_began = None
    while arm.guard.machine.epoch == old_epoch:
        arm.tick()
        if hold_began is None and arm.state is ArmState.HOLD:
            hold_began = arm.now_s
    assert arm.now_s - hold_began == pytest.approx(0.5, abs=0.03)
    assert arm.state is ArmState.ARMED
    assert arm.last.status.ramping
    still = arm.last.positions
    for _ in range(30):  # the old chunk goes on for a while: refused, but no fault
        tick = arm.tick(arm.joints(HOME, arm_epoch=old_epoch))
        assert tick.verdict.reaction is Reaction.REJECT_CHUNK
        assert np.array_equal(tick.positions, still)
    assert arm.state is ArmState.ARMED
    old_view = nanoseconds(hold_began - 0.2)
    tick = arm.tick(arm.joints(still[:7], row=3, observation_stamp_ns=old_view))
    assert 'older than the last hold' in tick.verdict.reason
    tick = arm.tick(arm.joints(still[:7], row=3))
    assert tick.verdict.reaction is Reaction.PASS


def test_idle_after_arming_and_between_episodes_is_no_silence(bench: Any) -> None:
    arm = bench().armed()
    tick = arm.ticks(200)
    assert arm.state is ArmState.ARMED
    assert np.array_equal(tick.positions[:7], HOME), 'idle output is constant'
    arm.guard.set_episode(True, 'one', 'task')
    arm.ticks(20, arm.home)
    arm.guard.set_episode(False)
    arm.ticks(100)
    assert arm.state is ArmState.ARMED
    arm.guard.set_episode(True, 'two', 'task')
    arm.ticks(100)
    assert arm.state is ArmState.ARMED, 'the policy may take its time for the first command'
    arm.ticks(5, arm.home)
    arm.ticks(25)
    assert arm.state is ArmState.HOLD


def test_three_holds_by_one_cause_stop(bench: Any) -> None:
    arm = bench().armed()
    for number in range(3):
        arm.ticks(5, lambda: arm.joints(arm.measured[:7]))
        arm.ticks(25)
        assert arm.state is (ArmState.HOLD if number < 2 else ArmState.STOPPED)
        if number < 2:
            arm.ticks(60)
            assert arm.state is ArmState.ARMED
    assert '3 holds by staleness' in arm.last.verdict.reason


def test_a_second_or_restarted_sender_does_not_take_over(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(10, arm.home)
    arm.session = 8
    moved = HOME + 0.001
    tick = arm.tick(arm.joints(moved))
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK
    assert 'arm again' in tick.verdict.reason
    arm.guard.disarm(arm.now_ns())
    arm.armed()
    assert arm.tick(arm.joints(moved)).verdict.reaction is not Reaction.REJECT_CHUNK


def test_repeated_and_late_commands_and_chunks_are_dropped(bench: Any) -> None:
    arm = bench().armed()
    newest = arm.home(chunk_id=Id(9, 5))
    arm.tick(newest)
    assert 'after' in arm.tick(newest).verdict.reason
    tick = arm.tick(arm.home(chunk_id=Id(9, 4)))
    assert 'chunk 4 after 5' in tick.verdict.reason
    assert arm.state is ArmState.ARMED


def test_a_row_on_an_old_observation_holds(bench: Any) -> None:
    arm = bench().armed()
    seen_ns = arm.now_ns()
    while arm.state is ArmState.ARMED and arm.now_s * 1e9 - seen_ns < 2e9:
        arm.tick(arm.home(row=1, observation_stamp_ns=seen_ns, max_row_age_s=0.5))
    assert (arm.now_ns() - seen_ns) * 1e-9 == pytest.approx(0.71, abs=0.02)
    assert arm.last.verdict.check == 'staleness'
    assert 'row 1' in arm.last.verdict.reason


@pytest.mark.matrix(8)
def test_nan_in_the_joint_state_holds_and_releases(bench: Any) -> None:
    """Row 8."""
    arm = bench().armed()
    send = arm.moving()
    arm.ticks(50, send)
    arm.state_comes = False
    broken = arm.measured.copy()
    broken[2] = np.nan
    arm.now_s += 0.0
    arm.measure(positions=broken)
    tick = arm.tick(send())
    assert arm.state is ArmState.HOLD
    assert 'panda_joint3 is nan' in tick.verdict.reason
    arm.state_comes = True
    arm.ticks(60)
    assert arm.state is ArmState.ARMED


@pytest.mark.matrix(8)
@pytest.mark.parametrize('value', [np.inf, -1e308, 1e9])
def test_a_position_that_no_joint_can_have_holds(bench: Any, value: float) -> None:
    arm = bench().armed()
    arm.ticks(5, arm.home)
    arm.state_comes = False
    broken = arm.measured.copy()
    broken[2] = value
    arm.measure(positions=broken)
    tick = arm.tick(arm.home())
    assert arm.state is ArmState.HOLD
    assert 'measured position of panda_joint3 is' in tick.verdict.reason


@pytest.mark.matrix(23)
def test_joint_states_that_stop_hold_and_then_stop(bench: Any) -> None:
    """Row 23."""
    arm = bench().armed()
    send = arm.moving()
    arm.ticks(50, send)
    arm.state_comes, last_s = False, arm.now_s
    while arm.state is ArmState.ARMED:
        arm.tick(send())
    assert arm.now_s - last_s == pytest.approx(0.11, abs=0.0101)
    until_rest = 0
    while np.any(arm.tick(send()).verdict.sent_velocity):
        until_rest += 1
    assert until_rest * 0.01 <= BRAKING
    while arm.state is ArmState.HOLD:
        arm.tick()
    assert arm.state is ArmState.STOPPED
    assert arm.now_s - last_s == pytest.approx(1.01, abs=0.0101)


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'names': ROBOT.joints[:-1]}, '8 names, 9 positions'),
        ({'names': (*ROBOT.joints[:-1], 'wrist')}, 'lacks'),
        ({'names': (*ROBOT.joints[:-1], ROBOT.joints[0])}, 'twice'),
    ],
)
def test_a_joint_state_that_is_not_whole_holds(bench: Any, changes: Any, reason: str) -> None:
    arm = bench().armed()
    arm.state_comes = False
    arm.measure(**changes)
    arm.tick(arm.home())
    assert arm.state is ArmState.HOLD
    assert reason in arm.last.verdict.reason


@pytest.mark.matrix(22)
def test_frozen_positions_while_moving_hold(bench: Any) -> None:
    """Row 22."""
    arm = bench().armed()
    send = arm.moving(0.15)  # faster, and the tracking check says so before this one
    arm.ticks(50, send)
    arm.follows, froze_s = False, arm.now_s
    while arm.state is ArmState.ARMED and arm.now_s < froze_s + 1.0:
        arm.tick(send())
    assert arm.now_s - froze_s <= 0.32
    assert 'frozen' in arm.last.verdict.reason


@pytest.mark.matrix(25, 26)
@pytest.mark.parametrize('jump_s', [-60.0, 10.0])
def test_a_jump_of_ros_time_holds_in_a_new_epoch(bench: Any, jump_s: float) -> None:
    """Rows 25 and 26."""
    arm = bench().armed()
    send = arm.moving()
    arm.ticks(50, send)
    epoch = arm.guard.machine.epoch
    stale = send()
    tick = arm.tick(stale, jump_s=jump_s)
    assert arm.state is ArmState.HOLD
    assert 'ROS time jumped' in tick.verdict.reason
    assert arm.guard.machine.epoch == epoch + 1
    arm.ticks(70)
    assert arm.state is ArmState.ARMED
    assert arm.guard.machine.epoch == epoch + 2
    assert arm.tick(stale).verdict.reaction is Reaction.REJECT_CHUNK


def test_ros_time_that_stands_still_holds(bench: Any) -> None:
    arm = bench(checks={'clock': Clock.Config(stopped_s=0.3)}).armed()
    for _ in range(40):
        arm.tick(jump_s=-0.01)
    assert arm.state is ArmState.HOLD
    assert 'stood still' in arm.last.verdict.reason


def test_bad_observations_in_a_row_hold_while_a_policy_drives(bench: Any) -> None:
    arm = bench().armed()
    for seq in range(1, 10):
        arm.guard.on_observation(observation(seq, Health.BAD, 'camera blind'), arm.now_ns())
        arm.ticks(2)
    assert arm.state is ArmState.ARMED, 'nobody drives'
    arm.guard.on_observation(observation(10, Health.OK), arm.now_ns())
    arm.ticks(5, arm.home)
    for seq in range(11, 14):
        assert arm.state is ArmState.ARMED
        arm.guard.on_observation(observation(seq, Health.BAD, 'camera blind'), arm.now_ns())
        arm.ticks(2, arm.home)
    assert arm.state is ArmState.HOLD
    assert 'camera blind' in arm.last.verdict.reason
    arm.ticks(100)
    assert arm.state is ArmState.HOLD, 'still blind'
    arm.guard.on_observation(observation(14, Health.OK), arm.now_ns())
    arm.ticks(60)
    assert arm.state is ArmState.ARMED


# ---- emergency stop, stop, reset, hold ---------------------------------------------------------


@pytest.mark.matrix(42, 43, 44, 45, 46)
def test_an_emergency_stop_in_motion(bench: Any) -> None:
    """Rows 42 to 46."""
    arm = bench().armed()
    send = arm.moving()
    arm.ticks(50, send)
    width = arm.last.positions[7:].copy()
    epoch = arm.guard.machine.epoch
    arm.guard.on_estop(True, 'button', arm.now_ns())
    tick = arm.tick(send())
    assert arm.state is ArmState.ESTOP
    assert tick.verdict.reaction is Reaction.ESTOP
    pressed_s = arm.now_s
    while np.any(arm.tick(send()).verdict.sent_velocity):
        assert arm.now_s - pressed_s < BRAKING
    assert np.array_equal(arm.last.positions[7:], width), 'the gripper keeps its width'
    arm.ticks(60)
    done, why_not = arm.guard.reset(arm.now_ns())
    assert not done
    assert 'button' in why_not
    assert arm.last.status.estop_sources == ('button',)
    arm.guard.on_estop(False, 'button', arm.now_ns())
    arm.ticks(100)
    assert arm.state is ArmState.ESTOP, 'letting go does not clear it'
    done, message = arm.guard.reset(arm.now_ns())
    assert done, message
    arm.ticks(1)
    assert arm.state is ArmState.DISARMED
    assert arm.guard.machine.epoch == epoch + 1
    before = arm.measured.copy()
    for _ in range(200):
        assert arm.tick(send()).positions is None, 'a reset never re-arms'
    assert np.array_equal(arm.measured, before)
    old_epoch = arm.guard.machine.epoch
    arm.armed(ramped=False)
    assert arm.last.status.ramping
    tick = arm.tick(arm.joints(HOME, arm_epoch=old_epoch))
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK


def test_a_press_between_two_ticks_counts(bench: Any) -> None:
    arm = bench().armed()
    arm.guard.on_estop(True, 'button', arm.now_ns())
    arm.guard.on_estop(False, 'button', arm.now_ns())
    arm.tick()
    assert arm.state is ArmState.ESTOP


def test_an_emergency_stop_before_arming_sends_nothing(bench: Any) -> None:
    arm = bench()
    arm.ticks(2)
    arm.guard.on_estop(True, 'button', arm.now_ns())
    assert arm.ticks(10).positions is None, 'there is no setpoint that means anything'
    assert arm.state is ArmState.ESTOP


@pytest.mark.matrix(44)
def test_reset_is_refused_during_cool_down_and_while_the_robot_moves(bench: Any) -> None:
    """Row 44."""
    arm = bench().armed()
    arm.guard.stop(arm.now_ns())
    arm.ticks(10)
    assert 'last cause' in arm.guard.reset(arm.now_ns())[1]
    arm.ticks(60)
    arm.velocity[1], arm.follows = 0.1, False
    arm.tick()
    assert 'panda_joint2' in arm.guard.reset(arm.now_ns())[1]
    arm.velocity[1] = 0.0
    arm.tick()
    assert arm.guard.reset(arm.now_ns())[0]


@pytest.mark.matrix(47)
def test_the_heartbeat_of_a_required_emergency_stop(bench: Any) -> None:
    """Row 47."""
    arm = bench(checks={'estop': EStop.Config(required=('cell',))})
    arm.ticks(3)
    assert 'cell' in arm.guard.arm(arm.now_ns())[1]
    arm.guard.on_estop(False, 'cell', arm.now_ns())
    arm.armed(ramped=False)
    while arm.state is ArmState.ARMED:
        arm.tick()
    assert arm.state is ArmState.ESTOP
    assert 'heartbeat' in arm.last.verdict.reason


def test_a_requested_hold_lasts_until_resumed_and_then_times_out(bench: Any) -> None:
    arm = bench(machine=Machine.Config(hold_timeout_s=2.0)).armed()
    assert arm.guard.hold(arm.now_ns())[0]
    arm.ticks(150)
    assert arm.state is ArmState.HOLD
    epoch = arm.guard.machine.epoch
    assert arm.guard.resume(arm.now_ns())[0]
    arm.tick()
    assert arm.state is ArmState.ARMED
    assert arm.guard.machine.epoch == epoch + 1
    arm.guard.hold(arm.now_ns())
    arm.ticks(210)
    assert arm.state is ArmState.STOPPED


def test_resume_is_refused_while_the_cause_lasts(bench: Any) -> None:
    arm = bench().armed()
    arm.state_comes = False
    arm.ticks(20)
    assert arm.state is ArmState.HOLD
    done, why_not = arm.guard.resume(arm.now_ns())
    assert not done
    assert 'joint_state' in why_not


def test_the_gripper_keeps_its_grip_through_stop_reset_and_arm(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(60, lambda: arm.joints(HOME, width=0.0))
    assert arm.last.positions[7] == 0.0
    arm.follows = False
    arm.measured[7:] = 0.02  # it holds something
    arm.guard.stop(arm.now_ns())
    assert arm.ticks(60).positions[7] == 0.0
    assert arm.guard.reset(arm.now_ns())[0]
    arm.armed(ramped=False)
    assert arm.last.positions[7] == 0.0, 'still squeezing'
    arm.guard.disarm(arm.now_ns())
    arm.measured[7:] = 0.04  # somebody opened it meanwhile
    arm.armed(ramped=False)
    assert arm.last.positions[7] == 0.04, 'then it stays as it is'


def test_disarming_in_motion_decelerates_first(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(50, arm.moving())
    done, message = arm.guard.disarm(arm.now_ns())
    assert done
    assert 'decelerating' in message
    ticks = 0
    while arm.tick().positions is not None:
        ticks += 1
    assert arm.state is ArmState.DISARMED
    assert 1 <= ticks * 0.01 <= BRAKING + 0.01 or ticks <= 6


def test_arming_starts_where_the_robot_is_and_ramps(bench: Any) -> None:
    arm = bench()
    arm.measured[0] = 0.3
    arm.ticks(2)
    assert arm.last.positions is None, 'silent while disarmed'
    assert arm.guard.arm(arm.now_ns())[0]
    tick = arm.tick()
    assert np.array_equal(tick.positions, arm.measured)
    scales = []
    for _ in range(110):
        scales.append(arm.tick(arm.home()).speed_scale)
    assert scales == sorted(scales)
    assert scales[-1] == 1.0
    assert 0.4 < scales[45] < 0.6
    assert arm.guard.arm(arm.now_ns()) == (False, 'is ARMED, must be DISARMED')


def test_arming_needs_a_fresh_state_of_a_resting_robot(bench: Any) -> None:
    arm = bench()
    arm.state_comes = False
    arm.ticks(2)
    assert 'no joint state' in arm.guard.arm(arm.now_ns())[1]
    arm.state_comes = True
    arm.tick()
    arm.state_comes = False
    arm.ticks(20)
    assert 'not fresh' in arm.guard.arm(arm.now_ns())[1]
    arm.measure(velocities=np.full(9, 0.05))
    assert 'moves' in arm.guard.arm(arm.now_ns())[1]
    assert arm.state is ArmState.DISARMED


def chunk(arm: Any) -> ActionChunk:
    """Return one of which nothing is wrong."""
    return ActionChunk(
        Id(9, 1),
        Id(7, 1),
        arm.guard.machine.epoch,
        '',
        Id(3, 1),
        arm.now_ns(),
        arm.now_ns(),
        0.04,
        np.zeros((8, 4), np.float32),
        SPACE.hash,
        'test',
        0,
    )


@pytest.mark.matrix(48)
def test_an_exception_in_each_check_stops_but_never_silences(bench: Any) -> None:
    """Row 48."""
    for name in MANDATORY:
        arm = bench().armed()
        send = arm.moving()
        arm.ticks(20, send)
        for checks in arm.guard._checks._stages.values():
            for check in checks:
                if check.name == name:
                    check.check = lambda situation: 1 / 0
        arm.guard.set_space(SPACE, 0.04)
        arm.guard.on_chunk(chunk(arm), arm.now_ns())
        tick = arm.tick(send())
        assert arm.state is ArmState.STOPPED, name
        assert tick.verdict.check == 'internal_error'
        assert 'ZeroDivisionError' in tick.verdict.reason
        for _ in range(20):
            tick = arm.tick(send())
            assert tick.positions is not None
        assert not np.any(tick.verdict.sent_velocity)


def test_a_wrong_output_is_not_sent(bench: Any) -> None:
    arm = bench().armed()
    arm.ticks(3, arm.home)
    before = arm.last.positions
    step = arm.limiter.step

    def broken(*arguments: Any, **options: Any) -> Any:
        found = step(*arguments, **options)
        return found._replace(positions=found.positions + 0.5 * np.eye(9)[0])

    arm.limiter.step = broken
    tick = arm.tick(arm.home())
    assert arm.state is ArmState.STOPPED
    assert tick.verdict.check == 'output_assert'
    assert np.array_equal(tick.positions, before)


# ---- moving on request -------------------------------------------------------------------------


def test_move_to_goes_home_gently_and_ignores_commands_meanwhile(bench: Any) -> None:
    arm = bench()
    arm.measured[:7] = HOME + np.array([0.5, -0.2, 0.3, 0.2, 0.1, -0.3, 0.4])
    arm.armed()
    assert arm.guard.move_to(None, 0.0, arm.now_ns()) == (True, 'moving')
    fastest = 0.0
    ticks = 0
    while not arm.last.status.at_target:
        tick = arm.tick(arm.joints(np.zeros(7) - 1.0))
        fastest = max(fastest, np.abs(tick.verdict.sent_velocity[:7] / 2.175).max())
        ticks += 1
        assert ticks < 400
        assert tick.verdict.source == 'homing' or tick.status.at_target
    assert np.array_equal(arm.last.positions[:7], HOME)
    assert fastest <= 0.3 * 1.2 + 1e-9
    assert arm.ticks(30).verdict.state is ArmState.ARMED


@pytest.mark.parametrize(
    ('joints', 'fraction', 'reason'),
    [
        (np.zeros(5), 0.3, '5 positions'),
        (np.full(7, np.nan), 0.3, 'finite'),
        (np.array([*HOME[:3], 0.0, *HOME[4:]]), 0.3, 'panda_joint4'),
        (HOME, 2.0, 'fraction'),
    ],
)
def test_move_to_somewhere_impossible_is_refused(
    bench: Any, joints: Any, fraction: float, reason: str
) -> None:
    arm = bench().armed()
    done, message = arm.guard.move_to(joints, fraction, arm.now_ns())
    assert not done
    assert reason in message
    arm.guard.stop(arm.now_ns())
    assert arm.guard.move_to(None, 0.3, arm.now_ns())[0] is False


# ---- rows as really sent -----------------------------------------------------------------------


def drive(arm: Any, rows: Any, scale_of_time: float = 1.0) -> list[Any]:
    """Send the rows of one chunk as the execution node would; returns the executed batches."""
    kinematics = arm.guard.kinematics
    start = spaces.from_joints(
        SPACE, kinematics, JointState(0, ROBOT.joints, arm.measured, np.zeros(9))
    )
    targets = spaces.resolve(SPACE, rows, start)
    begin, row_s = arm.now_s + 0.0137, 0.04 * scale_of_time
    while True:
        passed = (arm.now_s + 0.01 - begin) / row_s
        row, fraction = max(int(passed), 0), max(passed - max(int(passed), 0), 0.0)
        if row >= len(rows):
            break
        before = start if row == 0 else targets[row - 1]
        target = spaces.interpolate(SPACE, before, targets[row], fraction)
        rate = (targets[row] - before) / row_s
        groups = spaces.command_groups(SPACE, target, rate)
        arm.tick(arm.command(groups, row=row, chunk_id=Id(4, 1)))
    arm.guard.set_episode(False)
    return arm.guard.executed()


def gentle(count: int) -> Any:
    """Return rows whose velocity changes slowly enough for the arm to follow exactly."""
    phase = np.linspace(0.0, np.pi, count)
    rows = np.zeros((count, 4), np.float32)
    rows[:, 0] = 0.05 * np.sin(phase) ** 2
    rows[:, 1] = -0.04 * np.sin(phase) ** 2
    rows[:, 3] = 1.0
    return rows


def test_executed_rows_are_the_policys_rows_where_nothing_was_changed(bench: Any) -> None:
    arm = bench().armed()
    arm.guard.set_space(SPACE, 0.04)
    arm.guard.set_episode(True, 'episode', 'task')
    rows = gentle(40)
    batches = drive(arm, rows)
    assert [batch.first_row for batch in batches] == [0, 8, 16, 24, 32]
    assert all(batch.chunk_id == Id(4, 1) and batch.episode_id == 'episode' for batch in batches)
    got = np.concatenate([batch.rows for batch in batches])
    sources = [source for batch in batches for source in batch.sources]
    assert np.abs(got - rows[: len(got)]).max() < 5e-3
    kept = [i for i, source in enumerate(sources) if source is RowSource.POLICY]
    assert len(kept) >= 0.9 * len(got)
    ends = np.array([stamp for batch in batches for stamp in batch.stamps_ns])
    assert np.allclose(np.diff(ends), 0.04e9, atol=0.011e9)


def test_rows_that_the_limiter_changed_are_the_guards(bench: Any) -> None:
    arm = bench().armed()
    arm.guard.set_space(SPACE, 0.04)
    arm.guard.set_episode(True, 'episode', 'task')
    rows = np.zeros((12, 4), np.float32)
    rows[:, 1], rows[:, 3] = 0.5, 1.0  # 0.6 m/s from rest at once
    batches = drive(arm, rows)
    assert batches[0].sources[0] is RowSource.GUARD
    assert batches[0].rows[0, 1] < 0.45
    sent = np.concatenate([batch.joints for batch in batches])
    tool = arm.guard.kinematics.forward(sent[-1][:7]).position
    start = arm.guard.kinematics.forward(HOME).position
    covered = sum(batch.rows[:, 1].sum() for batch in batches) * 0.05
    assert tool[1] - start[1] == pytest.approx(covered, abs=1e-3), 'rows add up to the motion'


def test_starved_ticks_give_starved_rows(bench: Any) -> None:
    arm = bench().armed()
    arm.guard.set_space(SPACE, 0.04)
    arm.guard.set_episode(True, 'episode', 'task')
    state = JointState(0, ROBOT.joints, arm.measured, np.zeros(9))
    here = spaces.from_joints(SPACE, arm.guard.kinematics, state)
    groups = spaces.command_groups(SPACE, here, np.zeros(4))
    arm.ticks(40, lambda: arm.command(groups, starved=True))
    arm.guard.set_episode(False)
    sources = [source for batch in arm.guard.executed() for source in batch.sources]
    assert sources
    assert set(sources) == {RowSource.STARVED}


def test_commands_that_lack_a_group_of_the_space_give_no_rows_and_no_fault(bench: Any) -> None:
    arm = bench().armed()
    arm.guard.set_space(SPACE, 0.04)
    arm.guard.set_episode(True, 'episode', 'task')
    for _ in range(20):  # without a gripper; joints under the name of a pose
        arm.tick(arm.joints(HOME, space_hash=SPACE.hash))
        assert arm.guard.executed() == []
    assert arm.last.verdict.state is ArmState.ARMED
    arm.guard.set_episode(False)
    assert arm.guard.executed() == []


# ---- construction ------------------------------------------------------------------------------


def test_checks_run_in_the_order_of_the_specification_and_cannot_be_left_out() -> None:
    guard = Guard(ROBOT)
    stages = guard._checks._stages
    names = [check.name for stage in Stage for check in stages[stage]]
    assert names == [
        'estop',
        'clock',
        'overrun',
        'joint_state',
        'staleness',
        'stream_rate',
        'sensor_health',
        'obstacles',
        'tracking',
        'chunk_verdict',
        'freeze',
        'command',
        'sequence',
        'joint_limits',
        'workspace',
        'tool_speed',
        'clearance',
        'seam',
        'consistency',
        'stac',
        'disagreement',
        'odd_observation',
        'odd_chunk',
        'oscillation',
        'progress',
        'perturbation',
    ]
    assert sorted(names) == sorted(MANDATORY)
    with pytest.raises(UnknownNameError, match='Did you mean'):
        Guard(ROBOT, checks={'estopp': None})
    with pytest.raises(UnknownNameError):
        Guard(ROBOT, extra_checks=('none_such',))


def test_names_of_checks_are_their_files() -> None:
    from chunkpilot_core import registry

    for name in registry.names('safety'):
        plugin = registry.get('safety', name)
        assert issubclass(plugin, Check)
        assert plugin.name == name


def test_a_gripper_whose_opening_was_held_does_not_open_on_the_way_home(bench: Any) -> None:
    arm = bench().armed()
    here = arm.measured[:7].copy()
    arm.ticks(100, lambda: arm.joints(here, width=0.0))
    arm.ticks(5, lambda: arm.joints(here, width=0.08))
    arm.guard.hold(arm.now_ns())
    arm.ticks(60)
    held = arm.last.positions[7:].copy()
    assert np.all((held > 0.0) & (held < 0.01))
    assert arm.guard.resume(arm.now_ns())[0]
    assert arm.guard.move_to(None, 0.0, arm.now_ns())[0]
    arm.ticks(200)
    assert np.all(arm.last.positions[7:] <= held)
    arm.ticks(10, lambda: arm.joints(arm.measured[:7], width=0.08))
    arm.ticks(100, lambda: arm.joints(arm.measured[:7], width=0.08))
    np.testing.assert_allclose(arm.last.positions[7:], 0.04)
