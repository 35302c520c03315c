"""
What holds of the executor under every interleaving of what may happen to it.

Ticks, answers (late, twice, out of order, in parts, invalid), stops, pauses, restarts, clock
jumps, observations, cuts, one or two requests in flight; relative and absolute action spaces.
"""

from dataclasses import replace
import math

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ArmState,
    ChunkPart,
    ChunkRequest,
    GuardStatus,
    Health,
    Id,
    Kind,
    Observation,
    PolicySpec,
)
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
FADING = 2.2 * 0.5 * 1.0 * 0.01  # of a tick: half of the velocity limit, on the same curve
ROBOT = robots.load('panda')


def _absolute_space() -> ActionSpace:
    arm = ActionGroup(
        'arm',
        0,
        3,
        Kind.JOINT_POSITION,
        names=('a', 'b', 'c'),
        unit='rad',
        scale=(1.0,) * 3,
        offset=(0.0,) * 3,
    )
    gripper = ActionGroup('gripper', 3, 4, Kind.GRIPPER, scale=(0.04,), offset=(0.04,))
    limits = [(value,) * 4 for value in (-99.0, 99.0, 1.0, 13.0, 6500.0)]
    return spaces.make(ActionSpace((arm, gripper), *limits, (False,) * 4))


ABSOLUTE = PolicySpec('fake', 'joints', 1, _absolute_space(), H, DT)


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (H, 4)).astype(np.float32)


