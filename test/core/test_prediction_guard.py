"""The guard lets rows run as far as they were judged: it slows on the path, and never jumps."""

from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.safety.chunk_verdict import ChunkVerdict as Check
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    ChunkVerdict,
    Id,
    JointState,
    Reaction,
    RowSource,
)
import numpy as np
import pytest

ROW_S = 0.04
SPACE = spaces.ee_delta_space()
SPEED = 0.4  # [rad/s] of joint 1: the arm swings, within the workspace


class Plan:
    """Plays execution: rows of one chunk after the other, in plan time that the guard slows."""

    def __init__(self, rig: Any) -> None:
        self.rig, self.start = rig, rig.measured[:7].copy()
        self.plan_s = self.began_s = 0.0
        self.chunk, self.rows = 1, []
        self.scale, self.source = 1.0, 'policy'

    def __call__(self) -> Any:
        self.plan_s += 0.01 * self.scale
        row = int((self.plan_s - self.began_s) / ROW_S + 1e-9)
        self.rows.append(row)
        target = self.start.copy()
        target[0] += 0.3 * np.sin(SPEED / 0.3 * self.plan_s)
        return self.rig.joints(target, chunk_id=Id(3, self.chunk), row=row, source=self.source)

    def ticks(self, count: int) -> list[float]:
        scales = []
        for _ in range(count):
            tick = self.rig.ticks(1, self)
            self.scale = tick.speed_scale
            scales.append(tick.speed_scale)
        return scales

    def next_chunk(self) -> None:
        self.chunk, self.began_s = self.chunk + 1, self.plan_s

    def judge(self, ok: bool = True, chunk: int = 0, **fields: Any) -> None:
        rows = {'executable_rows': 100, **fields}  # chunks are longer than any test
        verdict = ChunkVerdict(self.rig.now_ns(), Id(3, chunk or self.chunk), ok, **rows)
        self.rig.guard.on_chunk_verdict(verdict, self.rig.now_ns())


@pytest.fixture(name='plan')
def _plan(bench):
    rig = bench(checks={'chunk_verdict': Check.Config(require=True)})
    return _armed(rig)


def _armed(rig) -> Plan:
    rig.guard.set_space(SPACE, ROW_S)
    rig.armed()
    return Plan(rig)


def bad(plan: Plan, row: int, keep: int, **fields: Any) -> None:
    plan.judge(False, first_bad_row=row, executable_rows=keep, check='clearance', **fields)


@pytest.mark.matrix(32)
def test_without_a_verdict_the_arm_comes_to_rest_before_the_first_unknown_row(plan) -> None:
    scales = plan.ticks(80)
    assert max(plan.rows) == 3  # four rows are free
    assert scales[-1] == 0.0
    assert np.abs(np.diff(scales)).max() <= 0.051  # a ramp, no step
    assert plan.rig.last.verdict.sent_velocity[0] == pytest.approx(0.0, abs=1e-6)
    verdict = plan.rig.last.verdict
    assert (verdict.reaction, verdict.check) == (Reaction.SLOW, 'chunk_verdict')
    assert 'no verdict has come' in verdict.reason
    assert plan.rig.state is ArmState.ARMED


def test_it_ramps_back_when_the_verdict_comes(plan) -> None:
    plan.ticks(60)
    assert plan.rig.last.verdict.speed_scale == 0.0
    plan.judge()
    scales = plan.ticks(110)
    assert np.all(np.diff(scales) >= -1e-9)
    assert np.diff(scales).max() <= 0.011
    assert scales[-1] == 1.0
    assert max(plan.rows) > 10


def test_a_verdict_in_time_changes_nothing(plan, bench) -> None:
    free = _armed(bench())
    for _ in range(6):
        for one in (plan, free):
            one.ticks(2)  # it comes 20 ms after the chunk
            one.judge()
            assert set(one.ticks(30)) == {1.0}
            one.next_chunk()
    assert plan.rig.last.positions.tolist() == free.rig.last.positions.tolist()


def test_a_policy_that_is_asked_ever_anew_does_not_crawl_on_blindly(plan) -> None:
    plan.judge()
    plan.ticks(20)
    for _ in range(20):
        plan.next_chunk()
        plan.ticks(30)
    assert plan.rig.last.verdict.speed_scale == 0.0
    assert plan.plan_s < 0.2 + 4.5 * ROW_S
    plan.judge()
    plan.ticks(20)
    assert plan.rig.last.verdict.speed_scale > 0.1


def test_a_policy_that_is_asked_every_row_runs_on_verdicts_that_come_one_chunk_late(plan) -> None:
    plan.judge()
    for _ in range(20):
        plan.ticks(round(ROW_S / 0.01))
        plan.next_chunk()
        plan.ticks(1)
        plan.judge(chunk=plan.chunk - 1)  # the newer one runs already
    assert min(plan.ticks(2)) > 0.8
    plan.next_chunk()
    plan.ticks(200)  # and none comes any more
    assert plan.rig.last.verdict.speed_scale == 0.0


