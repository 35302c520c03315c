"""Irreversible actions: what waits for what, and what never waits."""

from dataclasses import replace
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.safety.runtime.gate_config import GateConfig, POLICIES
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ArmState,
    Id,
    Kind,
    nanoseconds,
    Reaction,
    RowSource,
)
from helpers.guard import GuardBench, ROBOT, SPACE
import numpy as np
import pytest

HALF_CUBE = 0.02
OPEN, CLOSED = 0.08, 0.0
WITHHELD = 'confirm_n', 'dwell', 'human', 'deny'
MASKED = spaces.make(
    ActionSpace(
        (
            ActionGroup(
                'arm', 0, 7, Kind.JOINT_POSITION, names=ROBOT.arm_joints,
                scale=(1.0,) * 7, offset=(0.0,) * 7,
            ),
        ),
        lower=(-3.0,) * 7,
        upper=(4.0,) * 7,
        max_velocity=(2.0,) * 7,
        max_acceleration=(7.0,) * 7,
        max_jerk=(3000.0,) * 7,
        irreversible=(False,) * 6 + (True,),
    )
)  # fmt: skip


class Holding(GuardBench):
    """Fingers that find a cube between them while they close below ``cube`` each."""

    cube = HALF_CUBE
    width = CLOSED  # that is commanded
    moves = 0.0  # [rad/s] of joint 1, as commanded

    def __init__(self, gate: GateConfig, **options: Any) -> None:
        super().__init__(gate=gate, **options)
        self.guard.set_space(SPACE, 0.04)
        self.chunk_seq = 0

    def tick(self, *arguments: Any, **options: Any) -> Any:
        tick = super().tick(*arguments, **options)
        if self.cube and (self.measured[7:] < self.cube).any():
            self.measured[7:] = self.cube
            self.velocity[7:] = 0.0
        return tick

    def gripped(self) -> 'Holding':
        """Arm and take the cube."""
        self.armed()
        self.go(1.0)
        assert self.last is not None
        np.testing.assert_array_equal(self.last.positions[7:], 0.0)
        self.events.clear()
        return self

    def go(self, duration_s: float, width: float | None = None) -> Any:
        """Let the policy command for so long."""
        self.width = self.width if width is None else width
        for _ in range(round(duration_s / 0.01)):
            target = self.measured[:7].copy()
            target[0] += self.moves * 0.01
            tick = self.tick(self.joints(target, self.width))
        return tick

    def chunk(self, width: float, observed_s: float | None = None, late_rows: int = 0) -> None:
        """Hear a chunk whose rows want a width, after so many that want it closed."""
        self.chunk_seq += 1
        rows = np.zeros((8, 4), np.float32)
        rows[:, 3] = width / 0.04 - 1.0
        rows[:late_rows, 3] = -1.0
        now_ns = self.now_ns()
        seen_ns = now_ns if observed_s is None else nanoseconds(observed_s)
        self.guard.on_chunk(
            ActionChunk(
                Id(9, self.chunk_seq), Id(8, self.chunk_seq), self.guard.machine.epoch, '',
                Id(3, self.chunk_seq), seen_ns, now_ns, 0.04, rows, SPACE.hash, 'mlp', 1, now_ns,
            ),
            now_ns,
        )  # fmt: skip

    def gated(self, what: str) -> list[Any]:
        return [event for event in self.events if event.check == f'gate_{what}']

    @property
    def opened(self) -> bool:
        """Whether the fingers are on their way."""
        assert self.last is not None
        return bool(self.last.positions[7:].sum() > 0.0)


def test_by_default_nothing_is_gated() -> None:
    bench = Holding(GateConfig()).gripped()
    bench.go(0.5, OPEN)
    assert bench.opened
    assert not [event for event in bench.events if event.kind == 'gate']


