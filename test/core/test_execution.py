"""The executor through its public API: timing, merges, starvation, refusals, stops."""

from dataclasses import replace
import functools
from itertools import pairwise
import math
import re

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor, Tick
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ArmState,
    ChunkPart,
    Command,
    GuardEvent,
    GuardStatus,
    Health,
    HorizonDecision,
    Id,
    Kind,
    Observation,
    PolicySpec,
    Reaction,
    Reference,
    Rotation,
)
from hypothesis import given, Phase, settings
from hypothesis import strategies as st
import numpy as np
import pytest

EE = spaces.ee_delta_space()  # rows of 40 ms; 1 = 0.05 m; gripper 1 = 0.08 m, -1 = 0
T0 = 1_000_000_000_000
MS = 1_000_000
HOME = np.array([0.0, 0.0, 0.2, 0.08])


def forward(rows: int = 16, x: float = 0.4, gripper: float = 1.0) -> np.ndarray:
    """Return rows that move along x, 0.02 m each by default."""
    return np.tile(np.array([x, 0, 0, gripper], np.float32), (rows, 1))


RANDOM_ROWS = np.random.default_rng(7).uniform(-0.1, 0.1, (16, 4))


class Rig:
    """An executor with a robot that follows perfectly and a policy played by the test."""

    def __init__(
        self,
        strategy: Strategy | None = None,
        space: ActionSpace = EE,
        start: np.ndarray = HOME,
        running: bool = True,
        spec: PolicySpec | None = None,
        **config,
    ) -> None:
        self.spec = spec or PolicySpec('fake', 'fake', 1, space, 16, 0.04)
        self.strategy = strategy or Fixed(Fixed.Config(8))
        self.executor = Executor(self.strategy, Executor.Config(**config), robots.load('panda'), 7)
        self.executor.configure(self.spec, 5)
        self.now, self.measured, self.frozen = T0 - 10 * MS, start.copy(), False
        self.requests: list = []
        self.commands: list[Command] = []
        self.decisions: list[HorizonDecision] = []
        self.answers = 0
        if running:
            self.guard(ArmState.ARMED)
            self.executor.set_episode(True, 'task', self.now, 'episode')

    def guard(self, state: ArmState, epoch: int = 3, since: int | None = None) -> None:
        status = GuardStatus(self.now, state, epoch, self.now if since is None else since)
        self.executor.set_guard(status, self.now)

    def tick(self, step_ms: float = 10) -> Tick:
        """Let time pass, then tick; answers come right after the tick."""
        self.now += round(step_ms * MS)
        tick = self.executor.tick(self.now, self.measured, self.now)
        if tick.command is not None:
            self.commands.append(tick.command)
            if not self.frozen:
                self.measured = target_of(tick.command)
        if tick.request is not None:
            self.requests.append(tick.request)
        if tick.decision is not None:
            self.decisions.append(tick.decision)
        return tick

    def ticks(self, count: int) -> list[Tick]:
        return [self.tick() for _ in range(count)]

    def chunk(self, rows=None, *, seen: int | None = None, **changes) -> ActionChunk:
        """Return an answer to the newest request from an observation at ``seen`` (now)."""
        self.answers += 1
        stamp = self.now if seen is None else seen
        request = self.requests[-1]
        fields = {
            'id': Id(9, self.answers),
            'request_id': request.id,
            'arm_epoch': request.arm_epoch,
            'task_id': request.task_id,
            'observation_id': Id(8, self.answers),
            'observation_stamp_ns': stamp,
            'start_ns': stamp,
            'dt_s': self.spec.dt_s,
            'actions': forward(self.spec.horizon)
            if rows is None
            else np.asarray(rows, np.float32),
            'space_hash': self.spec.space.hash,
            'policy': 'fake',
            'policy_version': 1,
        }
        return ActionChunk(**{**fields, **changes})

    def answer(self, rows=None, **changes) -> str | None:
        return self.executor.receive(self.chunk(rows, **changes), self.now)

    def started(self, rows=None, after_ms: int = 0, **changes) -> 'Rig':
        """Ask, and answer from an observation of that time."""
        self.tick()
        self.ticks(after_ms // 10)
        assert self.answer(rows, **changes) is None
        return self

    def until_asked(self) -> int:
        """Tick until a chunk is asked for, and return when that was."""
        count = len(self.requests)
        while len(self.requests) == count:
            self.tick()
        return self.now

    @property
    def stats(self):
        return self.executor.stats()

    @property
    def x(self) -> float:
        return float(target_of(self.commands[-1])[0])


def target_of(command: Command) -> np.ndarray:
    return np.concatenate([group.values for group in command.groups])


def velocity_of(command: Command) -> np.ndarray:
    return np.concatenate([group.velocity for group in command.groups])


# ---- the course of a chunk ----------------------------------------------------------------------


def test_nothing_is_commanded_before_the_first_chunk_but_it_is_asked_for_at_once() -> None:
    rig = Rig()
    ticks = rig.ticks(5)
    assert [tick.command for tick in ticks] == [None] * 5
    assert [tick.request is not None for tick in ticks] == [True, False, False, False, False]
    request = rig.requests[0]
    assert (request.reason, request.arm_epoch, request.task_id) == ('start', 3, 'task')
    assert (request.id, request.not_before_ns) == (Id(7, 1), T0 - 10 * MS)
    assert request.prefix.size == 0


def test_rows_count_from_the_measured_pose_and_are_interpolated_to_the_control_rate() -> None:
    rig = Rig().started([*forward(4), *forward(12, x=-0.4, gripper=-1)])
    rig.ticks(8)
    xs = [target_of(command)[0] for command in rig.commands]
    assert xs[3::4] == pytest.approx([0.02, 0.04])  # on time
    assert np.all(np.diff([0.0, *xs]) > 0.001)
    first = rig.commands[0]
    assert velocity_of(rig.commands[7]) == pytest.approx([0.5, 0, 0, 0])
    assert (first.row, first.chunk_id, first.arm_epoch) == (0, Id(9, 1), 3)
    assert [command.row for command in rig.commands] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [group.kind for group in first.groups] == [Kind.EE_POSE, Kind.GRIPPER]
    assert first.tick_steady_ns == first.stamp_ns  # as given to the tick
    rig.ticks(12)
    assert target_of(rig.commands[-1]) == pytest.approx([0.08 - 0.02, 0, 0.2, 0.0])
    assert max(target_of(c)[0] for c in rig.commands) == pytest.approx(0.08)  # where it turns
    widths = [target_of(c)[3] for c in rig.commands[15:]]
    assert widths == pytest.approx([0.08, 0.06, 0.04, 0.02, 0.0])  # grippers go straight
    assert velocity_of(rig.commands[-1])[3] == pytest.approx(-0.08 / 0.04)


def test_row_times_are_those_of_the_chunk() -> None:
    rig = Rig().started()
    stamp = rig.now
    rig.ticks(6)
    assert [command.row_ns - stamp for command in rig.commands] == [
        0, 0, 0, 0, 40 * MS, 40 * MS,
    ]  # fmt: skip
    assert {command.observation_stamp_ns for command in rig.commands} == {stamp}


def test_without_latency_exactly_h_rows_run_per_call() -> None:
    rig = Rig(margin_ticks=0)
    for _ in range(33):
        rig.until_asked()
        rig.answer()
    stats = rig.stats
    assert stats.starved_ticks == 0
    assert stats.executed_rows == 32 * 8
    assert (stats.policy_calls, stats.late_rows) == (33, 0)
    assert rig.x == pytest.approx(32 * 8 * 0.02)
    assert stats.calls_saved_ratio == pytest.approx(32 / 33)
    assert stats.mean_horizon == 8


def test_rows_that_ran_since_the_observation_are_skipped_and_no_others() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=200)
    seen = rig.until_asked()
    rig.ticks(12)  # three rows
    assert rig.answer(seen=seen) is None
    before = rig.x
    rig.ticks(4)
    assert (rig.commands[-1].chunk_id, rig.commands[-1].row) == (Id(9, 2), 3)
    assert rig.x == pytest.approx(before + 0.02)  # and no step: relative rows count on
    assert rig.stats.merges == 1
    assert rig.stats.largest_merge_step == pytest.approx(0.0, abs=1e-6)


def test_the_switch_is_at_a_row_boundary_of_the_new_chunk() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=200)
    seen = rig.until_asked()
    rig.ticks(5)  # 50 ms: row 0 of the new chunk is over, row 1 is under way
    rig.answer(forward(x=-0.4), seen=seen)
    chunks = [tick.command.chunk_id.seq for tick in rig.ticks(6)]
    assert chunks == [1, 1, 2, 2, 2, 2]  # at 60 and 70 ms; at 80 ms row 2 begins
    assert rig.commands[-1].row == 2


