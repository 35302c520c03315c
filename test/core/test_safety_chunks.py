"""What the guard makes of chunks that it hears: absolute rows, refusals, slowness, one epoch."""

from collections.abc import Callable
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import ActionChunk, ArmState, Id, Intervention, nanoseconds, Reaction
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
ANSWERS: list[Finding | None] = []  # of the check below, to each chunk in turn


class Scripted(Check):
    """Answers to chunks as a test says."""

    name, order, stage = 'scripted', 12, Stage.CHUNK

    def check(self, situation: Situation) -> Finding | None:
        assert situation.chunks
        return ANSWERS.pop(0) if ANSWERS else None


def chunk(bench: Any, seq: int, rows: Any, start_s: float = 0.0, **changes: Any) -> ActionChunk:
    """Return a chunk that starts now (or ``start_s`` later)."""
    start_ns = bench.now_ns() + nanoseconds(start_s)
    values = {
        'id': Id(9, seq),
        'request_id': Id(7, seq),
        'arm_epoch': bench.guard.machine.epoch,
        'task_id': '',
        'observation_id': Id(3, seq),
        'observation_stamp_ns': start_ns,
        'start_ns': start_ns,
        'dt_s': 0.1,
        'actions': np.asarray(rows, np.float32),
        'space_hash': SPACE.hash,
        'policy': 'test',
        'policy_version': 0,
    }
    return ActionChunk(**{**values, **changes})


@pytest.fixture
def heard(bench: Any) -> Any:
    """Return an armed bench that knows the space, with a check that tests can script."""
    ANSWERS.clear()
    made = bench(extra_checks=(f'{__name__}:Scripted',))
    made.guard.set_space(SPACE, 0.1)
    return made.armed()


def row(x: float = 0.0, grip: float = 1.0) -> list[float]:
    return [x, 0.0, 0.0, grip]


def chunks(bench: Any) -> Any:
    return bench.guard._situation.chunks


def test_rows_become_targets_from_where_the_arm_is_commanded(heard: Any) -> None:
    position = heard.guard.kinematics.forward(heard.measured[:7]).position
    heard.guard.on_chunk(chunk(heard, 1, [row(0.2), row(0.2), row(-0.4)]), heard.now_ns())
    targets = chunks(heard)[-1].targets
    assert chunks(heard)[-1].first_row == 0
    assert targets[:, 0] - position[0] == pytest.approx([0.01, 0.02, 0.0], abs=1e-6)
    assert targets[:, 3] == pytest.approx(0.08)


def test_of_a_late_chunk_only_what_is_left_counts(heard: Any) -> None:
    x = heard.guard.kinematics.forward(heard.measured[:7]).position[0]
    late = chunk(heard, 1, [row(0.9), row(0.2), row(0.2)], start_s=-0.15)
    heard.guard.on_chunk(late, heard.now_ns())
    assert chunks(heard)[-1].first_row == 1
    assert chunks(heard)[-1].targets[:, 0] - x == pytest.approx([0.005, 0.015], abs=1e-5)


def test_parts_of_one_answer_are_one_chunk_under_its_first_id(heard: Any) -> None:
    for seq in (1, 2):
        heard.guard.on_chunk(chunk(heard, seq, [row()], request_id=Id(7, 5)), heard.now_ns())
    assert [entry.chunk.id for entry in chunks(heard)] == [Id(9, 1)]


def test_chunks_of_another_epoch_are_forgotten(heard: Any) -> None:
    heard.guard.on_chunk(chunk(heard, 1, [row()]), heard.now_ns())
    heard.guard.on_chunk(chunk(heard, 2, [row()], arm_epoch=3), heard.now_ns())
    assert [entry.chunk.id.seq for entry in chunks(heard)] == [1]
    heard.guard.hold(heard.now_ns())
    heard.ticks(60)
    assert heard.guard.resume(heard.now_ns())[0]
    heard.ticks(1)
    assert not chunks(heard)


def test_no_command_of_a_refused_chunk_moves_the_arm(heard: Any) -> None:
    ANSWERS.append(Finding(Reaction.REJECT_CHUNK, 'too odd', 'row 3', 9.0, 1.0))
    heard.guard.on_chunk(chunk(heard, 1, [row()]), heard.now_ns())
    start = heard.measured.copy()
    move: Callable[[], Any] = lambda: heard.joints(start[:7] + 0.2, chunk_id=Id(9, 1), row=0)  # noqa: E731
    tick = heard.ticks(15, move)
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK
    assert (tick.verdict.check, tick.verdict.joint) == ('scripted', 'row 3')
    assert np.array_equal(heard.measured, start)
    assert heard.state is ArmState.ARMED, 'refused commands are nobody’s fault'
    events = [event for event in heard.events if event.kind == 'rejection']
    assert events[0].chunk_id == Id(9, 1)
    heard.ticks(5, lambda: heard.joints(start[:7] + 0.01, chunk_id=Id(9, 2), row=0))
    assert not np.array_equal(heard.measured, start), 'the next chunk runs'


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_number_that_is_none_in_one_row_refuses_the_whole_chunk(
    heard: Any, value: float
) -> None:
    rows = [row() for _ in range(16)]
    rows[12][1] = value
    heard.guard.on_chunk(chunk(heard, 1, rows), heard.now_ns())
    start = heard.measured.copy()
    heard.ticks(3, lambda: heard.joints(start[:7] + 0.1, chunk_id=Id(9, 1), row=0))
    assert np.array_equal(heard.measured, start)
    assert any('row 12' in event.reason for event in heard.events)