@pytest.mark.parametrize('policy', WITHHELD)
def test_a_gated_gripper_stays_closed_while_the_arm_goes_on(policy: str) -> None:
    bench = Holding(GateConfig(opening=policy, waiting_scale=1.0, dwell_speed=0.001)).gripped()
    bench.moves = 0.3
    before = bench.measured[0]
    tick = bench.go(1.0, OPEN)
    assert bench.measured[0] > before + 0.2, 'the rest of the action continues'
    np.testing.assert_array_equal(tick.positions[7:], 0.0)
    assert bench.state is ArmState.ARMED
    verdict = tick.verdict
    assert verdict.reaction in (Reaction.CLAMP, Reaction.REPLAN)
    assert (verdict.check, verdict.joint) == ('gate', 'gripper')
    assert verdict.value == OPEN
    assert 'opening gripper to 0.0800 m while it holds 0.0400 m' in verdict.reason
    said = bench.gated('denied' if policy == 'deny' else 'waiting')
    assert said
    assert said[0].joint == 'gripper'


def test_what_is_withheld_is_published_as_the_guards_doing() -> None:
    bench = Holding(GateConfig(opening='deny')).gripped()
    bench.guard.executed()
    row, rows = 0, []
    at = bench.guard.kinematics.forward(bench.measured[:7]).position
    for width in (CLOSED, OPEN):
        for tick in range(40):
            row += tick % 4 == 0
            bench.tick(bench.tool(at, width, chunk_id=Id(9, 1), row=row))
            rows += bench.guard.executed()
    kinds = [source for batch in rows for source in batch.sources]
    values = np.concatenate([batch.rows for batch in rows])
    assert RowSource.POLICY in kinds
    assert RowSource.GUARD in kinds
    first = kinds.index(RowSource.GUARD)
    assert set(kinds[first + 1 :]) == {RowSource.GUARD}
    np.testing.assert_array_equal(values[:, 3], -1.0)


def test_opening_an_empty_gripper_is_nobodys_business() -> None:
    bench = Holding(GateConfig(opening='deny'))
    bench.cube = 0.0
    bench.gripped()
    bench.go(0.5, OPEN)
    assert bench.opened


def test_a_grip_that_shakes_or_slides_is_a_grip() -> None:
    """Fingers that are not coupled slide to and fro with what they hold; sensors are noisy."""
    bench = Holding(GateConfig(opening='deny')).gripped()
    for tick in range(60):
        bench.measured[7:] = HALF_CUBE + np.array([0.005, -0.005]) * np.sin(0.3 * tick)
        bench.velocity[7:] = [0.1, -0.1 + 0.05 * (-1) ** tick]
        bench.cube = 0.0  # as measured above
        bench.tick(bench.joints(bench.measured[:7], OPEN))
        assert not bench.opened


def test_closing_fingers_that_lag_behind_hold_nothing() -> None:
    bench = Holding(GateConfig(opening='deny'))
    bench.cube = 0.0
    bench.follows = False
    bench.armed()
    for tick in range(30):
        bench.measured[7:] = 0.04 - 0.0005 * tick
        bench.velocity[7:] = -0.05
        bench.tick(bench.joints(bench.measured[:7], CLOSED))
    bench.tick(bench.joints(bench.measured[:7], OPEN))
    assert not [event for event in bench.events if event.kind == 'gate']


def test_loosening_a_grip_that_still_squeezes_is_allowed() -> None:
    bench = Holding(GateConfig(opening='deny')).gripped()
    bench.go(0.3, 0.03)
    assert bench.last is not None
    assert bench.last.positions[7:].sum() == pytest.approx(0.03)
    assert not bench.events


# ---- confirm_n ----------------------------------------------------------------------------------


def test_three_chunks_of_different_observations_confirm() -> None:
    bench = Holding(GateConfig(opening='confirm_n')).gripped()
    for number in range(3):
        bench.chunk(OPEN)
        bench.go(0.05, OPEN)
        assert bench.opened is (number == 2)
    assert len(bench.gated('allowed')) == 1
    bench.go(0.5)
    assert bench.last is not None
    assert bench.last.positions[7:].sum() == pytest.approx(OPEN), 'and it opens all the way'


def test_one_observation_confirms_once_however_often_it_is_answered() -> None:
    bench = Holding(GateConfig(opening='confirm_n')).gripped()
    seen_s = bench.now_s
    for _ in range(6):
        bench.chunk(OPEN, observed_s=seen_s)
        bench.go(0.05, OPEN)
    assert not bench.opened