def test_where_nothing_runs_until_then_the_rest_of_the_row_under_way_runs_at_once() -> None:
    rig = Rig(Fixed(Fixed.Config(8))).started(after_ms=200)
    seen = rig.until_asked() + 20 * MS
    rig.ticks(17)
    assert rig.commands[-1].starved
    assert rig.answer(forward(x=0.8), seen=seen) is None  # 140 ms ran since: three rows and a half
    before = rig.x
    ticks = rig.ticks(6)
    assert [tick.command.row for tick in ticks] == [3, 3, 4, 4, 4, 4]
    xs = [target_of(tick.command)[0] - before for tick in ticks]
    assert xs[1::4] == pytest.approx([0.5 * 0.04, 1.5 * 0.04])
    assert np.all(np.diff([0.0, *xs]) > 0.0)


def test_velocities_are_those_of_the_path_and_continuous() -> None:
    rng = np.random.default_rng(1)
    rig = Rig(Fixed(Fixed.Config(16))).started(rng.uniform(-1, 1, (16, 4)))
    rig.ticks(60)
    targets = np.array([target_of(command) for command in rig.commands])
    speeds = np.array([velocity_of(command) for command in rig.commands])
    inside = np.array([i for i in range(1, 59) if i % 4 != 3])  # a row ends with tick 3, 7, ...
    moved = (targets[inside + 1] - targets[inside - 1]) / 0.02
    # Simpson's rule is exact for a cubic, if the velocity at its start is that of the row before.
    simpson = (speeds[inside - 1] + 4 * speeds[inside] + speeds[inside + 1]) / 6
    assert moved[:, :3] == pytest.approx(simpson[:, :3], abs=1e-6)
    gripper = (targets[inside, 3] - targets[inside - 1, 3])[inside % 4 > 0] / 0.01
    assert gripper == pytest.approx(speeds[inside, 3][inside % 4 > 0], abs=1e-6)


def test_no_row_passes_its_target_where_the_motion_turns_or_ends() -> None:
    rows = np.zeros((16, 4), np.float32)
    rows[:, 0] = [1, 0.1, 0, 0, 0.8, -0.8, 0.05, 1, 1, 0.02, -0.02, -1, 0, 0.5, 0.4, 0]
    rig = Rig(Fixed(Fixed.Config(16))).started(rows)
    rig.ticks(64)
    xs = np.array([0.0, *(target_of(command)[0] for command in rig.commands)])
    ends = np.cumsum([0.0, *rows[:, 0]]) * 0.05
    assert xs[::4] == pytest.approx(ends, abs=1e-6)
    for i, (before, after) in enumerate(pairwise(ends)):
        row = xs[4 * i : 4 * i + 5]
        assert np.all(np.diff(row) * np.sign(after - before) >= -1e-7)
        assert row.min() >= min(before, after) - 1e-6
        assert row.max() <= max(before, after) + 1e-6


def test_a_change_of_pace_is_spread_over_the_row() -> None:
    """Acceleration is change of pace by the row's time; straight lines would need 4 times it."""
    dv = 0.05  # [m/s] from row to row
    rows = np.zeros((16, 4), np.float32)
    rows[:, 0] = (np.arange(16) + 0.5) * dv * 0.04 / 0.05
    rig = Rig(Fixed(Fixed.Config(16))).started(rows)
    rig.ticks(60)  # all but the last row
    xs = np.array([target_of(command)[0] for command in rig.commands])
    accelerations = np.diff(xs, 2) / 0.01**2
    assert accelerations == pytest.approx(dv / 0.04, rel=0.01)


@pytest.mark.parametrize('answered_after', [1, 12, 25, 38])
def test_a_merge_within_a_row_keeps_position_and_velocity(answered_after: int) -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=200)
    seen = rig.until_asked()
    for _ in range(answered_after):
        rig.tick(1)
    assert rig.answer(forward(x=0.48), seen=seen) is None  # 0.5 -> 0.6 m/s
    at = len(rig.commands) - 1
    for _ in range(100):
        rig.tick(1)
    assert {command.chunk_id.seq for command in rig.commands[at:]} == {1, 2}
    speeds = np.array([velocity_of(command)[0] for command in rig.commands[at:]])
    xs = np.array([target_of(command)[0] for command in rig.commands[at:]])
    assert np.abs(np.diff(speeds)).max() <= 1.01 * 4 * 0.1 / 40
    assert np.diff(xs) == pytest.approx(0.001 * (speeds[1:] + speeds[:-1]) / 2, abs=1e-6)
    assert speeds[-1] == pytest.approx(0.6)


# ---- when to ask --------------------------------------------------------------------------------


def run_with_delay(rig: Rig, delay_ms: float, seconds: float, rng=None) -> None:
    """Play a policy that observes when asked and answers after a delay."""
    arrival, pending = 0, None
    for _ in range(round(seconds * 100)):
        tick = rig.tick()
        if pending is not None and rig.now >= arrival:
            assert rig.executor.receive(pending, rig.now) is None
            pending = None
        if tick.request is not None:
            at = tick.request.stamp_ns
            phase = np.sin(3e-9 * (at - T0) + 0.12 * np.arange(rig.spec.horizon))
            rows = np.zeros((rig.spec.horizon, 4), np.float32)
            rows[:, 0] = 0.4 * phase
            pending = rig.chunk(rows, seen=at)
            spread = 1.0 if rng is None else max(0.1, 1 + rng.normal() / 3)
            arrival = at + round(delay_ms * spread * MS)
            if arrival == at:
                assert rig.executor.receive(pending, rig.now) is None
                pending = None


@pytest.mark.parametrize('delay_ms', [0, 10, 35, 50, 120, 200, 300, 310])
def test_no_starvation_up_to_half_the_horizon_at_fixed_latency(delay_ms: float) -> None:
    rig = Rig(Fixed(Fixed.Config(16)))
    run_with_delay(rig, delay_ms, 10)
    assert rig.stats.starved_ticks == 0
    assert rig.stats.ticks >= 950


def test_hardly_any_with_jitter_of_a_third() -> None:
    rig = Rig(Fixed(Fixed.Config(16)))
    run_with_delay(rig, 150, 60, np.random.default_rng(0))
    assert rig.stats.starved_ticks <= 0.005 * rig.stats.ticks


@pytest.mark.parametrize('delay_ms', [350, 400, 500, 600, 900])
def test_beyond_it_no_more_than_the_law_says(delay_ms: float) -> None:
    rig = Rig(Fixed(Fixed.Config(16)))
    run_with_delay(rig, delay_ms, 20)
    law = min(1.0, 1 - (640 - delay_ms) / delay_ms)
    assert rig.stats.starved_ticks / rig.stats.ticks <= law


def test_a_cold_start_is_counted_apart_and_soon_forgotten() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=1080)
    run_with_delay(rig, 80, 5)
    assert rig.stats.cold_start_s == pytest.approx(1.08)
    assert rig.stats.delay_p95_s == pytest.approx(0.08)
    assert rig.stats.starved_ticks == 0
    assert rig.stats.first_action_s == pytest.approx(1.1)  # from one tick before the first


def test_one_request_at_a_time_and_a_dead_policy_is_asked_again_without_a_burst() -> None:
    rig = Rig(request_timeout_s=1.0).started()
    rig.ticks(500)
    asked = [(request.stamp_ns - T0) / 1e9 for request in rig.requests]
    assert len(asked) == 6
    assert np.diff(asked[1:]) == pytest.approx(1.01, abs=0.011)
    assert rig.stats.timeouts == 4
    assert {request.reason for request in rig.requests[2:]} == {'starved'}


def test_a_slow_policy_is_not_a_dead_one() -> None:
    """The answer to a request that was given up counts while nothing newer was accepted."""
    rig = Rig(request_timeout_s=0.2)
    rig.tick()
    first = rig.chunk()
    rig.ticks(40)
    assert len(rig.requests) == 2
    assert (
        rig.executor.receive(
            replace(first, observation_stamp_ns=rig.now, start_ns=rig.now), rig.now
        )
        is None
    )
    assert rig.answer() is None  # the newer one may still come, and is newer
    assert 'superseded' in rig.executor.receive(first, rig.now)


def test_a_policy_that_sends_nonsense_is_given_a_pause() -> None:
    rig = Rig()
    for _ in range(100):
        if rig.tick().request is not None:
            assert rig.answer(forward() * np.nan) is not None
    assert 8 <= len(rig.requests) <= 11