@pytest.mark.matrix(32)
def test_a_verdict_of_another_chunk_is_none_of_this(plan) -> None:
    plan.judge(chunk=7)
    plan.ticks(80)
    assert max(plan.rows) == 3


def test_nobody_is_waited_for_unless_it_is_asked_for(bench) -> None:
    plan = _armed(bench())
    assert set(plan.ticks(60)) == {1.0}
    assert not plan.rig.last.verdict.reason


@pytest.mark.matrix(33)
def test_a_bad_row_is_never_reached_and_another_chunk_asked_for(plan) -> None:
    plan.ticks(2)
    bad(plan, 9, 8, reason='row 9: hand-wall would be 0.0010 m apart')
    scales = plan.ticks(120)
    assert max(plan.rows) == 7
    assert scales[-1] == 0.0
    assert np.abs(np.diff(scales)).max() <= 0.051
    wishes = [event for event in plan.rig.events if event.kind == 'replan']
    assert (wishes[0].chunk_id, wishes[0].keep_rows) == (Id(3, 1), 8)
    assert wishes[0].stamp_ns - plan.rig.now_ns() <= -1.1e9  # at once, not when it is near
    assert 'hand-wall' in wishes[0].reason
    plan.next_chunk()
    plan.judge()
    plan.ticks(110)
    assert plan.rig.last.verdict.speed_scale == 1.0


def test_a_bad_chunk_that_still_waits_is_told_of_once(plan) -> None:
    plan.judge()
    plan.ticks(4)
    bad(plan, 0, 0, chunk=2)
    assert set(plan.ticks(50)) == {1.0}
    wishes = [event for event in plan.rig.events if event.kind == 'replan']
    assert [(event.chunk_id, event.keep_rows) for event in wishes] == [(Id(3, 2), 0)]


def test_rows_that_a_verdict_names_run_beyond_the_bad_one(plan) -> None:
    plan.ticks(2)
    bad(plan, 9, 8, best_sample=1)
    plan.source = 'guided'
    assert set(plan.ticks(60)) == {1.0}
    assert max(plan.rows) > 12
    assert not [event for event in plan.rig.events if event.kind == 'replan']


