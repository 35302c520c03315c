"""Who drives: the guard between a policy and a human, and rows of what the human did."""

from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.safety.runtime.arbiter import Arbiter
from chunkpilot_core.types import ArmState, Id, Intervention, nanoseconds, RowSource
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()


@pytest.fixture
def it(bench):
    """Give an armed guard whose rows are recorded."""
    bench = bench()
    bench.guard.set_space(SPACE, 0.04)
    bench.guard.set_episode(True, 'episode', 'task')
    bench.armed()
    tool = bench.guard.kinematics.forward(bench.measured[:7]).position
    bench.at = tool.copy()
    return bench


def policy(bench, step=(0.001, 0.0, 0.0)):
    bench.policy_at = getattr(bench, 'policy_at', bench.at) + np.array(step)
    made = bench.tool(
        bench.policy_at,
        0.08,
        source='policy',
        chunk_id=Id(3, 1),
        row=bench.seq,
        observation_stamp_ns=bench.now_ns(),
        space_hash=SPACE.hash,
    )
    return replace(made, id=Id(1, bench.seq))


def human(bench, step=(0.0, 0.001, 0.0), **changes):
    bench.at = bench.at + np.array(step)
    made = bench.tool(bench.at, 0.08, source='teleop', space_hash=SPACE.hash, **changes)
    return replace(made, id=Id(99, bench.seq))


def word(bench, active: bool, at_s: float = 0.0) -> None:
    stamp_ns = bench.now_ns() + nanoseconds(at_s)
    bench.guard.on_intervention(Intervention(stamp_ns, 'teleop', active), bench.now_ns())


def test_a_human_overrides_the_policy_without_a_fault(it) -> None:
    for _ in range(20):
        it.tick(policy(it))
    for _ in range(50):
        it.guard.on_command(policy(it), it.now_ns() + nanoseconds(0.01))
        last = it.tick(human(it))
    assert last.verdict.source == 'teleop'
    assert last.status.state is ArmState.ARMED
    assert [e.reason for e in it.events if e.check == 'control'] == ['teleop has control']
    assert not [e for e in it.events if e.kind == 'rejection']
    tool = it.guard.kinematics.forward(last.positions[:7]).position
    assert abs(tool[1] - it.at[1]) < 0.003  # it follows the human, not the policy


def test_a_human_who_lets_go_leaves_the_arm_to_a_policy_that_looks_anew(it) -> None:
    for _ in range(20):
        it.tick(policy(it))
    for _ in range(20):
        it.tick(human(it))
    epoch = it.guard.machine.epoch
    word(it, active=False)
    assert it.guard.machine.epoch == epoch + 1
    done = it.tick(replace(policy(it), arm_epoch=epoch))
    assert done.verdict.source == ''  # of before: planned for an arm that is elsewhere now
    it.policy_at = it.guard.kinematics.forward(it.measured[:7]).position
    for _ in range(10):
        last = it.tick(policy(it))
    assert last.verdict.source == 'policy'
    assert last.status.state is ArmState.ARMED


def test_a_silent_source_gives_control_back_and_a_lock_does_not(it) -> None:
    for _ in range(20):
        it.tick(human(it))
    for _ in range(25):
        last = it.tick()
    assert last.status.state is ArmState.ARMED  # brakes and stands, no hold: nobody is missed
    assert not last.verdict.sent_velocity.any()
    it.policy_at = it.guard.kinematics.forward(it.measured[:7]).position
    assert it.tick(policy(it)).verdict.source == 'policy'
    word(it, active=True)
    for _ in range(20):
        it.tick(human(it))
    for _ in range(200):
        last = it.tick(policy(it))
        assert last.verdict.source != 'policy'
    word(it, active=False)
    it.policy_at = it.guard.kinematics.forward(it.measured[:7]).position
    assert it.tick(policy(it)).verdict.source == 'policy'


def test_words_and_commands_may_overtake_each_other(it) -> None:
    for _ in range(5):
        it.tick(human(it))
    word(it, active=False, at_s=0.005)
    late = human(it)
    it.tick(replace(late, stamp_ns=it.now_ns()))  # sent before the release, heard after it
    assert it.guard._arbiter.holder == 0
    it.tick(human(it))  # took control again
    word(it, active=False, at_s=-0.5)  # of before
    assert it.guard._arbiter.holder == 100


def test_a_second_hand_is_refused_until_the_arm_is_armed_again(it) -> None:
    for _ in range(5):
        it.tick(human(it))
    other = replace(human(it), id=Id(100, 1))
    last = it.tick(other)
    assert last.verdict.check == 'sequence'
    assert 'another sender' in last.verdict.reason


def test_rows_of_a_human_are_complete_and_in_the_time_of_the_policy(it) -> None:
    """At any phase of ticks to rows: replayed, they take the time and go the way they took."""
    start = it.at.copy()
    path = [start]
    for i in range(200):
        step = 0.001 * np.array([np.sin(i / 15), np.cos(i / 20), 0.4 * np.sin(i / 9)])
        it.tick(human(it, step))
        path.append(it.at.copy())
    it.guard.set_episode(False)
    batches = it.guard.executed()
    assert {batch.episode_id for batch in batches} == {'episode'}
    rows = np.concatenate([batch.rows for batch in batches])
    stamps = np.concatenate([batch.stamps_ns for batch in batches])
    sources = [source for batch in batches for source in batch.sources]
    assert set(sources) == {RowSource.HUMAN}
    assert len(rows) == 49  # of 2 s at 0.04 s, the last one was not finished
    np.testing.assert_allclose(np.diff(stamps) * 1e-9, 0.04, atol=1e-6)
    ends = spaces.resolve(SPACE, rows, np.array([*start, 0.08]))[:, :3]
    # the stamps of the commands say when the path was where
    first_s = stamps[0] * 1e-9 - (1000.0 + 0.01 * 103)
    at = np.array(path)
    for end, stamp in zip(ends, stamps, strict=True):
        index = (stamp - stamps[0]) * 1e-7 + first_s * 100.0
        low = int(np.clip(np.floor(index), 0, len(at) - 2))
        between = at[low] + (index - low) * (at[low + 1] - at[low])
        assert np.linalg.norm(end - between) < 0.002


def test_deliberate_disturbances_are_marked(it) -> None:
    for row in range(6):
        for _ in range(4):
            made = human(it, row=row, observation_stamp_ns=it.now_ns())
            it.tick(replace(made, source='disturbance' if row in (2, 3) else 'teleop'))
    it.guard.set_episode(False)
    sources = [source for batch in it.guard.executed() for source in batch.sources]
    human_, pushed = RowSource.HUMAN, RowSource.DISTURBED
    assert sources == [human_, human_, pushed, pushed, human_]


@pytest.mark.parametrize('dt_s', [0.0, -0.04, float('nan'), 1e-9])
def test_a_time_between_rows_that_no_policy_has_is_refused(bench, dt_s) -> None:
    with pytest.raises(InvalidDataError, match='between rows'):
        bench().guard.set_space(SPACE, dt_s)


def test_locks_are_bounded() -> None:
    arbiter = Arbiter()
    for i in range(1000):
        arbiter.intervene(Intervention(i, f'source {i}', True))
    assert len(arbiter._locks) <= 16
    assert arbiter.locked == 100