def test_nobody_is_asked_while_no_policy_serves_and_a_new_one_at_once() -> None:
    rig = Rig(Fixed(Fixed.Config(8))).started()
    rig.executor.configure(None)
    assert all(tick.request is None for tick in rig.ticks(100))
    rig.executor.configure(rig.spec, 6)
    assert rig.tick().request is not None
    rig.executor.configure(replace(rig.spec, version=2), 6)  # new weights, same process:
    assert rig.answer() is None  # its answers still count
    rig.executor.configure(rig.spec, 11)  # another process never got the request
    assert rig.tick().request is None  # and enough is left to run
    rig.ticks(40)
    assert len(rig.requests) == 3


# ---- starvation ---------------------------------------------------------------------------------


def test_starved_the_arm_brakes_within_its_limits_and_holds() -> None:
    rig = Rig(stop_acceleration=0.5).started()
    rig.ticks(33)
    assert rig.x == pytest.approx(0.16 + 0.5 * 0.01 - 0.5 * 6.5 * 0.01**2)
    assert [c.starved for c in rig.commands[-2:]] == [False, True]
    starved = rig.commands[-1]
    assert (starved.row, starved.chunk_id, starved.observation_stamp_ns) == (-1, Id(), 0)
    speeds = [velocity_of(tick.command)[0] for tick in rig.ticks(20)]
    assert np.diff([0.5 - 6.5 * 0.01, *speeds[:5]]) == pytest.approx(-6.5 * 0.01)
    assert speeds[-1] == 0.0
    assert rig.x == pytest.approx(0.16 + 0.5**2 / (2 * 6.5))
    assert rig.stats.starved_ticks == 21
    assert rig.stats.ticks == 53


@pytest.mark.parametrize('scale', [1.0, 0.5])
def test_a_chunk_that_arrives_while_the_arm_brakes_goes_on_from_that_speed(scale: float) -> None:
    rig = Rig(stop_acceleration=0.5)
    rig.executor.set_speed_scale(scale)
    rig.started()
    while not rig.tick().command.starved:
        pass
    braked = velocity_of(rig.commands[-1])[0]
    assert 0.3 * scale < braked < 0.5 * scale
    before = rig.x
    assert rig.answer() is None
    rig.tick(1)
    assert velocity_of(rig.commands[-1])[0] == pytest.approx(braked, abs=0.02 * scale)
    assert rig.x == pytest.approx(before + 0.001 * braked, abs=2e-5)


def test_hold_stops_at_once() -> None:
    rig = Rig(starvation='hold').started()
    rig.ticks(40)
    assert rig.x == pytest.approx(0.16)
    assert velocity_of(rig.commands[-1]) == pytest.approx(np.zeros(4))


def test_late_runs_the_rows_beyond_the_horizon_first_and_says_so() -> None:
    rig = Rig(starvation='late').started()
    rig.ticks(70)
    assert rig.stats.starved_ticks == 6
    assert rig.stats.executed_rows == 16
    extended = [d for d in rig.decisions if d.reason == 'late']
    assert [d.chosen for d in extended] == list(range(9, 17))


def test_stretch_slows_down_so_that_the_rows_last() -> None:
    def worst(starvation: str) -> int:
        rig = Rig(starvation=starvation)
        run_with_delay(rig, 200, 10)
        return int(rig.stats.starved_ticks)

    assert worst('decelerate') > 100
    assert worst('stretch') == 0


def test_what_was_not_run_while_starved_is_not_late() -> None:
    rig = Rig().started(after_ms=200)
    rig.ticks(28)
    seen = rig.now  # 40 ms of rows are left
    rig.ticks(60)
    assert rig.stats.starved_ticks == 56
    before = rig.x
    assert rig.answer(seen=seen) is None
    assert [tick.command.row for tick in rig.ticks(4)] == [1] * 4  # one row ran since
    assert rig.x == pytest.approx(before + 0.02)


def test_where_all_rows_are_late_the_last_one_runs_next() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=200)
    seen = rig.now
    rig.ticks(70)
    assert rig.commands[-1].starved
    assert rig.answer(seen=seen) is None
    assert [tick.command.row for tick in rig.ticks(4)] == [15] * 4


def test_at_least_one_row_runs_whatever_the_horizon() -> None:
    rig = Rig(Fixed(Fixed.Config(2)), starvation='late').started(after_ms=200)
    seen = rig.until_asked()
    rig.ticks(14)  # 140 ms are 3.5 rows, more than h
    assert rig.answer(seen=seen) is None
    rig.ticks(2)
    decision = next(d for d in rig.decisions if d.chunk_id == Id(9, 2))
    assert (decision.chosen, decision.reason) == (5, 'late rows')


# ---- speed, clocks, ages ------------------------------------------------------------------------


def test_slowing_keeps_the_path() -> None:
    rng = np.random.default_rng(2)
    rows = rng.uniform(-1, 1, (16, 4))
    fast, slow = (Rig(Fixed(Fixed.Config(16))) for _ in range(2))
    slow.executor.set_speed_scale(0.5)
    for rig, count in ((fast, 60), (slow, 120)):
        rig.started(rows)
        rig.ticks(count)
    full = np.array([target_of(c) for c in fast.commands])
    half = np.array([target_of(c) for c in slow.commands])
    assert half[1::2] == pytest.approx(full)
    assert velocity_of(slow.commands[1]) == pytest.approx(0.5 * velocity_of(fast.commands[0]))


@functools.cache
def path_of_a_chunk() -> np.ndarray:
    """Return where 16 random rows lead, every half millisecond of plan time, (T, 3)."""
    parts = []
    for phase in range(20):  # at full speed: slowed down, rows would get too old
        rig = Rig(Fixed(Fixed.Config(16)))
        rig.started(RANDOM_ROWS)
        before = len(rig.commands)
        rig.executor.set_speed_scale((phase + 1) / 20)
        rig.tick()
        rig.executor.set_speed_scale(1.0)
        rig.ticks(60)
        parts.append([target_of(command)[:3] for command in rig.commands[before:]])
    return np.array(
        [HOME[:3], *(point for column in zip(*parts, strict=True) for point in column)]
    )


def off_path(point: np.ndarray, path: np.ndarray) -> float:
    """Return the distance of a point (3,) from a line through points (T, 3)."""
    start, along = path[:-1], np.diff(path, axis=0)
    length = np.maximum((along**2).sum(axis=1), 1e-30)
    share = np.clip(((point - start) * along).sum(axis=1) / length, 0.0, 1.0)
    return float(np.linalg.norm(start + share[:, None] * along - point, axis=1).min())


@pytest.mark.matrix(16)
@settings(max_examples=30, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 8)), min_size=1, max_size=10))
def test_whatever_the_speed_scale_the_path_is_the_same(pace: list[tuple[float, int]]) -> None:
    """P9: no target is 1e-6 m off the path, however often the scale changes."""
    rig, plan_s = Rig(Fixed(Fixed.Config(16))), 0.0
    rig.started(RANDOM_ROWS)
    for scale, count in pace:
        rig.executor.set_speed_scale(scale)
        count = min(count, int((0.58 - plan_s) / max(0.01 * scale, 1e-3)))
        rig.ticks(count)
        plan_s += 0.01 * scale * count
    sent = [target_of(command)[:3] for command in rig.commands[::3]]
    assert max(off_path(point, path_of_a_chunk()) for point in sent) < 1e-6


def test_at_scale_zero_nothing_moves_and_nothing_is_late() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    at = rig.x
    rig.executor.set_speed_scale(0.0)
    rig.ticks(20)
    assert rig.x == at
    assert velocity_of(rig.commands[-1]) == pytest.approx(np.zeros(4))
    rig.executor.set_speed_scale(1.0)
    rig.tick()
    assert rig.x == pytest.approx(at + 0.005)
    with pytest.raises(InvalidDataError, match=r'1\.5, allowed 0 to 1'):
        rig.executor.set_speed_scale(1.5)


@pytest.mark.parametrize('scale', [5e-324, 1e-308, 1e-12, 9e-5])
def test_a_speed_of_next_to_nothing_stands_still(scale: float) -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    at = rig.x
    rig.executor.set_speed_scale(scale)
    rig.ticks(20)
    assert rig.x == at
    assert abs(rig.commands[-1].row_ns - rig.now) < 1e9


@pytest.mark.parametrize('scale', [0.0, 0.02, 0.3, 1.0])
def test_however_slow_the_arm_no_row_is_sent_long_after_it_is_too_old(scale: float) -> None:
    spec = PolicySpec('fake', 'fake', 1, EE, 16, 0.04, max_row_age_s=0.3)
    rig = Rig(Fixed(Fixed.Config(16)), spec=spec).started()
    rig.ticks(10)
    rig.executor.set_speed_scale(scale)

    def go_on(count: int) -> None:
        for _ in range(count):
            if rig.tick().request is not None:
                assert rig.answer() is None

    go_on(150)
    old = [c.stamp_ns - c.observation_stamp_ns for c in rig.commands if c.row >= 0]
    assert max(old) < 0.42e9
    asked = len(rig.requests)
    assert asked > 2, 'it goes on asking, and goes on when it may'
    rig.executor.set_speed_scale(1.0)
    at = rig.x
    go_on(60)
    assert rig.x > at + 0.05