def test_a_chunk_that_disagrees_begins_the_count_anew() -> None:
    bench = Holding(GateConfig(opening='confirm_n')).gripped()
    for width in (OPEN, OPEN, CLOSED, OPEN, OPEN):
        bench.chunk(width)
        bench.go(0.05, OPEN)
        assert not bench.opened
    bench.chunk(OPEN)
    bench.go(0.05, OPEN)
    assert bench.opened


def test_a_chunk_that_wants_it_later_does_not_confirm() -> None:
    bench = Holding(GateConfig(opening='confirm_n', agreement_s=0.1)).gripped()
    for _ in range(4):
        bench.chunk(OPEN, late_rows=6)
        bench.go(0.05, OPEN)
    assert not bench.opened


def test_waiting_asks_for_another_chunk_after_each() -> None:
    """So that confirmations come as fast as the policy can answer."""
    bench = Holding(GateConfig(opening='confirm_n', confirmations=4)).gripped()
    for _ in range(3):
        bench.chunk(OPEN)
        bench.go(0.15, OPEN)
    asked = [event for event in bench.events if event.kind == 'replan']
    assert [event.check for event in asked] == ['gate'] * 3


def test_a_wish_that_was_a_slip_is_forgotten() -> None:
    bench = Holding(GateConfig(opening='confirm_n')).gripped()
    bench.go(0.05, OPEN)
    bench.go(0.05, CLOSED)
    assert len(bench.gated('withdrawn')) == 1
    assert bench.guard.waits_for == ()


# ---- dwell, human -------------------------------------------------------------------------------


def test_dwell_waits_until_the_tool_stands() -> None:
    bench = Holding(
        GateConfig(opening='dwell', waiting_scale=1.0, dwell_speed=0.01, dwell_s=0.3)
    ).gripped()
    bench.moves = 0.3
    bench.go(1.0, OPEN)
    assert not bench.opened
    bench.moves = 0.0
    bench.go(0.2)
    assert not bench.opened
    bench.go(0.4)
    assert bench.opened


def test_the_rest_nearly_stands_while_something_waits() -> None:
    bench = Holding(GateConfig(opening='dwell', dwell_speed=0.03, waiting_scale=0.05)).gripped()
    bench.moves = 0.3
    bench.go(0.5)
    assert bench.last is not None
    assert bench.last.speed_scale == 1.0
    bench.go(0.3, OPEN)
    assert bench.last.speed_scale == 0.05
    fastest = 0.05 * bench.limiter.max_velocity[:7]
    assert np.all(np.abs(bench.last.verdict.sent_velocity[:7]) <= fastest + 1e-9)
    bench.moves = 0.0
    bench.go(1.0)
    assert bench.opened, 'it stands, so it may'
    bench.go(1.0)
    assert bench.last.speed_scale == 1.0, 'and the rest goes on'


def test_a_human_approves_by_channel() -> None:
    bench = Holding(GateConfig(opening='human')).gripped()
    done, reason = bench.guard.approve('gripper', True, bench.now_ns())
    assert not done
    assert 'nothing waits' in reason
    bench.go(0.1, OPEN)
    assert bench.guard.waits_for == ('gripper',)
    assert "guard/approve of channel 'gripper'" in bench.gated('waiting')[0].reason
    done, reason = bench.guard.approve('elbow', True, bench.now_ns())
    assert not done
    assert 'waiting: gripper' in reason
    done, _ = bench.guard.approve('gripper', True, bench.now_ns(), 'Ada')
    assert done
    bench.go(0.2)
    assert bench.opened
    assert 'approved by Ada' in bench.gated('allowed')[0].reason


@pytest.mark.matrix(41)
@pytest.mark.parametrize('answer', ['denied', 'time-out'])
def test_a_denied_action_stays_denied_until_it_is_asked_for_anew(answer: str) -> None:
    """Row 41 of the fault matrix: no confirmation in time is a denial."""
    bench = Holding(GateConfig(opening='human', approve_s=0.5)).gripped()
    bench.go(0.1, OPEN)
    if answer == 'denied':
        assert bench.guard.approve('', False, bench.now_ns())[0]
    bench.go(1.0)
    assert not bench.opened
    assert len(bench.gated('denied')) == 1
    assert not bench.guard.approve('gripper', True, bench.now_ns())[0], 'too late'
    bench.go(0.2, CLOSED)
    bench.go(0.1, OPEN)
    assert bench.guard.waits_for == ('gripper',)


