"""Chunks that arrive in parts: rows run as soon as they are ready, and better ones take over."""

from collections.abc import Iterator
from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.auto import Auto
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ArmState,
    ChunkPart,
    ChunkRequest,
    Command,
    GuardEvent,
    GuardStatus,
    HorizonDecision,
    Id,
    Kind,
    Observation,
    PolicySpec,
    Reaction,
)
import numpy as np
import pytest

MS = 1_000_000
T0 = 1_000_000_000_000
H, GROUP = 16, 4


def space_of() -> ActionSpace:
    arm = ActionGroup(
        'arm', 0, 1, Kind.JOINT_POSITION, names=('j',), unit='rad', scale=(1.0,), offset=(0.0,)
    )
    limits = [(value,) for value in (-9.0, 9.0, 2.0, 10.0, 1e3)]
    return spaces.make(ActionSpace((arm,), *limits, (False,)))


class Staircase(Policy):
    """
    A small policy that streams: row i is 0.01 (i + 1); four rows are refined with each message.

    A coarse row is off by ``coarse``. Group j is ready with message j; all are sent each time.
    """

    def __init__(self, coarse: float = 0.0) -> None:
        self.spec = PolicySpec('staircase', 'staircase', 1, space_of(), H, 0.04)
        self.coarse = coarse

    def act(self, observation: Observation, request: ChunkRequest) -> Iterator[ActionChunk]:
        fine = 0.01 * np.arange(1, H + 1, dtype=np.float32)[:, None]
        whole = self.chunk(observation, request, fine)
        for step in range(H // GROUP):
            ready = GROUP * (step + 1)
            rows = fine.copy()
            rows[ready:] += self.coarse
            parts = tuple(
                ChunkPart(
                    first,
                    GROUP,
                    observation.id,
                    observation.stamp_ns,
                    revision=step + 1,
                    final=first < ready,
                    executable_rows=GROUP if first < ready else 0,
                    noise_level=0.0 if first < ready else 0.5,
                )
                for first in range(0, H, GROUP)
            )
            features = np.full((H, 2), float(step), np.float32)
            yield replace(whole, actions=rows, parts=parts, expected_features=features)


class Rig:
    """An executor on a robot that follows; the test hands over what the policy yields."""

    def __init__(self, strategy=None, coarse: float = 0.0, **config) -> None:
        self.policy = Staircase(coarse)
        strategy = strategy or Fixed(Fixed.Config(H))
        self.executor = Executor(strategy, Executor.Config(**config), session=7)
        self.executor.configure(self.policy.spec, 1)
        self.now, self.measured = T0, np.zeros(1)
        self.commands: list[Command] = []
        self.decisions: list[HorizonDecision] = []
        self.requests: list[ChunkRequest] = []
        self.executor.set_guard(GuardStatus(T0, ArmState.ARMED, 1, T0), T0)
        self.executor.set_episode(True, 't', T0, 'e')

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now += 10 * MS
            tick = self.executor.tick(self.now, self.measured, self.now)
            self.decisions += [tick.decision] if tick.decision else []
            self.requests += [tick.request] if tick.request else []
            if tick.command is not None:
                self.commands.append(tick.command)
                self.measured = tick.command.groups[0].values

    def stream(self) -> list[ActionChunk]:
        """Let the policy answer the newest request from an observation of now."""
        seen = Observation(Id(8, len(self.requests)), self.now, self.now, (), np.zeros(0))
        return list(self.policy.act(seen, self.requests[-1]))

    def receive(self, chunk: ActionChunk) -> str | None:
        return self.executor.receive(chunk, self.now)

    @property
    def stats(self):
        return self.executor.stats()

    @property
    def path(self) -> np.ndarray:
        return np.array([command.groups[0].values[0] for command in self.commands])


def test_rows_run_when_they_are_ready_and_it_is_one_chunk_all_the_time() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    for part in parts:
        assert rig.receive(part) is None
        rig.ticks(10)  # two and a half of its four rows
    rig.ticks(24)
    assert [decision.chosen for decision in rig.decisions] == [4, 8, 12, 16]
    assert [decision.reason for decision in rig.decisions] == [*['rows not ready'] * 3, 'fixed']
    assert rig.path[3::4] == pytest.approx(0.01 * np.arange(1, 17))
    assert [command.row for command in rig.commands[::4]] == list(range(16))
    stats = rig.stats
    assert (stats.chunks_accepted, stats.merges, stats.chunks_rejected) == (1, 0, 0)
    assert (stats.starved_ticks, stats.executed_rows, stats.mean_horizon) == (0, 16, 16)
    assert {command.chunk_id for command in rig.commands} == {parts[0].id}


def test_the_policy_is_not_asked_again_while_rows_are_still_coming() -> None:
    rig = Rig(request_timeout_s=0.5)
    rig.ticks(1)
    for part in rig.stream()[:-1]:
        assert rig.receive(part) is None
        rig.ticks(11)
    assert len(rig.requests) == 1
    rig.ticks(45)  # the rest never comes
    assert (len(rig.requests), rig.stats.timeouts) == (2, 1)


def test_the_delay_is_that_of_the_first_rows() -> None:
    rig = Rig()
    for _ in range(3):
        count = len(rig.requests)
        while len(rig.requests) == count:
            rig.ticks(1)
        parts = rig.stream()
        for part in parts:
            rig.ticks(5)
            assert rig.receive(part) is None
    assert rig.stats.delay_p50_s == pytest.approx(0.05)


@pytest.mark.parametrize('after_ticks', [2, 40], ids=['while it runs', 'after its rows ran out'])
def test_rows_that_the_guard_withdrew_do_not_come_back_with_later_parts(after_ticks: int) -> None:
    rig = Rig()
    rig.ticks(1)
    parts = [replace(part, id=Id(9, 1 + i)) for i, part in enumerate(rig.stream())]
    assert rig.receive(parts[0]) is None
    rig.ticks(after_ticks)
    armed = ArmState.ARMED
    event = GuardEvent(
        rig.now, 1, 'replan', armed, armed, Reaction.REPLAN, check='chunk_verdict', reason='bad',
        chunk_id=parts[0].id, keep_rows=6,
    )  # fmt: skip
    assert not rig.executor.replan(event, rig.now), 'no more than four rows are there yet'
    for part in parts[1:]:
        assert rig.receive(part) is None
        rig.ticks(2)
    rig.ticks(60)
    assert max(command.row for command in rig.commands) == 5
    assert rig.decisions[-1].reason == 'guard: rows were withdrawn'


def test_rows_that_the_guard_withdrew_are_no_tail_to_run_while_an_answer_is_late() -> None:
    rig = Rig(Fixed(Fixed.Config(4)), starvation='late')
    rig.ticks(1)
    whole = rig.stream()[-1]
    assert rig.receive(whole) is None
    rig.ticks(2)
    armed = ArmState.ARMED
    event = GuardEvent(
        rig.now, 1, 'replan', armed, armed, Reaction.REPLAN, chunk_id=whole.id, keep_rows=7
    )
    rig.executor.replan(event, rig.now)
    rig.ticks(60)
    assert max(command.row for command in rig.commands) == 6


def test_better_rows_take_the_place_of_those_that_have_not_started_without_a_jump() -> None:
    """All may run at once; the last three groups are off by 0.1 until they are refined."""
    rig = Rig(coarse=0.1, blend_rows=4)
    rig.ticks(1)
    parts = [
        replace(part, parts=tuple(replace(p, executable_rows=GROUP) for p in part.parts))
        for part in rig.stream()
    ]
    assert rig.receive(parts[0]) is None
    rig.ticks(22)
    steps = np.abs(np.diff(rig.path))
    assert steps.max() > 0.02  # into the coarse rows: as the policy said
    at = len(rig.commands)
    assert rig.receive(parts[3]) is None
    rig.ticks(42)
    row_steps = np.diff(rig.path[at - 1 :: 4])
    assert np.abs(row_steps).max() <= 0.1 / 5 + 0.01 + 1e-6
    assert rig.path[-1] == pytest.approx(0.16, abs=0.005)
    assert rig.stats.merges == 0


@pytest.mark.parametrize('shape', ['linear', 'exponential'])
def test_the_other_merge_shapes_do_not_jump_either(shape: str) -> None:
    rig = Rig(coarse=0.1, blend_rows=4, merge=shape)
    rig.ticks(1)
    parts = [
        replace(part, parts=tuple(replace(p, executable_rows=GROUP) for p in part.parts))
        for part in rig.stream()
    ]
    rig.receive(parts[0])
    rig.ticks(22)
    at = len(rig.commands)
    assert rig.receive(parts[3]) is None
    rig.ticks(40)
    assert np.abs(np.diff(rig.path[at - 1 :: 4])).max() < 0.05
    assert rig.path[-1] == pytest.approx(0.16, abs=0.02)


def test_a_row_under_way_and_rows_that_ran_stay_as_they_are() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    rig.receive(parts[0])
    rig.ticks(6)
    wild = replace(parts[1], actions=parts[1].actions + np.where(np.arange(H) < 2, 3, 0)[:, None])
    assert rig.receive(wild) is None
    rig.ticks(20)
    assert np.abs(np.diff(rig.path)).max() < 0.01


def test_parts_may_carry_only_their_rows() -> None:
    rig = Rig()
    rig.ticks(1)
    for part, first in zip(rig.stream(), range(0, H, GROUP), strict=True):
        rows = np.zeros_like(part.actions)
        rows[first : first + GROUP] = part.actions[first : first + GROUP]
        own = replace(
            part,
            actions=rows,
            parts=(ChunkPart(first, GROUP, Id(8, 1), rig.now, 1, first == 12, GROUP),),
        )
        if first == 0:  # more is to come
            own = replace(own, parts=(replace(own.parts[0], final=False),))
        assert rig.receive(own) is None, first
        rig.ticks(10)
    rig.ticks(24)
    assert rig.path[3::4] == pytest.approx(0.01 * np.arange(1, 17))


def test_features_that_are_expected_are_replaced_row_by_row() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    rig.receive(parts[0])
    only = replace(parts[1], parts=(ChunkPart(4, 4, Id(8, 1), T0, 2, False, 4),))
    assert rig.receive(only) is None
    rig.ticks(1)
    plan = rig.executor._queue.last
    assert plan is not None
    assert plan.chunk.expected_features[:, 0].tolist() == [0] * 4 + [1] * 4 + [0] * 8


def test_what_is_not_newer_is_refused_and_changes_nothing() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    rig.receive(parts[1])
    rig.ticks(2)
    for stale in (parts[1], parts[0]):
        assert 'nothing in it is new' in rig.receive(stale)
    late = replace(parts[2], start_ns=parts[2].start_ns + 100 * MS)
    assert 'starts 0.100 s after its first part' in rig.receive(late)
    bad = replace(parts[2], actions=parts[2].actions * np.nan)
    assert 'must be finite' in rig.receive(bad)
    rig.ticks(4)
    assert rig.commands[-1].chunk_id == parts[0].id
    assert rig.stats.chunks_rejected == 4


def test_a_part_that_does_not_fit_is_refused() -> None:
    rig = Rig()
    rig.ticks(1)
    chunk = replace(rig.stream()[0], parts=(ChunkPart(12, 8, Id(8, 1), T0, 1, True, 8),))
    assert 'its part of 8 rows from row 12 on' in rig.receive(chunk)


def test_rows_that_come_after_the_others_have_run_go_on_where_it_stopped() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    rig.receive(parts[0])
    rig.ticks(40)  # four rows take 16
    assert rig.commands[-1].starved
    assert rig.receive(parts[3]) is None
    rig.ticks(48)
    assert rig.path[-1] == pytest.approx(0.16, abs=1e-3)
    rows = [command.row for command in rig.commands if command.row >= 0]
    assert rows == sorted(rows)
    rig.executor.set_episode(False, '', rig.now)
    stats = rig.stats
    assert (stats.chunks_accepted, stats.executed_rows) == (1, 16)
    assert stats.executed_rows + stats.late_rows + stats.discarded_rows == H


def test_later_rows_that_rest_on_a_newer_observation_may_run_longer() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    old = [replace(part, max_row_age_s=0.4) for part in parts]
    rig.receive(old[0])
    rig.ticks(8)
    fresh = tuple(
        replace(part, observation_stamp_ns=rig.now) if part.first_row >= 4 else part
        for part in old[3].parts
    )
    rig.ticks(6)
    assert rig.receive(replace(old[3], parts=fresh)) is None
    rig.ticks(1)
    # 0.4 s after the newer observation, which is 80 ms younger, but not before row 4 is reached
    assert rig.decisions[-1].chosen in (10, 11, 12)
    assert rig.decisions[-1].reason == 'age'


def test_a_first_part_of_which_nothing_is_ready_is_waited_with() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    nothing = replace(
        parts[0], parts=tuple(replace(p, executable_rows=0, final=False) for p in parts[0].parts)
    )
    assert rig.receive(nothing) is None
    rig.ticks(5)
    assert not rig.commands
    assert rig.receive(parts[1]) is None
    rig.ticks(1)
    assert rig.commands


def test_after_a_stop_parts_of_the_old_chunk_are_refused() -> None:
    rig = Rig()
    rig.ticks(1)
    parts = rig.stream()
    rig.receive(parts[0])
    rig.ticks(4)
    assert rig.executor.cut('surprise: test', rig.now)
    assert 'dropped' in rig.receive(parts[1])


def test_only_finished_chunks_teach_a_strategy_what_is_smooth() -> None:
    strategy = Upcycling(Upcycling.Config(4, ratio=2.0, min_pool=1))
    rig = Rig(strategy, coarse=0.3)
    rig.ticks(1)
    for part in rig.stream():
        assert rig.receive(part) is None
        rig.ticks(3)
    assert len(strategy._pool()) == 1


def test_parts_work_with_two_requests_in_flight() -> None:
    rig = Rig(in_flight=2)
    pending: list[tuple[int, ActionChunk]] = []
    for _ in range(600):
        count = len(rig.requests)
        rig.ticks(1)
        if len(rig.requests) > count:
            pending += [
                (rig.now + 300 * MS + 20 * MS * i, part) for i, part in enumerate(rig.stream())
            ]
        for due, part in [entry for entry in pending if entry[0] <= rig.now]:
            rig.receive(part)
            pending.remove((due, part))
    stats = rig.stats
    assert stats.chunks_accepted > 10
    assert stats.starved_ticks < 0.1 * stats.ticks


def test_rows_that_are_not_ready_do_not_run_even_where_late_ones_may() -> None:
    rig = Rig(Fixed(Fixed.Config(2)), starvation='late')
    rig.ticks(1)
    assert rig.receive(rig.stream()[0]) is None
    rig.ticks(40)
    assert max(command.row for command in rig.commands) == 3
    assert rig.path.max() < 0.06
    assert rig.commands[-1].starved


def test_parts_may_grow_with_each_message() -> None:
    """As in docs/policy.md: what is fine, and the rest."""
    strategy = Upcycling(Upcycling.Config(H, ratio=1.0))
    rig = Rig(strategy)
    rig.ticks(1)
    fine = rig.stream()[3]
    for step, ready in enumerate((4, 8, 12, 16)):
        parts = (
            ChunkPart(0, ready, Id(8, 1), rig.now, step, True, ready),
            *((ChunkPart(ready, H - ready, Id(8, 1), rig.now, 0, False),) * (ready < H)),
        )
        assert rig.receive(replace(fine, parts=parts)) is None
        rig.ticks(8)
        plan = rig.executor._queue.last
        assert plan.known == ready
        assert plan.chunk.final == (ready == H)
        assert len(plan.chunk.parts) == len(parts)
    rig.ticks(30)
    assert len(rig.requests) == 2  # in time, since the stream has ended
    assert rig.stats.starved_ticks == 0
    assert len(strategy._pool()) == 1


# ---- what no policy should send -----------------------------------------------------------------


def part(first: int = 0, rows: int = H, ready: int = H, **changes) -> tuple[ChunkPart, ...]:
    return (ChunkPart(first, rows, Id(8, 1), T0, executable_rows=ready, **changes),)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'parts': part(-3, 5, 5)}, 'part of 5 rows from row -3 on'),
        ({'parts': part(H + 5, 1, 1)}, f'from row {H + 5} on'),
        ({'parts': part(0, -1, -1)}, 'part of -1 rows'),
        ({'parts': part(ready=-2)}, '-2 of them ready'),
        ({'parts': part(revision=-7)}, 'revision -7'),
        (
            {'parts': (replace(part()[0], observation_stamp_ns=T0 + 60_000 * MS),)},
            's in the future',  # its rows would never grow old
        ),
        ({'max_row_age_s': float('nan')}, 'max_row_age_s is nan'),  # lifted the cap on ages
        ({'max_row_age_s': -1.0}, 'max_row_age_s is -1.0'),
        ({'confidence': np.zeros(0, np.float32)}, r'confidence has shape (0,), expected (16,)'),
        ({'waypoint': np.zeros((H, 1), np.float32)}, 'waypoint has shape (16, 1)'),
        ({'samples': np.zeros((4, H - 1, 1), np.float32)}, "expected ('any', 16, 1)"),
        ({'samples': np.zeros((4, H), np.float32)}, 'samples has shape (4, 16)'),
        ({'expected_features': np.zeros(H, np.float32)}, "expected (16, 'any')"),
        ({'expected_features': np.zeros((H - 1, 2), np.float32)}, "expected (16, 'any')"),
        ({'residual': np.zeros((H, 2)), 'residual_bound': np.ones(1)}, 'its residual is not'),
        ({'residual': np.ones(1), 'residual_bound': None}, 'without a bound'),
        (
            {
                'actions': np.full((H, 1), 3e38, np.float32),
                'residual': np.full((H, 1), 3e38, np.float32),
                'residual_bound': np.full(1, np.inf, np.float32),
            },
            'too large to be added',
        ),
    ],
)
def test_a_damaged_chunk_is_refused_in_words_and_the_next_one_runs(changes, message) -> None:
    rig = Rig(retry_s=0.0)
    rig.ticks(1)
    whole = rig.stream()[-1]
    refusal = rig.receive(replace(whole, **changes))
    assert refusal is not None
    assert message in refusal
    rig.ticks(3)
    assert rig.receive(rig.stream()[-1]) is None
    rig.ticks(20)
    assert np.isfinite(rig.path).all()
    assert rig.path[-1] > 0.0