def test_a_stalled_process_does_not_jump_along_the_path() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(5)
    before = rig.x
    rig.now += 300 * MS
    rig.tick()
    assert rig.x == pytest.approx(before + 3 * 0.005)
    assert rig.stats.late_ticks == 1
    assert rig.stats.worst_lateness_s == pytest.approx(0.3)


def test_a_clock_that_jumps_back_drops_the_plan_and_holds() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    at = rig.x
    rig.now = T0 - 10**9
    tick = rig.tick()
    assert rig.x == at
    assert tick.command.starved
    assert (tick.request.reason, tick.request.not_before_ns) == ('clock', rig.now)
    assert rig.answer() is None
    rig.ticks(4)
    assert rig.x == pytest.approx(at + 0.02)


def test_a_clock_that_jumps_ahead_drops_the_plan_and_holds() -> None:
    """Time was set while the process ran on: a stall moves both clocks, a jump only one."""
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    rig.until_asked()
    stale = rig.chunk()
    at, steady = rig.x, rig.now
    rig.now += 3600 * 10**9
    tick = rig.executor.tick(rig.now, rig.measured, steady + 10 * MS)
    assert tick.command.starved
    assert target_of(tick.command)[0] == at
    assert (tick.request.reason, tick.request.not_before_ns) == ('clock', rig.now)
    assert 'dropped' in rig.executor.receive(stale, rig.now)
    rig.requests.append(tick.request)
    for i in range(2, 8):
        rig.now += 10 * MS
        rig.executor.tick(rig.now, rig.measured, steady + i * 10 * MS)
    assert rig.answer() is None
    rig.now += 10 * MS
    assert not rig.executor.tick(rig.now, rig.measured, steady + 80 * MS).command.starved
    assert rig.stats.delay_p95_s < 0.1  # the hour is no delay


def test_a_clock_that_jumps_back_before_the_first_tick_keeps_nobody_waiting() -> None:
    rig = Rig()
    rig.now -= 600 * 10**9
    request = rig.tick().request
    assert request.not_before_ns == rig.now
    assert rig.answer() is None


def test_simulated_time_may_leap() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    for step in range(1, 30):
        rig.now += 30 * MS
        tick = rig.executor.tick(rig.now, rig.measured, T0 + step * MS, rig.now)
        rig.measured = target_of(tick.command)
        assert not tick.command.starved or step > 20


def test_pause_and_resume_with_an_answer_in_between() -> None:
    """At speed 0 nothing is consumed: what is answered then runs on from where the arm is."""
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    rig.until_asked()
    rig.executor.set_speed_scale(0.0)
    at = rig.x
    rig.ticks(30)
    assert rig.x == pytest.approx(at)
    assert rig.answer() is None
    rig.ticks(30)
    assert rig.x == pytest.approx(at)
    rig.executor.set_speed_scale(1.0)
    rig.ticks(8)
    assert rig.x == pytest.approx(at + 0.04, abs=0.002)
    assert rig.stats.starved_ticks == 0


def test_a_pause_longer_than_rows_may_be_old_asks_anew() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    rig.ticks(10)
    rig.executor.set_speed_scale(0.0)
    rig.ticks(200)
    rig.executor.set_speed_scale(1.0)
    rig.ticks(20)
    assert rig.commands[-1].starved
    assert rig.answer() is None
    rig.tick()
    assert rig.commands[-1].row == 0


def test_a_policy_that_dies_is_waited_for_asked_again_and_heard_when_it_is_back() -> None:
    rig = Rig(Fixed(Fixed.Config(16)), request_timeout_s=0.5).started(after_ms=60)
    rig.ticks(300)  # nobody answers
    assert rig.commands[-1].starved
    assert 4 <= rig.stats.timeouts <= 6
    back = len(rig.requests)
    assert rig.answer() is None  # the last one asked
    rig.tick()
    assert not rig.commands[-1].starved
    assert rig.stats.chunks_accepted == 2
    rig.until_asked()
    assert len(rig.requests) == back + 1


def test_a_policy_that_changes_its_rows_or_rate_is_refused_counted_and_asked_again() -> None:
    rig = Rig(Fixed(Fixed.Config(8))).started(after_ms=60)
    reasons = []
    for changes in ({'dt_s': 0.02}, {'actions': forward(8)}, {'actions': forward(16)[:, :2]}):
        rig.until_asked()
        reasons.append(rig.answer(**changes))
    assert [bool(re.search(text, reason)) for text, reason in zip(
        ('0.02 s between rows, policy/info promises 0.04', '8 rows, policy/info promises 16',
         r'shape \(16, 2\)'), reasons, strict=True)] == [True] * 3  # fmt: skip
    assert rig.stats.chunks_rejected == 3
    assert rig.stats.policy_calls == 4
    rig.until_asked()
    assert rig.answer() is None


# ---- two requests in flight ---------------------------------------------------------------------


def two_in_flight() -> tuple[Rig, ActionChunk, ActionChunk]:
    """Return a rig in motion with two requests under way, and an answer to each."""
    rig = Rig(Fixed(Fixed.Config(16)), in_flight=2).started(after_ms=450)
    while rig.stats.policy_calls < 3:  # the first warm answer
        rig.tick()
    rig.ticks(45)
    assert rig.answer(seen=rig.requests[-1].stamp_ns) is None
    answers: list[ActionChunk] = []
    while len(answers) < 2:
        count = len(rig.requests)
        rig.tick()
        if len(rig.requests) > count:
            answers.append(rig.chunk(seen=rig.now))
    return rig, answers[0], answers[1]


def test_two_requests_in_flight_are_answered_in_order() -> None:
    rig, first, second = two_in_flight()
    assert first.observation_stamp_ns < second.observation_stamp_ns
    rig.ticks(10)
    assert rig.executor.receive(first, rig.now) is None
    rig.ticks(5)
    assert rig.executor.receive(second, rig.now) is None
    for chunk in (first, second):
        assert 'answered' in rig.executor.receive(chunk, rig.now)
    rig.ticks(5)
    assert rig.commands[-1].chunk_id == second.id


def test_out_of_order_the_older_answer_is_refused_but_its_delay_counts() -> None:
    rig, first, second = two_in_flight()
    rig.ticks(10)
    assert rig.executor.receive(second, rig.now) is None
    rig.ticks(30)
    before = rig.stats.delay_p95_s
    reason = rig.executor.receive(first, rig.now)
    assert reason == f'superseded: request {second.request_id.seq} was answered first'
    assert rig.stats.delay_p95_s > before
    assert 'answered' in rig.executor.receive(first, rig.now)
    rig.ticks(5)
    assert rig.commands[-1].chunk_id == second.id


def test_an_overtaken_request_still_counts_as_one_in_flight() -> None:
    rig, first, second = two_in_flight()
    rig.ticks(10)
    assert rig.executor.receive(second, rig.now) is None
    sent = len(rig.requests)
    rig.ticks(100)
    assert len(rig.requests) == sent + 1
    rig.executor.receive(first, rig.now)
    rig.ticks(30)
    assert len(rig.requests) == sent + 2


def test_a_stop_drops_both() -> None:
    rig, first, second = two_in_flight()
    rig.executor.cut('surprise: test', rig.now)
    for chunk in (first, second):
        assert 'dropped' in rig.executor.receive(chunk, rig.now)
    assert rig.tick().request.reason == 'surprise: test'


def test_the_age_cap_cuts_the_horizon_whatever_the_strategy_says() -> None:
    spec = PolicySpec('fake', 'fake', 1, EE, 16, 0.04, max_row_age_s=0.45)
    rig = Rig(Fixed(Fixed.Config(16)), spec=spec).started()
    rig.tick()
    assert (rig.decisions[0].chosen, rig.decisions[0].reason) == (11, 'age')  # 11 * 0.04 <= 0.45


def test_the_robot_caps_what_the_policy_allows() -> None:
    spec = PolicySpec('fake', 'fake', 1, EE, 16, 0.04, max_row_age_s=60.0)
    rig = Rig(spec=spec).started()
    rig.tick()
    assert rig.commands[0].max_row_age_s == pytest.approx(1.5)