def test_a_hand_is_not_gated() -> None:
    bench = Holding(GateConfig(opening='deny')).gripped()
    for _ in range(40):
        bench.tick(bench.joints(bench.measured[:7], OPEN, id=Id(55, bench.seq), source='teleop'))
    assert bench.opened


# ---- what is over nothing, what else is irreversible --------------------------------------------


def test_letting_go_is_stricter_where_nothing_is_known_below() -> None:
    for height, opened in ((0.03, True), (0.23, False)):
        bench = Holding(GateConfig(unsupported='deny', support_gap_m=0.05)).gripped()
        place = bench.guard.kinematics.forward(bench.measured[:7]).position
        for _ in range(400):
            place = place + np.clip([0.0, 0.0, height] - place, -0.002, 0.002)
            bench.tick(bench.tool(place, CLOSED))
        np.testing.assert_allclose(place, [0.0, 0.0, height], atol=1e-6)
        for _ in range(30):
            bench.tick(bench.tool(place, OPEN))
        assert bench.opened is opened
        assert opened or 'nothing known under it' in bench.gated('denied')[0].reason


def test_a_masked_column_keeps_its_value_and_the_others_move() -> None:
    bench = GuardBench(gate=GateConfig(masked='deny'))
    bench.guard.set_space(MASKED, 0.04)
    bench.armed()
    start = bench.measured[:7].copy()
    target = start + 0.1
    for _ in range(100):
        bench.tick(bench.joints(target, space_hash=MASKED.hash))
    np.testing.assert_allclose(bench.measured[:6], target[:6], atol=1e-9)
    assert bench.measured[6] == start[6]
    assert bench.guard.waits_for == ()
    assert {event.joint for event in bench.events if event.kind == 'gate'} == {'arm'}


def test_a_masked_column_that_a_human_approves_moves() -> None:
    bench = GuardBench(gate=GateConfig(masked='human'))
    bench.guard.set_space(MASKED, 0.04)
    bench.armed()
    target = bench.measured[:7].copy()
    target[6] += 0.2
    make = lambda: bench.joints(target, space_hash=MASKED.hash)  # noqa: E731
    bench.ticks(10, make)
    assert bench.guard.approve('arm', True, bench.now_ns())[0]
    bench.ticks(100, make)
    np.testing.assert_allclose(bench.measured[:7], target, atol=1e-9)


class Turning(GuardBench):
    """Joints 6 and 7, of which only the last is irreversible, are sent somewhere at some speed."""

    def __init__(self, space: ActionSpace = MASKED, **gate: Any) -> None:
        super().__init__(gate=GateConfig(masked='human', waiting_scale=1.0, **gate))
        self.guard.set_space(space, 0.04)
        self.space = space
        self.armed()
        self.target = self.measured[:7].copy()

    def turn(self, by: float, duration_s: float, joint: int = 6) -> float:
        """Return where the joint is afterwards, from where it was at first."""
        for _ in range(round(duration_s / 0.01)):
            self.target[joint] += by / (duration_s / 0.01)
            self.tick(self.joints(self.target, space_hash=self.space.hash))
        return float(self.measured[joint] - ROBOT.home[joint])

    def approve(self) -> None:
        assert self.guard.approve('arm', True, self.now_ns())[0]


@pytest.mark.parametrize('speed', [1.0, 0.05], ids=['fast', 'less in a tick than is a change'])
def test_an_approval_is_for_one_way_of_a_masked_column(speed: float) -> None:
    arm = Turning()
    arm.turn(speed * 0.2, 0.2)
    assert arm.guard.waits_for == ('arm',)
    arm.approve()
    assert arm.turn(speed * 0.4, 0.4) == pytest.approx(speed * 0.6, abs=0.002)
    back = arm.turn(-speed * 0.4, 0.4)
    assert arm.guard.waits_for == ('arm',), 'the way back is another action'
    assert back > speed * 0.6 - 0.005


def test_an_approval_ends_when_the_masked_column_stands() -> None:
    arm = Turning()
    arm.turn(0.1, 0.2)
    arm.approve()
    assert arm.turn(0.0, 0.7) == pytest.approx(0.1, abs=1e-6)
    assert arm.turn(0.1, 0.2) < 0.105
    assert arm.guard.waits_for == ('arm',)