def test_slowness_lasts_until_the_next_chunk_and_comes_without_a_jump(heard: Any) -> None:
    ANSWERS.append(Finding(Reaction.SLOW, 'odd', scale=0.5))
    heard.guard.on_chunk(chunk(heard, 1, [row()]), heard.now_ns())
    scales = [heard.tick(heard.home()).speed_scale for _ in range(30)]
    assert scales[-1] == 0.5
    assert max(-np.diff([1.0, *scales])) < 0.06
    heard.guard.on_chunk(chunk(heard, 2, [row()]), heard.now_ns())
    assert heard.ticks(60, heard.home).speed_scale == 1.0


def slow(bench: Any) -> None:
    """Let a chunk slow the arm down to half."""
    ANSWERS.append(Finding(Reaction.SLOW, 'odd', scale=0.5))
    bench.guard.on_chunk(chunk(bench, 1, [row()]), bench.now_ns())
    assert bench.ticks(30, bench.home).speed_scale == 0.5


def test_a_chunk_slows_neither_a_hand_nor_a_move_to_a_pose(heard: Any) -> None:
    slow(heard)
    heard.guard.on_intervention(Intervention(heard.now_ns(), 'teleop', True), heard.now_ns())
    by_hand = heard.ticks(60, lambda: heard.joints(heard.measured[:7], source='teleop'))
    assert (by_hand.verdict.source, by_hand.speed_scale) == ('teleop', 1.0)
    heard.guard.on_intervention(Intervention(heard.now_ns(), 'teleop', False), heard.now_ns())
    slow(heard)
    assert heard.guard.move_to(heard.measured[:7] + 0.2, 0.0, heard.now_ns())[0]
    moving = heard.ticks(60)
    assert (moving.verdict.source, moving.speed_scale) == ('homing', 1.0)


def test_a_chunk_slows_no_episode_but_its_own(heard: Any) -> None:
    heard.guard.set_episode(True, 'one', 'task')
    slow(heard)
    heard.guard.set_episode(False)
    heard.guard.set_episode(True, 'two', 'task')
    assert heard.ticks(60, heard.home).speed_scale == 1.0


def test_a_check_that_breaks_on_a_chunk_stops_the_arm(heard: Any) -> None:
    ANSWERS.append('no finding')  # type: ignore[arg-type]
    heard.guard.on_chunk(chunk(heard, 1, [row()]), heard.now_ns())
    tick = heard.ticks(1)
    assert heard.state is ArmState.STOPPED
    assert tick.verdict.check == 'internal_error'


class Slowing(Check):
    """Slows down by what a test says, in the stage that it says."""

    name, order, stage = 'slowing', 12, Stage.INPUT
    scale = 1.0

    def check(self, situation: Situation) -> Finding | None:
        return Finding(Reaction.SLOW, 'slower', scale=Slowing.scale)


class SlowingMotion(Slowing):
    """The same for the next setpoint."""

    name, stage = 'slowing_motion', Stage.MOTION


@pytest.mark.parametrize('check', ['Slowing', 'SlowingMotion'])
@pytest.mark.parametrize('scale', [np.nan, -0.5])
def test_a_speed_scale_that_is_none_stops_the_arm(
    bench: Any, check: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = bench(extra_checks=(f'{__name__}:{check}',)).armed()
    arm.ticks(20, arm.moving(0.2))
    monkeypatch.setattr(Slowing, 'scale', scale)
    tick = arm.ticks(1, arm.moving(0.2))
    assert arm.state is ArmState.STOPPED
    assert tick.verdict.check == 'internal_error'
    assert 'speed scale' in tick.verdict.reason
    assert arm.ticks(60).verdict.sent_velocity == pytest.approx(0.0)


def test_a_finding_that_holds_holds(heard: Any) -> None:
    ANSWERS.append(Finding(Reaction.HOLD, 'odd'))
    heard.guard.on_chunk(chunk(heard, 1, [row()]), heard.now_ns())
    heard.ticks(1)
    assert heard.state is ArmState.HOLD