def test_rows_that_grow_too_old_because_of_slowing_are_cut() -> None:
    spec = PolicySpec('fake', 'fake', 1, EE, 16, 0.04, max_row_age_s=0.7)
    rig = Rig(Fixed(Fixed.Config(16)), spec=spec).started()
    rig.executor.set_speed_scale(0.25)
    rig.ticks(90)
    cut = [d for d in rig.decisions if d.cut]
    assert [(d.reason, d.chosen) for d in cut] == [('age', 5)]
    old = [c for c in rig.commands if c.row >= 0 and c.stamp_ns - c.observation_stamp_ns > 0.7e9]
    assert len({c.row for c in old}) <= 1  # the row under way is finished, no other begins
    assert rig.commands[-1].starved


# ---- refusals -----------------------------------------------------------------------------------


BAD = [
    ({'request_id': Id(6, 1)}, 'session 6, in force is 7'),
    ({'request_id': Id(7, 99)}, 'request 99 was never sent'),
    ({'arm_epoch': 2}, 'arm epoch 2, in force is 3'),
    ({'task_id': 'old'}, "task 'old', in force is 'task'"),
    ({'space_hash': 'beef'}, 'action space'),
    ({'actions': forward(15)}, '15 rows, policy/info promises 16'),
    ({'actions': forward(16)[:, :3]}, r'shape \(16, 3\)'),
    ({'actions': np.zeros((0, 4), np.float32)}, r'shape \(0, 4\)'),
    ({'actions': np.where(np.eye(16, 4) > 0, np.nan, 0).astype(np.float32)}, 'must be finite'),
    ({'dt_s': 0.05}, '0.05 s between rows'),
    ({'dt_s': math.nan}, 'dt nan'),
    ({'observation_stamp_ns': T0 - 11 * MS}, 'before the last stop or start'),
    ({'observation_stamp_ns': T0 + 10**9}, '1.000 s in the future'),
    ({'start_ns': T0 + 10**9}, 'from now'),
    ({'start_ns': T0 - 10**9}, 'after its observation'),
    ({'residual': np.zeros((16, 4), np.float32)}, 'residual comes without a bound'),
    (
        {
            'residual': np.full((16, 4), np.inf, np.float32),
            'residual_bound': np.ones(4, np.float32),
        },
        'residual is not finite',
    ),
    ({'parts': (ChunkPart(0, 16, Id(), T0),)}, 'rows not ready'),
    ({'max_row_age_s': 0.001}, 'old, allowed are 0.001 s|0 rows may run'),
]


@pytest.mark.parametrize(('changes', 'message'), BAD)
def test_a_bad_chunk_is_refused_in_words_and_moves_nothing(changes, message) -> None:
    rig = Rig()
    rig.tick()
    reason = rig.answer(**changes)
    assert reason is not None
    assert re.search(message, reason), reason
    assert all(tick.command is None for tick in rig.ticks(30))
    assert (rig.stats.chunks_rejected, rig.stats.chunks_accepted) == (1, 0)


@pytest.mark.parametrize(('changes', 'message'), BAD[:10])
def test_a_bad_chunk_does_not_disturb_the_one_that_runs(changes, message) -> None:
    rig = Rig().started(after_ms=100)
    rig.until_asked()
    before = rig.x
    rig.answer(**changes)
    rig.tick()
    assert rig.commands[-1].chunk_id == Id(9, 1)
    assert rig.x == pytest.approx(before + 0.005)


def test_an_answer_counts_once() -> None:
    rig = Rig()
    rig.tick()
    chunk = rig.chunk()
    assert rig.executor.receive(chunk, rig.now) is None
    assert 'answered' in rig.executor.receive(chunk, rig.now)


def test_an_older_observation_than_that_of_the_plan_is_refused() -> None:
    rig = Rig().started()
    rig.until_asked()
    assert 'older than that of the plan' in rig.answer(seen=T0 - MS)


def test_chunks_older_than_the_limit_are_refused() -> None:
    rig = Rig(Fixed(Fixed.Config(16)), request_timeout_s=10.0)
    rig.tick()
    rig.ticks(130)
    assert rig.answer(seen=T0) == 'its observation is 1.300 s old, allowed are 1.140 s'


def test_a_chunk_before_any_policy_or_guard_is_refused() -> None:
    rig = Rig(running=False)
    rig.requests.append(Rig().tick().request)
    assert rig.answer() == 'nothing was asked for yet'


# ---- guard, episodes, tasks ---------------------------------------------------------------------


@pytest.mark.parametrize('state', [s for s in ArmState if s is not ArmState.ARMED])
def test_only_armed_runs(state: ArmState) -> None:
    rig = Rig().started()
    rig.ticks(5)
    rig.guard(state)
    assert all(tick.command is tick.request is None for tick in rig.ticks(20))


def test_while_the_guard_moves_the_arm_itself_nothing_is_commanded() -> None:
    rig = Rig().started()
    rig.executor.set_guard(GuardStatus(rig.now, ArmState.ARMED, 3, rig.now, moving=True), rig.now)
    assert rig.tick().command is None


def test_after_a_hold_everything_starts_anew_from_the_measured_pose() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    held = rig.now
    rig.guard(ArmState.HOLD)
    rig.ticks(50)
    rig.measured = HOME + np.array([0.1, 0.1, 0, 0])  # somebody moved the arm meanwhile
    rig.guard(ArmState.ARMED, epoch=4)
    tick = rig.tick()
    assert tick.command is None
    assert (tick.request.arm_epoch, tick.request.not_before_ns) == (4, held)
    assert tick.request.reason == 'guard: armed'
    assert 'before the last stop' in rig.answer(seen=held - 1)
    rig.ticks(15)
    assert rig.answer() is None
    rig.tick()
    assert 0.1 < rig.x < 0.105  # from rest
    rig.ticks(3)
    assert target_of(rig.commands[-1]) == pytest.approx([0.12, 0.1, 0.2, 0.08])


def test_a_missed_stop_is_noticed_by_its_epoch() -> None:
    rig = Rig().started()
    rig.ticks(5)
    rig.guard(ArmState.ARMED, epoch=9)
    tick = rig.tick()
    assert tick.command is None
    assert (tick.request.arm_epoch, tick.request.not_before_ns) == (9, rig.now - 10 * MS)


def test_a_repeated_guard_state_changes_nothing() -> None:
    rig = Rig().started()
    rig.ticks(5)
    rig.guard(ArmState.ARMED)
    assert rig.tick().command is not None


def test_the_end_of_an_episode_is_silent_and_the_next_counts_from_zero() -> None:
    rig = Rig().started()
    rig.ticks(20)
    rig.executor.set_episode(False, '', rig.now)
    assert all(tick.command is tick.request is None for tick in rig.ticks(20))
    last = rig.stats
    assert (last.ticks, last.episode_id, last.since_ns) == (20, 'episode', T0 - 10 * MS)
    assert last.executed_rows == 5
    rig.executor.set_episode(True, 'task 2', rig.now, 'second')
    assert rig.tick().request.task_id == 'task 2'
    assert (rig.stats.ticks, rig.stats.episode_id, rig.stats.policy_calls) == (0, 'second', 1)
    assert len(rig.executor.trace().rows) == 0


def test_no_task_no_motion() -> None:
    rig = Rig(running=False)
    rig.guard(ArmState.ARMED)
    rig.executor.set_episode(True, '', rig.now, 'e')
    assert rig.tick().request is None


def test_a_new_task_within_an_episode_drops_the_plan_but_keeps_holding() -> None:
    rig = Rig().started()
    rig.ticks(10)
    at = rig.x
    rig.executor.set_episode(True, 'other', rig.now, 'episode')
    tick = rig.tick()
    assert tick.command.starved
    assert (tick.request.reason, tick.request.task_id) == ('task', 'other')
    rig.ticks(20)
    assert at < rig.x < at + 0.03
    assert rig.stats.ticks == 31  # still the same episode


def test_without_a_measured_pose_nothing_moves() -> None:
    rig = Rig()
    tick = rig.executor.tick(T0, None, T0)
    assert tick == Tick()


# ---- anchors ------------------------------------------------------------------------------------


def test_commanded_rows_follow_the_commands_not_the_lagging_robot() -> None:
    rig = Rig(Fixed(Fixed.Config(16)))
    rig.frozen = True  # lags by up to 0.08 m, less than 0.1
    rig.started()
    rig.ticks(16)
    assert rig.x == pytest.approx(0.08)
    assert rig.stats.reanchors == 0


def test_a_robot_that_was_kept_back_is_anchored_anew_and_counted() -> None:
    rig = Rig(Fixed(Fixed.Config(16)), reanchor_m=0.09)
    rig.frozen = True  # at x = 0
    rig.started()
    rig.ticks(30)
    xs = [target_of(command)[0] for command in rig.commands]
    assert max(xs) == pytest.approx(0.1)
    assert xs[20] == pytest.approx(0.005)  # the row after it counts from the measured 0
    assert velocity_of(rig.commands[20])[0] == pytest.approx(0.5)  # not backwards
    assert rig.stats.reanchors == 1


