"""What holds of the executor under every interleaving of replies, delays, stops and restarts."""

from dataclasses import replace
import math

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, ArmState, ChunkRequest, GuardStatus, Id, PolicySpec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, RuleBasedStateMachine
import numpy as np

SPACE = spaces.ee_delta_space()
MS = 1_000_000
TICK = 10 * MS
H, DT = 16, 0.04
SPEC = PolicySpec('fake', 'fake', 1, SPACE, H, DT)
# [m] of a tick: the largest row, times what a curve needs that enters at its worst velocity
FASTEST = 2.2 * 0.05 / DT * 0.01
ROBOT = robots.load('panda')


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (H, 4)).astype(np.float32)


class Execution(RuleBasedStateMachine):
    """Everything that may happen to an executor, and what must hold all the time."""

    @initialize(
        horizon=st.sampled_from([1, 4, 8, 16]),
        upcycle=st.booleans(),
        starvation=st.sampled_from(['decelerate', 'hold', 'late', 'stretch']),
    )
    def start(self, horizon: int, upcycle: bool, starvation: str) -> None:
        strategy = (
            Upcycling(Upcycling.Config(horizon, ratio=2.0, min_pool=1))
            if upcycle
            else Fixed(Fixed.Config(horizon))
        )
        config = Executor.Config(starvation=starvation, request_timeout_s=0.5)
        self.executor = Executor(strategy, config, ROBOT, 7)
        self.executor.configure(SPEC, 1)
        self.now, self.measured = 10**12, np.array([0.0, 0.0, 0.2, 0.08])
        self.epoch, self.armed, self.task, self.episode = 1, True, 'a', True
        self.open: list[ChunkRequest] = []
        self.answered: list[ActionChunk] = []
        self.accepted: set[int] = set()
        self.seq = 0
        self.asked_ns: int | None = None  # of the request in flight
        self.last: tuple[int, int] | None = None  # chunk and row of the last command
        self.last_target: np.ndarray | None = None
        self.ticks = self.starved = 0
        self._guard()
        self.executor.set_episode(True, self.task, self.now, 'e')

    def _guard(self) -> None:
        state = ArmState.ARMED if self.armed else ArmState.HOLD
        self.executor.set_guard(GuardStatus(self.now, state, self.epoch, self.now), self.now)

    def _forget(self) -> None:
        self.asked_ns = self.last_target = None

    # -- time

    @rule(count=st.integers(1, 40))
    def run(self, count: int) -> None:
        for _ in range(count):
            self._tick(TICK)

    @rule(count=st.integers(10, 120), delay_ms=st.integers(0, 500))
    def work(self, count: int, delay_ms: int) -> None:
        """A policy that observes when asked and answers after a delay, nothing else."""
        for _ in range(count):
            self._tick(TICK)
            if self.asked_ns is not None and self.now - self.asked_ns >= delay_ms * MS:
                age_ms = (self.now - self.asked_ns) // MS
                self._receive(self._chunk(self.open[-1], age_ms))
                self.asked_ns = None

    @rule(stall_ms=st.integers(1, 400))
    def stall(self, stall_ms: int) -> None:
        self._tick(stall_ms * MS)

    @rule()
    def clock_jumps_back(self) -> None:
        self.now -= 10**9
        self._forget()
        self._tick(0)

    def _tick(self, step_ns: int) -> None:
        self.now += step_ns
        tick = self.executor.tick(self.now, self.measured.copy(), self.now)
        if tick.request is not None:
            self._check_request(tick.request)
        if tick.command is None:
            self.last_target = None
            return
        assert self.armed
        assert self.episode
        command = tick.command
        target = np.concatenate([group.values for group in command.groups])
        velocity = np.concatenate([group.velocity for group in command.groups])
        assert np.isfinite(target).all()
        assert np.isfinite(velocity).all()
        assert command.arm_epoch == self.epoch
        assert command.starved == (command.row < 0) == (not command.chunk_id)
        self.ticks += 1
        self.starved += command.starved
        self._check_order(command.chunk_id.seq, command.row)
        if self.last_target is not None:  # no step along the path, however long the tick was
            ticks = max(3.0, step_ns / TICK) if command.starved else 3.0  # braking takes its time
            assert np.abs(target - self.last_target)[:3].max() <= ticks * FASTEST + 1e-6
        self.last_target = self.measured = target

    def _check_request(self, request: ChunkRequest) -> None:
        assert self.armed
        assert self.episode
        if self.asked_ns is not None:  # only one in flight, unless it was given up
            assert self.now - self.asked_ns > 0.5e9
        assert (request.arm_epoch, request.task_id) == (self.epoch, self.task)
        assert np.isfinite(request.prefix).all()
        self.asked_ns = self.now
        self.open.append(request)

    def _check_order(self, chunk: int, row: int) -> None:
        if row < 0:
            return
        assert chunk in self.accepted
        if self.last is not None:
            assert (chunk, row) >= self.last  # neither an older chunk nor an earlier row again
        self.last = (chunk, row)

    # -- the policy

    def _chunk(self, request: ChunkRequest, age_ms: int, **changes) -> ActionChunk:
        self.seq += 1
        stamp = max(self.now - age_ms * MS, request.not_before_ns)
        chunk = ActionChunk(
            Id(9, self.seq),
            request.id,
            request.arm_epoch,
            request.task_id,
            Id(8, self.seq),
            stamp,
            stamp,
            DT,
            rows(self.seq),
            SPACE.hash,
            'fake',
            1,
        )
        return replace(chunk, **changes)

    def _receive(self, chunk: ActionChunk) -> str | None:
        reason = self.executor.receive(chunk, self.now)
        if reason is None:
            assert self.armed
            assert self.episode
            assert chunk.arm_epoch == self.epoch
            assert chunk.task_id == self.task
            assert chunk.request_id not in {old.request_id for old in self.answered}
            self.accepted.add(chunk.id.seq)
            self.answered.append(chunk)
        return reason

    @precondition(lambda self: self.open)
    @rule(age_ms=st.integers(0, 900), data=st.data())
    def answer(self, age_ms: int, data: st.DataObject) -> None:
        """Any open request, also one that was given up or dropped, from any observation."""
        request = data.draw(st.sampled_from(self.open[-5:]))
        newest = request is self.open[-1]
        known = request.id in {old.request_id for old in self.answered}
        if self._receive(self._chunk(request, age_ms)) is None:
            assert not known
        if newest:
            self.asked_ns = None  # refused or not, it is answered

    @precondition(lambda self: self.open)
    @rule(
        fault=st.sampled_from(['nan', 'size', 'rows', 'space', 'epoch', 'session', 'task', 'dt'])
    )
    def answer_badly(self, fault: str) -> None:
        request = self.open[-1]
        good = self._chunk(request, 0)
        bad = {
            'nan': {'actions': good.actions * np.nan},
            'size': {'actions': good.actions[:, :3]},
            'rows': {'actions': good.actions[:-1]},
            'space': {'space_hash': 'other'},
            'epoch': {'arm_epoch': self.epoch - 1},
            'session': {'request_id': Id(6, request.id.seq)},
            'task': {'task_id': 'none'},
            'dt': {'dt_s': 0.05},
        }[fault]
        assert self._receive(replace(good, **bad)) is not None
        if fault not in ('epoch', 'session', 'task'):
            self.asked_ns = None

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        assert self._receive(data.draw(st.sampled_from(self.answered[-5:]))) is not None

    @rule()
    def policy_restarts(self) -> None:
        self.executor.configure(None)
        self.executor.configure(SPEC, self.now)
        self.asked_ns = None

    # -- guard, tasks, interrupts

    @rule(scale=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def speed(self, scale: float) -> None:
        self.executor.set_speed_scale(scale)

    @rule(ticks=st.integers(0, 30))
    def guard_stops(self, ticks: int) -> None:
        """A hold and its release; with no tick between them as good as missed."""
        self.armed = False
        self._guard()
        self._forget()
        self.run(ticks)
        self.armed, self.epoch = True, self.epoch + 1
        self._guard()

    @rule()
    def guard_stop_is_missed(self) -> None:
        self.epoch += 1
        self._guard()
        self._forget()

    @rule()
    def other_task(self) -> None:
        self.task += 'b'
        self.executor.set_episode(True, self.task, self.now, 'e')
        self.asked_ns = None

    @rule(ticks=st.integers(0, 30))
    def episode_ends(self, ticks: int) -> None:
        self.episode = False
        self.executor.set_episode(False, '', self.now, 'e')
        self._forget()
        stats = self.executor.stats()
        total = stats.executed_rows + stats.late_rows + stats.discarded_rows
        assert total == H * stats.chunks_accepted
        self.run(ticks)
        self.episode, self.ticks, self.starved = True, 0, 0
        self.executor.set_episode(True, self.task, self.now, 'e')

    @rule()
    def cut(self) -> None:
        if self.executor.cut('surprise: test', self.now):
            self.asked_ns = None

    # -- accounts

    @invariant()
    def _account(self) -> None:
        if not hasattr(self, 'executor'):
            return
        stats = self.executor.stats()
        assert (stats.ticks, stats.starved_ticks) == (self.ticks, self.starved)
        assert stats.executed_rows >= 0
        assert stats.discarded_rows >= -1  # rounding
        trace = self.executor.trace()
        assert len(trace.now_ns) == min(self.ticks, 6000)


Execution.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestExecution = Execution.TestCase


@settings(max_examples=60, deadline=None)
@given(
    horizon=st.integers(4, 16),
    share=st.floats(0.0, 1.0),
    phase_ms=st.integers(0, 9),
    age_ms=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_no_gap_above_one_tick_when_the_horizon_is_twice_the_delay(
    horizon: int, share: float, phase_ms: int, age_ms: int, seed: int
) -> None:
    """
    H >= 2 d, where d is from the observation until the tick that has the answer.

    Also: rows of one plan and the next meet without a step, since rows are relative.
    """
    longest_ms = horizon * 20 - 20 - age_ms
    delay_ns = round(share * longest_ms * MS)
    executor = Executor(Fixed(Fixed.Config(horizon)), None, ROBOT, 7)
    executor.configure(SPEC, 1)
    now = 10**12
    executor.set_guard(GuardStatus(now, ArmState.ARMED, 1, now), now)
    executor.set_episode(True, 't', now, 'e')
    pending: tuple[int, ActionChunk] | None = None
    now += phase_ms * MS
    measured, targets, plan = np.array([0.0, 0.0, 0.2, 0.08]), [], -math.inf
    for seq in range(1, 400):
        now += TICK
        if pending is not None and pending[0] <= now:
            assert executor.receive(pending[1], pending[0]) is None
            pending = None
        tick = executor.tick(now, measured, now)
        if tick.request is not None:
            stamp = max(now - age_ms * MS, tick.request.not_before_ns)
            chunk = ActionChunk(
                Id(9, seq),
                tick.request.id,
                1,
                't',
                Id(),
                stamp,
                stamp,
                DT,
                rows(seed + seq),
                SPACE.hash,
                'fake',
                1,
            )
            pending = (now + delay_ns, chunk)
        if tick.command is not None:
            targets.append(np.concatenate([group.values for group in tick.command.groups]))
            measured = targets[-1]
            assert executor.trace().plan_ns[-1] >= plan
            plan = executor.trace().plan_ns[-1]
    stats = executor.stats()
    assert stats.starved_ticks == 0
    assert stats.ticks == len(targets) > 300
    assert np.abs(np.diff(targets, axis=0))[:, :3].max() <= FASTEST + 1e-6