class Execution(RuleBasedStateMachine):
    """Everything that may happen to an executor, and what must hold all the time."""

    @initialize(
        horizon=st.sampled_from([1, 4, 8, 16]),
        upcycle=st.booleans(),
        starvation=st.sampled_from(['decelerate', 'hold', 'late', 'stretch']),
        in_flight=st.sampled_from([1, 2]),
        alignment=st.sampled_from(['executed', 'time']),
        absolute=st.booleans(),
    )
    def start(
        self,
        horizon: int,
        upcycle: bool,
        starvation: str,
        in_flight: int,
        alignment: str,
        absolute: bool,
    ) -> None:
        strategy = (
            Upcycling(Upcycling.Config(horizon, ratio=2.0, min_pool=1))
            if upcycle
            else Fixed(Fixed.Config(horizon))
        )
        config = Executor.Config(
            starvation=starvation,
            request_timeout_s=0.5,
            in_flight=in_flight,
            alignment=alignment,
        )
        self.in_flight, self.spec = in_flight, ABSOLUTE if absolute else SPEC
        self.executor = Executor(strategy, config, ROBOT, 7)
        self.executor.configure(self.spec, 1)
        self.now = self.steady = 10**15  # later than all that is set back
        self.measured = np.array([0.0, 0.0, 0.2, 0.08])
        self.scale = 1.0
        self.epoch, self.armed, self.task, self.episode = 1, True, 'a', True
        self.open: list[ChunkRequest] = []
        self.answered: list[ActionChunk] = []
        self.accepted: set[int] = set()
        self.seq = 0
        self.waiting: dict[int, int] = {}  # requests in flight, and when one was last heard of
        self.streaming: set[int] = set()  # requests of which rows have come
        self.streams: list[list[ActionChunk]] = []  # messages that are still to come
        self.sent_parts: list[ActionChunk] = []
        self.plan_ns = -(1 << 62)
        self.last: tuple[int, int] | None = None  # chunk and row of the last command
        self.last_target: np.ndarray | None = None
        self.ticks = self.starved = 0
        self._guard()
        self.executor.set_episode(True, self.task, self.now, 'e')

    def _guard(self) -> None:
        state = ArmState.ARMED if self.armed else ArmState.HOLD
        self.executor.set_guard(GuardStatus(self.now, state, self.epoch, self.now), self.now)

    def _forget(self) -> None:
        self.waiting.clear()
        self.last_target = None

    # -- time

    @rule(count=st.integers(1, 40))
    def run(self, count: int) -> None:
        for _ in range(count):
            self._tick(TICK)

    @rule(count=st.integers(10, 120), delay_ms=st.integers(0, 500))
    def work(self, count: int, delay_ms: int) -> None:
        """A policy that observes when asked and answers after a delay, nothing else."""
        before = self.executor.stats().chunks_accepted
        broken_off = self.streaming & set(self.waiting)  # waited for until it is timed out
        for _ in range(count):
            self._tick(TICK)
            for request in [entry for entry in self.open[-4:] if entry.id.seq in self.waiting]:
                if self.now - request.stamp_ns >= delay_ms * MS:
                    self._receive(self._chunk(request, (self.now - request.stamp_ns) // MS))
        longest_ms = H * DT * 1000 + 360  # of plan time: a whole chunk, and the answer after it
        if self.scale * count * TICK >= longest_ms * MS and delay_ms <= 300 and not broken_off:
            assert self.executor.stats().chunks_accepted > before  # whatever was before

    @rule(stall_ms=st.integers(1, 400))
    def stall(self, stall_ms: int) -> None:
        self._tick(stall_ms * MS)

    @rule(jump_s=st.sampled_from([-3600.0, -1.0, 1.0, 3600.0]))
    def clock_jumps(self, jump_s: float) -> None:
        """Time is set; the steady clock goes on."""
        self.now += round(jump_s * 1e9)
        self.plan_ns = -(1 << 62)
        self._forget()
        self._tick(0)

    def _tick(self, step_ns: int) -> None:
        self.now += step_ns
        self.steady += step_ns
        tick = self.executor.tick(self.now, self.measured.copy(), self.steady)
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
        plan = self.executor._queue.active
        assert plan is None or command.row < plan.known  # no row runs that is not ready
        if self.last_target is not None:  # no step along the path, however long the tick was
            ticks = max(3.0, step_ns / TICK) if command.starved else 3.0  # braking takes its time
            fastest = FASTEST + (FADING if self.spec is ABSOLUTE else 0.0)
            assert np.abs(target - self.last_target)[:3].max() <= ticks * fastest + 1e-6
        self.last_target = self.measured = target
        plan_ns = self.executor._queue.clock.plan_ns
        assert plan_ns >= self.plan_ns
        self.plan_ns = plan_ns

    def _check_request(self, request: ChunkRequest) -> None:
        assert self.armed
        assert self.episode
        under_way = [seq for seq, heard in self.waiting.items() if self.now - heard <= 0.5e9]
        assert len(under_way) < self.in_flight  # but those that were given up
        assert (request.arm_epoch, request.task_id) == (self.epoch, self.task)
        assert np.isfinite(request.prefix).all()
        self.waiting[request.id.seq] = self.now
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
            self._rows(),
            self.spec.space.hash,
            'fake',
            1,
        )
        return replace(chunk, **changes)

    def _rows(self) -> np.ndarray:
        steps = rows(self.seq)
        if self.spec is ABSOLUTE:  # a walk from where the arm is, more or less
            steps[:, :3] = 0.05 * np.cumsum(steps[:, :3], axis=0) + self.measured[:3]
        return steps

    def _receive(self, chunk: ActionChunk) -> str | None:
        """Hand over an answer; a whole one ends its request, accepted or not."""
        reason = self.executor.receive(chunk, self.now)
        seq = chunk.request_id.seq
        if chunk.request_id.session == 7 and chunk.arm_epoch == self.epoch:
            if chunk.final or reason is not None:
                self.waiting.pop(seq, None)
            elif seq in self.waiting:
                self.waiting[seq] = self.now
                self.streaming.add(seq)
        if reason is None:
            self._end_older_streams(seq)
            assert self.armed
            assert self.episode
            assert chunk.arm_epoch == self.epoch
            assert chunk.task_id == self.task
            assert chunk.request_id not in {old.request_id for old in self.answered}
            self.accepted.add(chunk.id.seq)
            if chunk.final:
                self.answered.append(chunk)
        return reason

    def _end_older_streams(self, accepted: int) -> None:
        """What comes of them now is not waited for."""
        for seq in [seq for seq in self.waiting if seq < accepted and seq in self.streaming]:
            del self.waiting[seq]

    @precondition(lambda self: self.open)
    @rule(age_ms=st.integers(0, 900), data=st.data())
    def answer(self, age_ms: int, data: st.DataObject) -> None:
        """Any open request, also one that was given up or dropped, from any observation."""
        request = data.draw(st.sampled_from(self.open[-5:]))
        known = request.id in {old.request_id for old in self.answered}
        if self._receive(self._chunk(request, age_ms)) is None:
            assert not known

    @precondition(lambda self: self.open)
    @rule(
        fault=st.sampled_from(
            ['nan', 'size', 'rows', 'space', 'epoch', 'session', 'task', 'dt', 'part']
        )
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
            'part': {'parts': (ChunkPart(8, 16, Id(), self.now, executable_rows=1),)},
        }[fault]
        assert self._receive(replace(good, **bad)) is not None

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        assert self._receive(data.draw(st.sampled_from(self.answered[-5:]))) is not None

    @precondition(lambda self: self.open)
    @rule(
        age_ms=st.integers(0, 300),
        groups=st.sampled_from([2, 4]),
        shuffle=st.sampled_from([False, False, True]),
    )
    def answer_in_parts(self, age_ms: int, groups: int, shuffle: bool) -> None:
        """The first message now, the others later; each refines what is to come."""
        request = self.open[-1]
        chunks = []
        for step in range(1, groups + 1):
            ready = step * H // groups
            parts = (
                ChunkPart(0, ready, Id(), 0, step, step == groups, ready),
                *((ChunkPart(ready, H - ready, Id(), 0, 0, False, 0),) * (ready < H)),
            )
            chunks.append(self._chunk(request, age_ms, parts=parts))
        first, rest = chunks[0], [replace(c, start_ns=chunks[0].start_ns) for c in chunks[1:]]
        if self._receive(first) is None:
            self.streams.append(rest[::-1] if shuffle else rest)
            self.sent_parts.append(first)
            self.more_parts(again=False, ticks=5)

    @precondition(lambda self: self.streams)
    @rule(again=st.sampled_from([False, False, False, True]), ticks=st.integers(0, 20))
    def more_parts(self, again: bool, ticks: int) -> None:
        """The next message of a stream, or an old one again."""
        self.run(ticks)
        stream = self.streams[-1]
        chunk = self.sent_parts[-1] if again else stream.pop(0)
        before = self.executor.stats()
        reason = self.executor.receive(chunk, self.now)
        after = self.executor.stats()
        assert after.merges == before.merges
        assert after.chunks_accepted - before.chunks_accepted in (0, 1)
        if after.chunks_accepted > before.chunks_accepted:  # nothing ran of those before it
            self.accepted.add(chunk.id.seq)
        seq = chunk.request_id.seq
        if reason is None and chunk.final:
            self.waiting.pop(seq, None)
            self.answered.append(chunk)
        elif reason is None and seq in self.waiting:
            self.waiting[seq] = self.now
            self.streaming.add(seq)
        if reason is None:
            self._end_older_streams(seq)
        self.sent_parts.append(chunk)
        self.streams = [entry for entry in self.streams if entry]

    @rule()
    def policy_restarts(self) -> None:
        self.executor.configure(None)
        self.executor.configure(self.spec, self.now)
        self.waiting.clear()

    @rule(count=st.integers(1, 3))
    def observe(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            state = np.array(self.measured[:3], np.float32)
            seen = Observation(
                Id(8, self.seq),
                self.now,
                self.now,
                ('ee.x', 'ee.y', 'ee.z'),
                state,
                arm_epoch=self.epoch,
                task_id=self.task,
                health=Health.OK,
            )
            self.executor.observe(seen, self.now)

    # -- guard, tasks, interrupts

    @rule(scale=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def speed(self, scale: float) -> None:
        self.executor.set_speed_scale(scale)
        self.scale = scale

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
        self.waiting.clear()

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
            self.waiting.clear()

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
    in_flight=st.sampled_from([1, 2]),
)
def test_no_gap_above_one_tick_when_the_horizon_is_twice_the_delay(
    horizon: int, share: float, phase_ms: int, age_ms: int, seed: int, in_flight: int
) -> None:
    """
    H >= 2 d, where d is from the observation until the tick that has the answer.

    Also: rows of one plan and the next meet without a step, since rows are relative.
    """
    longest_ms = horizon * 20 - 20 - age_ms
    delay_ns = round(share * longest_ms * MS)
    config = Executor.Config(in_flight=in_flight)
    executor = Executor(Fixed(Fixed.Config(horizon)), config, ROBOT, 7)
    executor.configure(SPEC, 1)
    now = 10**12
    executor.set_guard(GuardStatus(now, ArmState.ARMED, 1, now), now)
    executor.set_episode(True, 't', now, 'e')
    pending: list[tuple[int, ActionChunk]] = []
    now += phase_ms * MS
    measured, targets, plan = np.array([0.0, 0.0, 0.2, 0.08]), [], -math.inf
    for seq in range(1, 400):
        now += TICK
        while pending and pending[0][0] <= now:
            at_ns, chunk = pending.pop(0)
            assert executor.receive(chunk, at_ns) is None
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
            pending.append((now + delay_ns, chunk))
        if tick.command is not None:
            targets.append(np.concatenate([group.values for group in tick.command.groups]))
            measured = targets[-1]
            assert executor.trace().plan_ns[-1] >= plan
            plan = executor.trace().plan_ns[-1]
    stats = executor.stats()
    assert stats.starved_ticks == 0
    assert stats.ticks == len(targets) > 300
    assert np.abs(np.diff(targets, axis=0))[:, :3].max() <= FASTEST + 1e-6