def arm_space(reference: Reference) -> ActionSpace:
    group = ActionGroup(
        'arm',
        0,
        1,
        Kind.JOINT_DELTA,
        reference=reference,
        names=('j',),
        unit='rad',
        scale=(1.0,),
        offset=(0.0,),
    )
    one = (1.0,)
    return spaces.make(ActionSpace((group,), (-1.0,), (1.0,), one, (10.0,), (1e3,), (False,)))


def test_measured_rows_count_from_where_the_robot_is_when_they_begin() -> None:
    rig = Rig(Fixed(Fixed.Config(16)), arm_space(Reference.MEASURED), np.array([1.0]))
    rig.frozen = True
    rig.started(np.full((16, 1), 0.02))
    rig.ticks(12)
    assert rig.x == pytest.approx(1.02)  # each row asks for 0.02 ahead of 1.0 again


def test_a_robot_that_lags_evenly_gets_an_even_motion() -> None:
    rig = Rig(Fixed(Fixed.Config(16)), arm_space(Reference.MEASURED), np.array([1.0]))
    rig.started(np.full((16, 1), 0.03))
    for _ in range(48):
        rig.tick()
        rig.measured = rig.measured - 0.01
    speeds = np.array([velocity_of(command)[0] for command in rig.commands])
    assert speeds[7:] == pytest.approx(0.02 / 0.04)


@pytest.mark.parametrize('reference', [r for r in Reference if r is not Reference.NONE])
def test_orientations_stay_of_unit_length_and_positions_on_the_curve(reference) -> None:
    one = (1.0,) * 6
    arm = ActionGroup(
        'arm',
        0,
        6,
        Kind.EE_DELTA,
        'world',
        reference,
        Rotation.VECTOR,
        scale=one,
        offset=(0.0,) * 6,
    )
    limits = ((-1.0,) * 6, one, one, (10.0,) * 6, (1e3,) * 6, (False,) * 6)
    space = spaces.make(ActionSpace((arm,), *limits))
    rig = Rig(Fixed(Fixed.Config(8)), space, np.array([0, 0, 0.2, 0, 0, 0, 1.0]))
    rng = np.random.default_rng(3)
    rig.started(rng.uniform(-0.03, 0.03, (16, 6)), after_ms=130)
    rig.until_asked()
    rig.tick(15)
    assert rig.answer(rng.uniform(-0.03, 0.03, (16, 6)), seen=rig.now - 70 * MS) is None
    for _ in range(200):
        rig.tick(1)
    targets = np.array([target_of(command) for command in rig.commands])
    speeds = np.array([velocity_of(command) for command in rig.commands])
    assert np.linalg.norm(targets[:, 3:], axis=1) == pytest.approx(1.0)
    assert np.isfinite(speeds).all()
    assert rig.stats.merges == 1
    means = (speeds[-200:] + speeds[-201:-1])[:, :3] / 2
    assert np.diff(targets[-201:, :3], axis=0) == pytest.approx(0.001 * means, abs=1e-5)


def test_chunk_start_rows_all_count_from_the_pose_at_the_observation() -> None:
    rig = Rig(Fixed(Fixed.Config(8)), arm_space(Reference.CHUNK_START), np.array([1.0]))
    ramp = np.linspace(0.01, 0.16, 16)[:, None]
    rig.started(ramp, after_ms=200)
    rig.ticks(16)
    assert rig.x == pytest.approx(1.04)
    seen, at = rig.now, float(rig.measured[0])
    rig.frozen = True
    rig.ticks(8)  # two rows
    assert rig.answer(ramp, seen=seen) is None
    rig.ticks(4)
    assert rig.commands[-1].row == 2
    assert rig.x == pytest.approx(at + 0.03, abs=0.003)  # the pose then, not now


# ---- merges of absolute plans -------------------------------------------------------------------


def joint_space(velocity: float = 2.0, kind: Kind = Kind.JOINT_POSITION) -> ActionSpace:
    arm = ActionGroup('arm', 0, 1, kind, names=('j',), unit='rad', scale=(1.0,), offset=(0.0,))
    grip = ActionGroup('gripper', 1, 2, Kind.GRIPPER, scale=(1.0,), offset=(0.0,))
    return spaces.make(
        ActionSpace(
            (arm, grip),
            (-9.0,) * 2,
            (9.0,) * 2,
            (velocity,) * 2,
            (10.0,) * 2,
            (1e3,) * 2,
            (False,) * 2,
        )
    )


def merged(blend_rows: int) -> tuple[Rig, np.ndarray]:
    """Run a plan that stays at 0, then one at 0.1 with the gripper closed."""
    rig = Rig(
        Fixed(Fixed.Config(8)),
        joint_space(),
        np.array([0.0, 1.0]),
        merge='linear',
        blend_rows=blend_rows,
    )
    rig.started(np.tile([0.0, 1.0], (16, 1)))
    rig.until_asked()
    at = len(rig.commands)
    rig.answer(np.tile([0.1, 0.0], (16, 1)))
    rig.ticks(24)
    return rig, np.array([target_of(c) for c in rig.commands[at:]])


def test_absolute_plans_fade_over_rows_but_the_gripper_does_not() -> None:
    rig, targets = merged(4)
    assert targets[3::4, 0] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])
    assert targets[3, 1] == pytest.approx(0.0)
    assert np.diff(targets[:, 0]).min() >= -1e-9
    speeds = [velocity_of(command)[0] for command in rig.commands[-24:]]
    assert speeds[3::4] == pytest.approx([0.5, 0.5, 0.5, 0.5, 0, 0], abs=1e-6)  # no stop and go
    stats = rig.stats
    assert stats.merges == 1
    assert stats.largest_merge_step == pytest.approx(0.02 / (2.0 * 0.04))
    assert stats.largest_merge_jerk == pytest.approx(0.02 / 0.04 / 0.04**2 / 1e3)


def test_without_fading_the_step_is_what_the_plans_differ_by() -> None:
    rig, targets = merged(0)
    assert targets[3::4, 0] == pytest.approx([0.1] * 6)
    assert rig.stats.largest_merge_step == pytest.approx(0.1 / (2.0 * 0.04))


def pose_space(rotation: Rotation) -> ActionSpace:
    size = 6 if rotation is Rotation.VECTOR else 7
    arm = ActionGroup(
        'arm', 0, size, Kind.EE_POSE, 'world', rotation=rotation, scale=(1.0,) * size,
        offset=(0.0,) * size,
    )  # fmt: skip
    limits = [(value,) * size for value in (-9.0, 9.0, 1.0, 10.0, 1e3)]
    return spaces.make(ActionSpace((arm,), *limits, (False,) * size))


@pytest.mark.parametrize('merge', ['offset', 'linear', 'exponential'])
@pytest.mark.parametrize('rotation', [Rotation.VECTOR, Rotation.QUATERNION])
def test_absolute_poses_are_merged_along_the_shorter_turn(rotation: Rotation, merge: str) -> None:
    """A plan at rest, then one that is 0.1 m and 0.2 rad away; q and -q are the same."""

    def pose(x: float, turn: float, sign: float) -> list[float]:
        if rotation is Rotation.VECTOR:
            return [x, 0.0, 0.2, 0.0, 0.0, turn]
        return [x, 0.0, 0.2, 0.0, 0.0, sign * np.sin(turn / 2), sign * np.cos(turn / 2)]

    start = np.array([0, 0, 0.2, 0, 0, 0, 1.0])
    rig = Rig(Fixed(Fixed.Config(16)), pose_space(rotation), start, merge=merge, blend_rows=4)
    rig.started(np.tile(pose(0.0, 0.0, 1.0), (16, 1)), after_ms=200)
    rig.until_asked()
    assert rig.answer(np.tile(pose(0.1, 0.2, -1.0), (16, 1))) is None
    rig.ticks(44)
    targets = np.array([target_of(command) for command in rig.commands])
    assert np.linalg.norm(targets[:, 3:], axis=1) == pytest.approx(1.0)
    turned = 2 * np.arctan2(targets[:, 5], targets[:, 6])
    assert np.diff(turned).min() >= -1e-9
    assert np.diff(turned).max() < 0.03
    assert np.diff(targets[:, 0]).max() < 0.015
    assert turned[-1] == pytest.approx(0.2)
    if merge == 'offset':  # half of 1 rad/s: ten rows
        assert np.diff(turned[-44::4]).max() == pytest.approx(0.02, abs=1e-6)


