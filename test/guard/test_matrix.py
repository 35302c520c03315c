"""
Rows of the fault matrix: faults on streams have the reactions they should have.

Rows that need more than a stream of commands, states or chunks are tested beside what they are
about; rows.py lists where.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.faults import plan
from chunkpilot_core.faults.stream import Stream
from chunkpilot_core.types import ActionChunk, ArmState, Id, JointState, Reaction
import numpy as np
import pytest

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()
FAULT_S = 0.5  # when faults begin


class Faulty:
    """A bench whose commands, joint states and chunks pass through streams with faults."""

    def __init__(self, bench: Any, **faults: list[dict[str, Any]]) -> None:
        self.arm = bench.armed()
        self.arm.guard.set_space(SPACE, 0.1)
        self.arm.state_comes = False
        # Of a late command its stamp counts: motion shifts by up to 1.2 periods between ticks.
        late = any(fault['kind'] == 'delay' for fault in faults.get('command', []))
        self.arm.slack_s = 0.012 if late else 0.0
        self.streams = {
            name: Stream(self._faults(faults.get(name, [])), seed=1)
            for name in ('command', 'state', 'chunk')
        }
        self.began_s = self.arm.now_s
        for stream in self.streams.values():
            stream.begin(self.arm.now_ns())
        self.took_s: dict[tuple[Reaction, str], float] = {}
        self.sent: list[Any] = []

    @staticmethod
    def _faults(entries: list[dict[str, Any]]) -> Any:
        late = [{'start_s': FAULT_S, **entry} for entry in entries]
        return plan.parse({'topics': {'x': late}}).topics['x'] if entries else ()

    def run(self, seconds: float, make: Callable[[], Any]) -> None:
        """Let time pass; ``make`` gives the command of each tick."""
        arm = self.arm
        for _ in range(round(seconds / 0.01)):
            coming_ns = arm.now_ns() + 10_000_000
            state = JointState(coming_ns, ROBOT.joints, arm.measured, arm.velocity)
            self._pass_on('state', state, arm.guard.on_joint_state, coming_ns)
            command = make()
            if command is not None:
                self._pass_on('command', command, arm.guard.on_command, coming_ns)
            tick = arm.tick()
            reason = (tick.verdict.reaction, tick.verdict.check)
            self.took_s.setdefault(reason, arm.now_s - self.began_s - FAULT_S)
            self.sent.append(tick.positions)

    def _pass_on(self, name: str, message: Any, take: Any, now_ns: int) -> None:
        stream = self.streams[name]
        stream.push(message, now_ns)
        for left in stream.due(now_ns):
            take(left, now_ns)


class Case(NamedTuple):
    """One row: the fault on a stream, and the reaction of a check within a time."""

    row: int
    stream: str
    fault: dict[str, Any]
    reaction: Reaction
    check: str
    within_s: float
    state: ArmState = ArmState.ARMED  # half a second after the fault began


VALUES = {'field': 'groups[0].values'}
BRIEF = {'end_s': FAULT_S + 0.015}
HOLD, STOP, REJECT = Reaction.HOLD, Reaction.STOP, Reaction.REJECT_CHUNK
HELD = ArmState.HOLD
CASES = [
    Case(1, 'command', {'kind': 'nan', 'index': 2, **BRIEF}, REJECT, 'command', 0.02),
    Case(1, 'command', {'kind': 'nan', 'index': 2}, HOLD, 'command', 0.08, ArmState.STOPPED),
    Case(2, 'command', {'kind': 'inf', 'index': 0, **BRIEF}, REJECT, 'command', 0.02),
    Case(2, 'command', {'kind': 'inf', 'negative': True, **BRIEF}, REJECT, 'command', 0.02),
    Case(2, 'command', {'kind': 'jump', 'offset': 1e308, **BRIEF}, REJECT, 'command', 0.02),
    Case(8, 'state', {'kind': 'nan', 'index': 3}, HOLD, 'joint_state', 0.02, HELD),
    Case(8, 'state', {'kind': 'inf'}, HOLD, 'joint_state', 0.02, HELD),
    Case(11, 'command', {'kind': 'jump', 'offset': 9.0, 'index': 6}, Reaction.CLAMP,
         'joint_limits', 0.02),
    Case(14, 'command', {'kind': 'jump', 'offset': 2.0, 'index': 6}, Reaction.CLAMP,
         'joint_limits', 0.02),
    Case(15, 'command', {'kind': 'jump', 'offset': 0.05, 'index': 6}, Reaction.CLAMP,
         'joint_limits', 0.02),
    Case(18, 'command', {'kind': 'drop'}, HOLD, 'staleness', 0.22, HELD),
    Case(20, 'command', {'kind': 'drop', 'probability': 0.9}, Reaction.SLOW, 'stream_rate', 0.6),
    Case(20, 'command', {'kind': 'burst', 'period_s': 0.1}, Reaction.SLOW, 'stream_rate', 0.6),
    Case(20, 'command', {'kind': 'delay', 'delay_s': 0.0, 'jitter_s': 0.03}, REJECT, 'sequence',
         0.5),
    Case(21, 'command', {'kind': 'clock_jump', 'jump_s': -10.0, **BRIEF}, REJECT, 'sequence',
         0.02),
    Case(21, 'command', {'kind': 'clock_jump', 'jump_s': 10.0, **BRIEF}, REJECT, 'sequence',
         0.02),
    Case(21, 'command', {'kind': 'clock_jump', 'jump_s': 10.0}, HOLD, 'sequence', 0.08,
         ArmState.STOPPED),
    Case(22, 'state', {'kind': 'freeze'}, HOLD, 'joint_state or tracking', 0.32, HELD),
    Case(23, 'state', {'kind': 'drop'}, HOLD, 'joint_state', 0.12, HELD),
    Case(23, 'state', {'kind': 'drop'}, STOP, 'joint_state', 1.02, HELD),
    Case(24, 'state', {'kind': 'delay', 'delay_s': 0.15}, HOLD, 'joint_state', 0.12, HELD),
]  # fmt: skip


@pytest.mark.matrix(1, 2, 8, 11, 14, 15, 18, 20, 21, 22, 23, 24)
@pytest.mark.parametrize(
    'case', CASES, ids=[f'row {case.row} {case.fault["kind"]} {i}' for i, case in enumerate(CASES)]
)
def test_a_fault_on_a_stream_has_its_reaction_in_time_and_with_a_reason(
    bench: Any, case: Case
) -> None:
    """Limits, finiteness and counters are checked by the bench in every tick."""
    faulty = Faulty(bench(), **{case.stream: [case.fault]})
    send = faulty.arm.moving(0.3)
    faulty.run(FAULT_S - 0.01, send)
    assert faulty.arm.state is ArmState.ARMED
    assert case.reaction not in [reaction for reaction, _ in faulty.took_s if reaction > 1]
    faulty.run(0.5, send)
    assert faulty.arm.state is case.state, faulty.took_s
    faulty.run(max(case.within_s + 0.03 - 0.5, 0.0), send)
    checks = case.check.split(' or ')
    took_s = [faulty.took_s.get((case.reaction, check), 99.0) for check in checks]
    assert min(took_s) <= case.within_s + 1e-6, faulty.took_s
    told = [event for event in faulty.arm.events if event.reaction is case.reaction]
    assert any(event.check in checks and event.reason for event in told)


HARMLESS = [
    (5, 'command', {'kind': 'permute', 'field': ['groups[0].names', 'groups[0].values']}),
    (20, 'command', {'kind': 'duplicate'}),
    (24, 'state', {'kind': 'noise', 'sigma': 0.01}),
    (24, 'state', {'kind': 'delay', 'delay_s': 0.03, 'jitter_s': 0.02}),
    (20, 'command', {'kind': 'drop', 'probability': 0.1}),
]


@pytest.mark.matrix(5, 20, 24)
@pytest.mark.parametrize(('row', 'stream', 'fault'), HARMLESS)
def test_what_is_no_danger_holds_nothing(bench: Any, row: int, stream: str, fault: Any) -> None:
    faulty = Faulty(bench(), **{stream: [fault]})
    send = faulty.arm.moving(0.3)
    faulty.run(FAULT_S + 2.0, send)
    assert faulty.arm.state is ArmState.ARMED
    held = [event for event in faulty.arm.events if event.reaction >= Reaction.HOLD]
    assert held == [], row
    assert faulty.arm.last.positions[0] > 0.6, 'it has gone on'


@pytest.mark.matrix(24)
def test_states_that_are_late_release_the_arm_when_they_are_in_time_again(bench: Any) -> None:
    fault = {'kind': 'delay', 'delay_s': 0.15, 'end_s': FAULT_S + 0.5}
    faulty = Faulty(bench(), state=[fault])
    faulty.run(FAULT_S + 0.4, faulty.arm.moving(0.3))
    assert faulty.arm.state is ArmState.HOLD
    faulty.run(1.2, lambda: None)
    assert faulty.arm.state is ArmState.ARMED


def chunk(arm: Any, seq: int, rows: Any) -> ActionChunk:
    """Return a chunk that begins now."""
    now_ns = arm.now_ns()
    return ActionChunk(
        id=Id(9, seq),
        request_id=Id(7, seq),
        arm_epoch=arm.guard.machine.epoch,
        task_id='',
        observation_id=Id(3, seq),
        observation_stamp_ns=now_ns,
        start_ns=now_ns,
        dt_s=0.1,
        actions=np.asarray(rows, np.float32),
        space_hash=SPACE.hash,
        policy='test',
        policy_version=0,
    )


@pytest.mark.matrix(3)
@pytest.mark.parametrize('kind', ['nan', 'inf'])
def test_nan_in_row_12_of_a_chunk_refuses_it_before_its_first_row_and_asks_for_another(
    bench: Any, kind: str
) -> None:
    fault = {'kind': kind, 'field': 'actions', 'index': 12 * SPACE.size + 1, 'start_s': 0.0}
    faulty = Faulty(bench(), chunk=[fault])
    arm = faulty.arm
    still = arm.last.positions
    faulty._pass_on('chunk', chunk(arm, 1, np.zeros((16, 4))), arm.guard.on_chunk, arm.now_ns())
    tick = arm.tick(arm.tool(np.array([0.0, 0.0, 0.3]), chunk_id=Id(9, 1), row=0))
    assert tick.verdict.reaction in (Reaction.REJECT_CHUNK, Reaction.REPLAN)
    assert 'row 12' in tick.verdict.reason
    assert np.array_equal(tick.positions, still)
    replans = [event for event in arm.events if event.kind == 'replan']
    assert [event.chunk_id for event in replans] == [Id(9, 1)]
    assert arm.state is ArmState.ARMED


@pytest.mark.matrix(7)
@pytest.mark.parametrize('count', [0, 10_000])
def test_a_chunk_without_rows_or_with_ten_thousand_is_refused(bench: Any, count: int) -> None:
    arm = bench().armed()
    arm.guard.set_space(SPACE, 0.1)
    arm.guard.on_chunk(chunk(arm, 1, np.zeros((count, 4))), arm.now_ns())
    tick = arm.tick(arm.home(chunk_id=Id(9, 1), row=0))
    assert tick.verdict.reaction in (Reaction.REJECT_CHUNK, Reaction.REPLAN)
    assert arm.guard._situation.chunks == type(arm.guard._situation.chunks)([], maxlen=4)
    assert arm.state is ArmState.ARMED