def test_an_approval_lasts_no_longer_than_it_may_however_far_it_goes() -> None:
    arm = Turning(allowed_s=1.0)
    arm.turn(0.02, 0.2)
    arm.approve()
    assert 0.1 < arm.turn(0.3, 3.0) < 0.14
    assert arm.guard.waits_for == ('arm',)


def test_an_approval_is_for_the_masked_columns_that_were_asked_for() -> None:
    arm = Turning(replace(MASKED, irreversible=(False,) * 5 + (True,) * 2))
    arm.turn(0.1, 0.2)
    arm.approve()
    arm.turn(0.1, 0.2)
    assert arm.turn(0.1, 0.2, joint=5) < 0.005
    assert arm.guard.waits_for == ('arm',)


def test_a_masked_column_waits_however_slowly_it_is_to_move() -> None:
    arm = Turning()
    assert arm.turn(0.2, 4.0) < 0.002
    assert arm.guard.waits_for == ('arm',)


def test_an_approved_opening_of_which_nothing_comes_is_forgotten() -> None:
    bench = Holding(GateConfig(opening='human', allowed_s=0.5)).gripped()
    bench.go(0.1, OPEN)
    assert bench.guard.approve('gripper', True, bench.now_ns())[0]
    bench.go(0.8, CLOSED)
    bench.go(0.1, OPEN)
    assert bench.guard.waits_for == ('gripper',)
    assert not bench.opened


def test_an_approval_ends_where_the_fingers_are_closed_again() -> None:
    bench = Holding(GateConfig(opening='human')).gripped()
    bench.go(0.1, OPEN)
    assert bench.guard.approve('gripper', True, bench.now_ns())[0]
    bench.go(0.1, CLOSED)  # the policy has thought better of it, and goes elsewhere
    bench.go(0.1, OPEN)
    assert bench.guard.waits_for == ('gripper',)
    assert not bench.opened


# ---- hold, stop, emergency stop -----------------------------------------------------------------


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('how', ['hold', 'stop', 'estop'])
def test_no_stop_opens_the_gripper(policy: str, how: str) -> None:
    bench = Holding(GateConfig(opening=policy)).gripped()
    if policy != 'allow':
        bench.go(0.1, OPEN)
    if how == 'estop':
        bench.guard.on_estop(True, 'button', bench.now_ns())
    else:
        getattr(bench.guard, how)(bench.now_ns())
    for _ in range(100):
        tick = bench.tick(bench.joints(bench.measured[:7], OPEN))
        np.testing.assert_array_equal(tick.positions[7:], 0.0)


def test_what_was_allowed_before_a_hold_is_not_allowed_after() -> None:
    bench = Holding(GateConfig(opening='human')).gripped()
    bench.go(0.1, OPEN)
    bench.guard.hold(bench.now_ns())
    bench.go(0.2)
    assert bench.guard.waits_for == ()
    assert not bench.guard.approve('gripper', True, bench.now_ns())[0]
    assert bench.guard.resume(bench.now_ns())[0]
    bench.go(0.3)
    assert not bench.opened


def test_a_misspelt_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match='confirm_n'):
        build(GateConfig, {'opening': 'confirm'}, 'gate.')


def test_the_same_inputs_give_the_same_decisions() -> None:
    said = []
    for _ in range(2):
        bench = Holding(GateConfig(opening='confirm_n')).gripped()
        for width in (OPEN, CLOSED, OPEN, OPEN, OPEN):
            bench.chunk(width)
            said.append(replace(bench.go(0.07, OPEN).verdict))
    for one, other in zip(said[:5], said[5:], strict=True):
        assert (one.reaction, one.check, one.reason) == (other.reaction, other.check, other.reason)
        np.testing.assert_array_equal(one.sent, other.sent)


def test_what_was_held_before_arming_again_is_held_from_the_first_command_on() -> None:
    bench = Holding(GateConfig(opening='deny')).gripped()
    bench.guard.disarm(bench.now_ns())
    bench.ticks(60)
    assert bench.state is ArmState.DISARMED
    done, message = bench.guard.arm(bench.now_ns())
    assert done, message
    bench.go(0.5, OPEN)
    assert not bench.opened
    assert bench.gated('denied')