def test_an_orientation_of_no_length_is_refused() -> None:
    rig = Rig(Fixed(Fixed.Config(8)), pose_space(Rotation.QUATERNION), np.eye(7)[6])
    rig.tick()
    assert "row 0 of 'arm' has a quaternion of length 0" in rig.answer(np.zeros((16, 7)))


def test_what_can_not_be_undone_is_not_blended() -> None:
    space = joint_space()
    space = spaces.make(replace(space, irreversible=(True, False), hash=''))
    rig = Rig(Fixed(Fixed.Config(8)), space, np.array([0.0, 1.0]))
    rig.started(np.tile([0.0, 1.0], (16, 1)))
    rig.until_asked()
    rig.answer(np.tile([0.1, 0.0], (16, 1)))
    rig.ticks(4)
    assert rig.x == pytest.approx(0.1)


def test_an_offset_begins_a_plan_where_the_old_one_is_and_fades() -> None:
    rig = Rig(Fixed(Fixed.Config(8)), joint_space(), np.array([0.0, 1.0]), blend_rows=4)
    rig.started(np.tile([0.0, 1.0], (16, 1)))
    rig.until_asked()
    at = len(rig.commands)
    rig.answer(np.tile([0.1, 0.0], (16, 1)))
    rig.ticks(24)
    targets = np.array([target_of(command) for command in rig.commands[at:]])
    assert targets[3::4, 0] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])
    assert targets[3, 1] == pytest.approx(0.0)  # the gripper at once
    assert rig.stats.merges == 1


def test_a_large_offset_fades_no_faster_than_it_may_be_travelled() -> None:
    rig = Rig(
        Fixed(Fixed.Config(16)), joint_space(), np.array([0.0, 1.0]), blend_rows=4, blend_speed=0.5
    )
    rig.started(np.tile([0.8, 1.0], (16, 1)))  # far from where the arm is
    rig.ticks(60)
    xs = np.array([target_of(command)[0] for command in rig.commands])
    assert np.diff(xs[3::4]) == pytest.approx(0.5 * 2.0 * 0.04)  # half of 2 rad/s


def test_the_prefix_of_a_request_is_what_the_merge_makes_of_the_rows() -> None:
    rig = Rig(Fixed(Fixed.Config(8)), joint_space(), np.array([0.0, 1.0]), blend_rows=8)
    rig.started(np.tile([0.0, 1.0], (16, 1)), after_ms=120)
    rig.until_asked()
    rig.ticks(12)
    rig.answer(np.tile([0.09, 0.0], (16, 1)))
    rig.until_asked()
    request = rig.requests[-1]
    row, chunk = rig.commands[-1].row, rig.commands[-1].chunk_id
    ahead = [float(row_target[0]) for row_target in request.prefix[:2]]
    rig.ticks(8)
    rows = [command for command in rig.commands if command.chunk_id == chunk]
    reached = [target_of(command)[0] for command in rows if command.row in (row, row + 1)]
    assert ahead[0] == pytest.approx(reached[3], abs=1e-6)
    assert ahead[1] == pytest.approx(reached[7], abs=1e-6)


def test_velocity_commands_end_at_zero_when_starved() -> None:
    space = joint_space(kind=Kind.JOINT_VELOCITY)
    for starvation in ('decelerate', 'hold'):
        rig = Rig(Fixed(Fixed.Config(8)), space, np.zeros(2), starvation=starvation)
        rig.started(np.tile([1.5, 0.0], (16, 1)))
        rig.ticks(32)
        assert rig.x == pytest.approx(1.5)
        rig.tick()
        assert rig.x == pytest.approx(1.5 - 0.5 * 10 * 0.01 if starvation == 'decelerate' else 0)
        rig.ticks(40)
        assert rig.x == 0.0


# ---- hooks --------------------------------------------------------------------------------------


class Hooked(Fixed):
    """Averages live chunks, asks at every row, and shifts rows by an observed offset."""

    def __init__(self, *hooks: str) -> None:
        super().__init__(Fixed.Config(8))
        self.hooks, self.seen = hooks, []

    def offers(self, hook: str) -> bool:
        return hook in self.hooks

    def blend(self, predictions):
        self.seen.append(len(predictions))
        return predictions.mean(axis=0)

    def wants_chunk(self, state) -> bool:
        return state.remaining_rows < 6

    def correct(self, row, observation):
        return row + np.array([observation.state[0], 0, 0, 0], np.float32)


def test_a_blending_strategy_sees_what_all_live_chunks_say_for_the_row() -> None:
    strategy = Hooked('blend', 'wants_chunk')
    rig = Rig(strategy).started(forward(x=0.4))
    rig.until_asked()
    assert len(rig.commands) == 9  # less than 6 of 8 rows were left
    rig.answer(forward(x=0.8))
    before = rig.x
    rig.ticks(4)
    assert strategy.seen == [1, 1, 1, 2]
    assert rig.x == pytest.approx(before + 0.05 * 0.6)


def test_a_corrector_sees_the_newest_observation_before_each_row() -> None:
    rig = Rig(Hooked('correct')).started(forward(x=0.0))
    rig.ticks(4)
    assert rig.x == 0.0  # nothing observed yet
    seen = Observation(
        Id(1, 1), rig.now, rig.now, ('dx',), np.array([0.2], np.float32), health=Health.OK
    )
    rig.executor.observe(seen, rig.now)
    rig.ticks(4)
    assert rig.x == pytest.approx(0.01)
    assert velocity_of(rig.commands[-1])[0] == pytest.approx(0.25)  # and goes on so


def test_an_interrupt_cuts_the_horizon_and_asks_at_once() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    rig.ticks(10)
    cut_at = rig.now
    assert rig.executor.cut('surprise: object moved', cut_at)
    assert not rig.executor.cut('surprise: object moved', cut_at)  # once per chunk
    tick = rig.tick()
    assert tick.request.reason == 'surprise: object moved'
    assert tick.request.not_before_ns == cut_at
    cut = next(d for d in [tick.decision, *(t.decision for t in rig.ticks(2))] if d and d.cut)
    # 100 ms ran, an answer takes 60 ms: four rows
    assert (cut.reason, cut.chosen) == ('surprise: object moved', 4)
    rig.ticks(4)
    assert [command.starved for command in rig.commands[-2:]] == [False, True]
    assert rig.stats.cuts == 1
    assert rig.answer() is None
    rig.tick()
    assert rig.commands[-1].row == 0


def test_a_cut_refuses_the_answer_that_was_under_way() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=200)
    rig.until_asked()
    stale = rig.chunk()
    rig.executor.cut('surprise: pushed', rig.now)
    assert 'dropped' in rig.executor.receive(stale, rig.now)
    rig.tick()
    assert rig.requests[-1].reason == 'surprise: pushed'
    assert rig.answer() is None


def test_an_observation_that_shows_the_surprise_may_answer() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    rig.executor.cut('surprise: object moved', rig.now, rig.now - 15 * MS)
    assert rig.tick().request.not_before_ns == rig.now - 25 * MS


def replan(rig: Rig, epoch: int = 3, **changes) -> bool:
    armed = ArmState.ARMED
    event = GuardEvent(rig.now, epoch, 'replan', armed, armed, Reaction.REPLAN, **changes)
    return rig.executor.replan(event, rig.now)


def test_the_guards_wish_for_another_chunk_cuts_as_a_surprise_does() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    rig.ticks(10)
    assert not replan(rig, epoch=2, check='freeze', reason='of another epoch')
    asked_ns = rig.now
    assert replan(rig, check='freeze', reason='no motion for 3.0 s')
    tick = rig.tick()
    assert tick.request.reason == 'guard: freeze: no motion for 3.0 s'
    assert tick.request.not_before_ns == asked_ns
    assert rig.answer() is None
    rig.ticks(6)
    cut = next(decision for decision in rig.decisions if decision.cut)
    assert (cut.reason, cut.chosen) == ('guard: freeze: no motion for 3.0 s', 4)
    assert rig.executor.interrupts == (cut.reason,)


def test_no_more_rows_of_a_chunk_run_than_the_guard_lets() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(8)
    bad = rig.commands[-1].chunk_id
    assert replan(rig, check='chunk_verdict', reason='row 9 hits', chunk_id=bad, keep_rows=6)
    assert rig.tick().request.reason == 'guard: chunk_verdict: row 9 hits'
    rig.ticks(40)
    assert max(command.row for command in rig.commands) == 5
    assert rig.commands[-1].starved


def test_a_wish_told_again_does_not_supersede_the_answer_to_the_first() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    bad = rig.commands[-1].chunk_id
    told = {'check': 'chunk_verdict', 'reason': 'row 1 hits', 'chunk_id': bad, 'keep_rows': 1}
    assert replan(rig, **told)
    assert rig.tick().request is not None
    assert not replan(rig, **told)
    assert rig.tick().request is None
    assert rig.answer() is None