def test_rows_that_the_policy_did_not_predict_are_recorded_as_the_guards(bench) -> None:
    rig = bench().armed()
    rig.guard.set_space(SPACE, ROW_S)
    rig.guard.set_episode(True, 'episode', 'task')
    state = JointState(0, rig.guard.robot.joints, rig.measured, np.zeros(9))
    at = spaces.from_joints(SPACE, rig.guard.kinematics, state)
    for i in range(24):
        groups = spaces.command_groups(SPACE, at, np.zeros(4))
        source = 'guided' if i >= 12 else 'policy'
        rig.tick(rig.command(groups, row=i // 4, chunk_id=Id(4, 1), source=source))
    rig.guard.set_episode(False)
    sources = [source for batch in rig.guard.executed() for source in batch.sources]
    assert sources == [RowSource.POLICY] * 3 + [RowSource.GUARD] * 2


def test_the_chunks_own_rows_end_before_the_bad_one_and_then_another_is_asked_for(plan) -> None:
    plan.ticks(2)
    bad(plan, 9, 8, best_sample=1)  # execution does not follow
    assert not [event for event in plan.rig.events if event.kind == 'replan']
    scales = plan.ticks(120)
    assert max(plan.rows) == 7
    assert scales[-1] == 0.0
    wishes = [event for event in plan.rig.events if event.kind == 'replan']
    assert (wishes[0].chunk_id, wishes[0].keep_rows) == (Id(3, 1), 8)


@pytest.mark.parametrize('ok', [True, False])
def test_other_rows_than_the_chunks_own_run_only_if_the_verdict_is_about_them(plan, ok) -> None:
    plan.source = 'guided'
    plan.judge(ok)
    assert plan.ticks(60)[-1] == 0.0
    assert max(plan.rows) <= 2
    assert 'not about the rows that run' in plan.rig.last.verdict.reason


def test_what_must_run_slower_runs_at_that_fraction(plan) -> None:
    plan.judge(speed_scale=0.5, check='time_scale', reason='joint 2 would do 3 rad/s')
    scales = plan.ticks(40)
    assert scales[-1] == pytest.approx(0.5)
    assert np.abs(np.diff(scales)).max() <= 0.051
    assert 'joint 2' in plan.rig.last.verdict.reason


@pytest.mark.parametrize(
    ('risk', 'scale'),
    [
        ({'risk': 0.4}, 1.0),
        ({'risk': 0.75}, 0.65),
        ({'risk': 1.0}, 0.3),
        ({'risk_end': 1.0}, 1.0),
        ({'risk_beyond': 1.0}, 1.0),
    ],
)
def test_risk_slows(plan, risk, scale) -> None:
    plan.judge(**risk)
    assert plan.ticks(40)[-1] == pytest.approx(scale)


def test_rows_that_the_verdict_does_not_reach_wait_for_the_next_one(plan) -> None:
    now_ns, guard = plan.rig.now_ns(), plan.rig.guard
    rows = np.zeros((16, 4), np.float32)
    chunk = ActionChunk(
        Id(3, 1), Id(7, 1), guard.machine.epoch, '', Id(8, 1), now_ns, now_ns, ROW_S, rows,
        SPACE.hash, 'test', 1,
    )  # fmt: skip
    guard.on_chunk(chunk, now_ns)
    plan.judge(executable_rows=8)  # no more of it was there
    plan.ticks(100)
    assert max(plan.rows) == 7
    plan.judge(executable_rows=16, revision=1)
    plan.ticks(60)
    assert max(plan.rows) > 8


def test_rows_beyond_the_verdict_wait_also_when_many_other_chunks_have_come(plan) -> None:
    now_ns, guard = plan.rig.now_ns(), plan.rig.guard
    rows = np.zeros((16, 4), np.float32)
    for seq in range(1, 7):
        chunk = ActionChunk(
            Id(3, seq), Id(7, seq), guard.machine.epoch, '', Id(8, seq), now_ns, now_ns, ROW_S,
            rows, SPACE.hash, 'test', 1,
        )  # fmt: skip
        guard.on_chunk(chunk, now_ns)
        if seq == 1:
            plan.judge(executable_rows=8)
            plan.ticks(2)
    plan.ticks(100)
    assert max(plan.rows) == 7


def test_a_verdict_bounds_also_a_chunk_that_was_never_heard(plan) -> None:
    plan.judge(executable_rows=8)  # the message with the chunk was lost
    scales = plan.ticks(100)
    assert max(plan.rows) == 7
    assert scales[-1] == 0.0
    assert 'row 8' in plan.rig.last.verdict.reason
    plan.next_chunk()
    plan.judge()
    plan.ticks(110)
    assert plan.rig.last.verdict.speed_scale == 1.0


def test_risk_slows_also_a_chunk_that_is_judged_in_part(plan) -> None:
    plan.judge(executable_rows=16, risk=1.0)
    assert plan.ticks(30)[-1] == pytest.approx(0.3)
    plan.ticks(250)
    assert max(plan.rows) == 15


def test_rows_that_got_old_while_they_waited_do_not_free_others(plan) -> None:
    """Execution lets go of what got old, stands, and comes with the next chunk, ever anew."""
    plan.ticks(60)
    for _ in range(5):
        began = plan.plan_s
        target = plan.rig.measured[:7].copy()
        for _ in range(20):
            tick = plan.rig.ticks(1, lambda at=target: plan.rig.joints(at))
            assert tick.speed_scale == 0.0
        assert 'ran without a verdict' in tick.verdict.reason
        plan.scale = tick.speed_scale
        plan.next_chunk()
        plan.ticks(60)
        assert plan.plan_s == began
    plan.judge()
    assert plan.ticks(110)[-1] == 1.0


def test_a_verdict_that_comes_between_chunks_frees_the_arm(plan) -> None:
    plan.ticks(60)  # to the end of what may run unjudged
    still = lambda: plan.rig.joints(plan.rig.measured[:7])  # noqa: E731
    assert plan.rig.ticks(20, still).speed_scale == 0.0
    plan.judge()
    assert plan.rig.ticks(110, still).speed_scale == 1.0


def test_who_else_moves_the_arm_waits_for_no_verdict(plan) -> None:
    plan.ticks(60)
    hand = lambda: plan.rig.joints(plan.rig.measured[:7], source='teleop')  # noqa: E731
    assert plan.rig.ticks(130, hand).speed_scale == 1.0


def test_resting_too_long_calls_a_human(plan) -> None:
    plan.ticks(100)
    assert not plan.rig.last.verdict.escalate
    plan.ticks(300)
    assert plan.rig.last.verdict.escalate


def test_after_a_hold_everything_counts_anew(plan) -> None:
    plan.ticks(60)
    plan.rig.guard.hold(plan.rig.now_ns())
    plan.rig.ticks(60)
    done, message = plan.rig.guard.resume(plan.rig.now_ns())
    assert done, message
    plan.start = plan.rig.last.positions[:7] - np.eye(7)[0] * 0.3 * np.sin(
        SPEED / 0.3 * plan.plan_s
    )
    plan.next_chunk()
    plan.judge()
    plan.ticks(130)
    assert plan.rig.last.verdict.speed_scale == 1.0
    assert max(plan.rows[-5:]) > 8


@pytest.mark.parametrize('field', ['speed_scale', 'risk', 'risk_end', 'risk_beyond'])
@pytest.mark.parametrize('value', [np.nan, -1.0, np.inf])
def test_a_verdict_of_nonsense_is_a_bad_one(bench, field, value) -> None:
    plan = _armed(bench())
    plan.ticks(20)
    plan.judge(best_sample=1, **{field: value})
    plan.ticks(40)
    assert plan.rig.last.speed_scale == 0.0
    assert 'must be 0 to 1' in plan.rig.last.verdict.reason
    assert [event.keep_rows for event in plan.rig.events if event.kind == 'replan'] == [0]