def test_a_residual_stays_within_its_bound_where_a_later_part_says_nothing_of_it() -> None:
    rig = Rig()
    rig.ticks(1)
    first, *_, last = rig.stream()
    residual = np.full((H, 1), 5.0, np.float32)
    bound = np.full(1, 0.02, np.float32)
    assert rig.receive(replace(first, residual=residual, residual_bound=bound)) is None
    rig.ticks(3)
    assert rig.receive(last) is None
    rig.ticks(60)
    assert np.abs(rig.path).max() <= 0.01 * H + 0.02 + 1e-3


class Broken(Fixed):
    """Its hook answers with what is no row."""

    answer = np.full(1, np.nan, np.float32)

    def correct(self, row, observation):
        return self.answer

    def blend(self, predictions):
        return self.answer


@pytest.mark.parametrize('answer', [np.full(1, np.nan), np.full(1, np.inf), np.zeros(3)])
def test_a_hook_that_answers_with_no_row_leaves_the_row_as_it_was_predicted(answer) -> None:
    strategy = Broken(Broken.Config(H))
    strategy.answer = answer.astype(np.float32)
    rig = Rig(strategy)
    rig.ticks(1)
    chunk = rig.stream()[-1]
    seen = Observation(Id(8, 1), rig.now, rig.now, (), np.zeros(0))
    rig.executor.observe(seen, rig.now)
    assert rig.receive(chunk) is None
    rig.ticks(20)
    assert np.isfinite(rig.path).all()
    assert rig.path[-1] > 0.0


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_pose_that_is_not_finite_is_an_unknown_one(value: float) -> None:
    rig = Rig()
    rig.ticks(1)
    assert rig.receive(rig.stream()[-1]) is None
    rig.ticks(10)
    sent, rig.measured = len(rig.commands), np.full(1, value)
    rig.ticks(5)
    assert len(rig.commands) == sent
    rig.measured = rig.commands[-1].groups[0].values
    rig.ticks(20)
    assert np.isfinite(rig.path).all()
    assert np.abs(np.diff(rig.path)).max() < 0.01


@pytest.mark.parametrize('strategy', [Upcycling, Auto])
def test_a_pool_that_can_never_be_full_enough_is_refused(strategy) -> None:
    with pytest.raises(ConfigError, match='min_pool: 9, allowed up to pool, 8'):
        strategy.Config(pool=8, min_pool=9)