@pytest.mark.parametrize('told_first', [True, False])
def test_a_chunk_that_waits_is_dropped_and_the_one_before_goes_on(told_first: bool) -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=60)
    good = rig.tick().command.chunk_id
    rig.until_asked()
    bad = rig.chunk()
    told = {'check': 'chunk_verdict', 'reason': 'row 0 hits', 'chunk_id': bad.id, 'keep_rows': 0}
    if told_first:
        assert not replan(rig, **told)
    assert rig.executor.receive(bad, rig.now) is None
    if not told_first:
        assert replan(rig, **told)
    rig.ticks(40)
    assert rig.requests[-1].reason == 'guard: chunk_verdict: row 0 hits'
    assert {command.chunk_id for command in rig.commands if not command.starved} == {good}
    assert max(command.row for command in rig.commands) == 15
    decided = [decision for decision in rig.decisions if decision.chunk_id == bad.id]
    assert [(decision.chosen, decision.cut) for decision in decided] == [(16, False), (0, True)]
    assert rig.answer() is None  # another one, later
    rig.ticks(3)
    assert rig.commands[-1].row == 0


@pytest.mark.parametrize('waits', [True, False])
def test_a_row_that_may_not_end_is_left_for_another_chunk(waits: bool) -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started()
    rig.ticks(10)
    bad = rig.commands[-1].chunk_id
    replan(rig, check='chunk_verdict', reason='row 3 hits', chunk_id=bad, keep_rows=3)
    rig.executor.set_speed_scale(0.0)  # the guard stops the arm within a row
    if waits:
        rig.tick()
        assert rig.answer() is None
    stood = target_of(rig.commands[-1]).copy()
    rig.ticks(20)
    last = rig.commands[-1]
    assert last.starved is not waits
    assert last.chunk_id != bad
    assert target_of(last) == pytest.approx(stood)
    if not waits:
        assert rig.answer() is None
    rig.executor.set_speed_scale(1.0)
    rig.ticks(8)
    assert rig.x > stood[0] + 1e-3


class Remembers(Fixed):
    """Notes what the plan in force says for each new chunk, and averages live chunks."""

    def __init__(self) -> None:
        super().__init__(Fixed.Config(8))
        self.previous, self.seen = [], []

    def horizon(self, chunk, state):
        self.previous.append(state.previous)
        return super().horizon(chunk, state)

    def blend(self, predictions):
        self.seen.append(len(predictions))
        return predictions.mean(axis=0)


def test_what_was_planned_before_a_cut_counts_no_more() -> None:
    rig = Rig(Remembers()).started(after_ms=60)
    rig.until_asked()
    assert rig.answer() is None
    rig.until_asked()
    assert rig.strategy.previous[-1] is not None
    assert rig.strategy.seen[-1] == 2
    assert len(rig.requests[-1].prefix) > 3
    rig.executor.cut('surprise: object moved', rig.now)
    rig.tick()
    assert len(rig.requests[-1].prefix) <= 3  # what runs until an answer can be there
    assert rig.answer() is None
    rig.ticks(8)
    assert rig.strategy.previous[-1] is None
    assert rig.strategy.seen[-1] == 1


def test_without_a_plan_there_is_nothing_to_cut() -> None:
    rig = Rig()
    assert not rig.executor.cut('surprise', rig.now)


def test_a_learners_residual_is_added_within_its_bound() -> None:
    residual = np.tile(np.array([0.3, -0.05, 0, 0], np.float32), (16, 1))
    bound = np.array([0.1, 0.1, 0.1, 0.0], np.float32)
    rig = Rig().started(residual=residual, residual_bound=bound)
    rig.ticks(4)
    assert target_of(rig.commands[-1]) == pytest.approx([0.025, -0.0025, 0.2, 0.08])
    assert rig.commands[-1].source == 'residual'


def test_only_rows_that_are_ready_run() -> None:
    parts = (
        ChunkPart(0, 4, Id(), T0, executable_rows=4),
        ChunkPart(4, 12, Id(), T0, executable_rows=1),
    )
    rig = Rig().started(parts=parts)
    rig.tick()
    assert (rig.decisions[0].chosen, rig.decisions[0].reason) == (5, 'rows not ready')


# ---- what is told -------------------------------------------------------------------------------


def test_a_request_carries_what_will_run_before_its_answer() -> None:
    rig = Rig(Fixed(Fixed.Config(16))).started(after_ms=50)
    rig.until_asked()
    request = rig.requests[-1]
    row = rig.commands[-1].row
    assert request.delay_s == pytest.approx(0.05)  # the first answer's
    assert len(request.prefix) == 16 - row
    assert request.prefix[:, 0] == pytest.approx(0.02 * np.arange(row + 1, 17))
    assert request.prefix_velocity[:, 0] == pytest.approx(0.5)
    assert request.prefix_start_ns == rig.commands[-1].row_ns
    assert request.prefix_dt_s == 0.04
    assert request.committed_rows == 2  # the one under way, and one that begins within 50 ms
    assert 0 <= request.start_ns - (request.stamp_ns + 50 * MS) <= 40 * MS


def test_every_row_of_every_chunk_is_accounted_for() -> None:
    rig = Rig(Fixed(Fixed.Config(8)))
    run_with_delay(rig, 70, 5)
    rig.executor.set_episode(False, '', rig.now)
    stats = rig.stats
    assert stats.executed_rows + stats.discarded_rows + stats.late_rows == (
        16 * stats.chunks_accepted
    )
    moved = np.sum([not c.starved for c in rig.commands]) / 4
    assert stats.executed_rows == pytest.approx(moved, rel=0.03)


def test_the_trace_is_what_was_commanded_and_bounded() -> None:
    strategy = Upcycling(Upcycling.Config(4, ratio=2.0, min_pool=1))
    rig = Rig(strategy, trace_ticks=200)
    for _ in range(60):
        rig.until_asked()
        rig.answer()
    trace = rig.executor.trace()
    assert len(trace.now_ns) == len(trace.targets) == 200
    assert trace.targets == pytest.approx(np.array([target_of(c) for c in rig.commands[:200]]))
    assert list(trace.rows) == [c.row for c in rig.commands[:200]]
    assert (trace.extended == (trace.rows >= 4)).all()
    assert trace.extended.any()
    assert set(np.diff(trace.chunks)) == {0, 1}
    assert trace.decisions[0].reason == 'calibrating'
    with pytest.raises(InvalidDataError, match='no policy'):
        Executor(strategy).trace()


def test_ages_and_delays_are_told() -> None:
    rig = Rig(Fixed(Fixed.Config(16)))
    run_with_delay(rig, 100, 10)
    stats = rig.stats
    assert stats.delay_p50_s == pytest.approx(0.1)
    assert 0.2 < stats.observation_age_p50_s < stats.observation_age_p99_s < 0.7
    assert stats.base_horizon == 16
    assert stats.strategy == 'fixed'
    assert stats.session == 7


def test_a_policy_that_does_not_fit_is_refused_and_not_asked() -> None:
    rig = Rig(Fixed(Fixed.Config(8)))
    with pytest.raises(ConfigError, match='base horizon 8 is longer'):
        rig.executor.configure(replace(rig.spec, horizon=4), 6)
    assert rig.tick().request is None


def test_a_policy_with_another_space_starts_afresh() -> None:
    rig = Rig().started()
    rig.ticks(5)
    rig.spec = PolicySpec('fake', 'joints', 1, joint_space(), 16, 0.04)
    rig.executor.configure(rig.spec, 6)
    rig.measured = np.array([0.5, 1.0])
    assert rig.tick().command is None
    assert rig.answer(np.tile([0.5, 1.0], (16, 1))) is None
    rig.tick()
    assert target_of(rig.commands[-1]) == pytest.approx([0.5, 1.0])


def test_what_is_held_stays_held_when_execution_starts_over() -> None:
    """Fingers on a 4 cm object, told 0: the first command after a hold must not say 4 cm."""
    holding = np.array([0.0, 0.0, 0.2, 0.04])
    rig = Rig(start=holding)
    rig.frozen = True
    rig.started(forward(gripper=-1.0))
    rig.ticks(10)
    rig.guard(ArmState.HOLD)
    rig.ticks(5)
    rig.guard(ArmState.ARMED, epoch=4)
    rig.tick()
    count = len(rig.commands)
    assert rig.answer(forward(gripper=-1.0)) is None
    rig.ticks(10)
    widths = [target_of(command)[3] for command in rig.commands[count:]]
    assert widths
    assert max(widths) == pytest.approx(0.0, abs=1e-9)
