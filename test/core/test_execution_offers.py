"""
Strategies that use what a policy offers: rules by hand, then in a loop with such a policy.

The policy here reaches for a goal by a straight line and offers every hook, so that strategies are
whole before the policies that will serve them are.
"""

from dataclasses import dataclass, field, replace
import json
from pathlib import Path
import pickle
from typing import Any

from chunkpilot_core import registry, spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import CapabilityError, ConfigError, InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import correction
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import prefix
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    ChunkRequest,
    GuardStatus,
    Id,
    Observation,
    PolicySpec,
)
import numpy as np
import pytest
from safetensors.numpy import save_file

SPACE = spaces.ee_delta_space()
NAMES = ('ee.x', 'ee.y', 'ee.z', 'goal.x', 'goal.y', 'goal.z')
OFFERED = (
    'act',
    'confidence',
    'future_state',
    'guidance',
    'horizons',
    'samples',
    'trusted_rows',
    'waypoints',
    'weak_samples',
)
SPEC = PolicySpec(
    'reach', 'reach', 1, SPACE, 8, 0.04, NAMES, capabilities=OFFERED, max_row_age_s=1.0
)
STATE = ExecutionState(0, np.zeros(4, np.float32), 0, 0.05, 0.0)
NEEDS = {
    'bid': 'samples',
    'confidence': 'confidence',
    'foresight': 'future_state',
    'hybrid_waypoint': 'waypoints',
    'mixture_of_horizons': 'horizons',
    'real_time_chunking': 'guidance',
    'trim': 'trusted_rows',
}
MS = 1_000_000


def made(name: str, spec: PolicySpec = SPEC, **options) -> Any:
    plugin = registry.get('execution', name)
    strategy = plugin(build(plugin.Config, options))
    strategy.configure(spec)
    return strategy


def rows_along_x(values) -> np.ndarray:
    rows = np.zeros((len(values), 4), np.float32)
    rows[:, 0], rows[:, 3] = values, 1.0
    return rows


def chunk(values=(0.2,) * 8, **changes) -> ActionChunk:
    fields = {
        'id': Id(2, 1),
        'request_id': Id(1, 1),
        'arm_epoch': 1,
        'task_id': 't',
        'observation_id': Id(),
        'observation_stamp_ns': 0,
        'start_ns': 0,
        'dt_s': 0.04,
        'actions': rows_along_x(values),
        'space_hash': SPACE.hash,
        'policy': 'reach',
        'policy_version': 1,
    }
    return ActionChunk(**{**fields, **changes})


def request(seq: int = 1, reason: str = 'horizon') -> ChunkRequest:
    return ChunkRequest(Id(1, seq), 0, 1, 't', reason, 0)


@pytest.mark.parametrize(('name', 'capability'), NEEDS.items())
def test_a_policy_that_can_not_serve_it_is_refused_by_name(name: str, capability: str) -> None:
    spec = replace(SPEC, capabilities=('nothing_of_use',))
    message = f"strategy '{name}' needs {capability} from the policy; 'reach' offers nothing_of"
    with pytest.raises(CapabilityError, match=message):
        made(name, spec)
    if name in ('bid', 'real_time_chunking', 'foresight'):
        with pytest.raises(CapabilityError, match=r'do: .*\bflow_pick_and_place'):
            made(name, spec)
    made(name)


# ---- bidirectional decoding ---------------------------------------------------------------------

STRONG = replace(SPEC, capabilities=('samples',))


def sampled(*paths, **changes) -> ActionChunk:
    samples = np.array([rows_along_x(path) for path in paths])
    return chunk(actions=samples[0], samples=samples, **changes)


def test_the_sample_nearest_to_the_plan_runs() -> None:
    """Weights 1, 1/2, 1/4 on distances of .2/.4/.4, .1/.1/.7 and .15/.15/.15 from the plan."""
    strategy = made('bid', replace(STRONG, horizon=3), samples=3, horizon=3)
    assert strategy.n_samples == 3
    plan = rows_along_x([0.1, 0.1, 0.1])
    paths = ([0.3, 0.5, 0.5], [0.2, 0.2, 0.8], [0.25, 0.25, 0.25])  # .5, .325, .2625
    state = replace(STATE, previous=plan)
    assert strategy.rows(sampled(*paths), state)[:, 0] == pytest.approx([0.25] * 3)
    # rows that are late do not count: 1, 1/2 on the last two
    late = strategy.rows(sampled([0.9, 0.1, 0.1], *paths[1:]), replace(state, late_rows=1))
    assert late[:, 0] == pytest.approx([0.9, 0.1, 0.1])
    # nor do rows of which the plan says nothing
    short = plan.copy()
    short[1:] = np.nan
    near = strategy.rows(sampled(*paths), replace(state, previous=short))
    assert near[:, 0] == pytest.approx([0.2, 0.2, 0.8])


def test_without_a_plan_the_policys_own_decision_runs() -> None:
    strategy = made('bid', STRONG, samples=2)
    paths = ([0.5] * 8, [0.1] * 8)
    assert strategy.rows(sampled(*paths), STATE)[:, 0] == pytest.approx([0.5] * 8)


def test_forward_contrast_prefers_what_strong_samples_do_and_weak_ones_do_not() -> None:
    spec = replace(STRONG, horizon=1, capabilities=('samples', 'weak_samples'))
    strategy = made('bid', spec, samples=3, horizon=1)
    strong = ([0.0], [0.2], [0.3])
    # mean distance to the strong .5/3, .3/3, .4/3; to the weak (at 0, 0, .2) .2/3, .4/3, .7/3
    chosen = strategy.rows(sampled(*strong, [0.0], [0.0], [0.2]), STATE)
    assert chosen[:, 0] == pytest.approx([0.3])
    # only the nearest to the plan take part: 0 is kept with 0.2, 0.3 is not
    picky = made('bid', spec, samples=3, horizon=1, keep=2)
    state = replace(STATE, previous=rows_along_x([0.1]))
    chosen = picky.rows(sampled(*strong, [0.0], [0.0], [0.9]), state)
    assert chosen[:, 0] == pytest.approx([0.2])


def test_samples_that_were_not_asked_for_are_refused() -> None:
    strategy = made('bid', STRONG, samples=3)
    for answer, found in ((chunk(), 0), (sampled([0.1] * 8, [0.2] * 8), 2)):
        with pytest.raises(InvalidDataError, match=f'{found} samples, asked for 3'):
            strategy.rows(answer, STATE)


# ---- mixture of horizons ------------------------------------------------------------------------


def heads(*offsets) -> ActionChunk:
    """Return a chunk whose heads depart from it by these amounts along x."""
    base = rows_along_x([0.2] * 8)
    samples = np.array([base + rows_along_x(path) - rows_along_x([0] * 8) for path in offsets])
    return chunk(actions=base, samples=samples)


def test_it_runs_on_while_the_heads_agree_as_at_the_start() -> None:
    strategy = made('mixture_of_horizons', horizon=2, ratio=1.5)
    apart = [0.1, 0.3, 0.2, 0.3, 0.31, 0.1, 0.1, 0.1]  # mean of two: 0.2, so 0.3 is allowed
    decision = strategy.horizon(heads(apart, np.negative(apart)), STATE)
    assert (decision.chosen, decision.reason) == (4, 'disagreement')
    assert decision.threshold == pytest.approx(1.5 * 0.2 / 4)  # one of four columns
    assert decision.fluctuation == pytest.approx(np.array(apart[2:]) / 4)
    agreeing = strategy.horizon(heads([0.1] * 8, [0.1] * 8), STATE)
    assert (agreeing.chosen, agreeing.reason) == (8, 'end of chunk')


def test_rows_that_one_head_alone_predicts_do_not_run() -> None:
    strategy = made('mixture_of_horizons', horizon=2)
    short = [0.1] * 4 + [np.nan] * 4
    decision = strategy.horizon(heads([0.1] * 8, short), STATE)
    assert (decision.chosen, decision.reason) == (4, 'too few heads')
    assert (
        made('mixture_of_horizons', horizon=2, heads=1)
        .horizon(heads([0.1] * 8, short), STATE)
        .chosen
        == 8
    )


def test_a_chunk_without_heads_is_refused() -> None:
    with pytest.raises(InvalidDataError, match='no predictions of the heads'):
        made('mixture_of_horizons', horizon=2).horizon(chunk(), STATE)


# ---- confidence ---------------------------------------------------------------------------------


def sure(kappa: float, seq: int) -> ActionChunk:
    return chunk(confidence=np.full(8, kappa, np.float32), request_id=Id(1, seq))


def test_the_action_expert_goes_on_until_the_confidence_falls() -> None:
    strategy = made('confidence')
    assert strategy.ask(request(1, 'start')).mode == ''
    assert strategy.horizon(sure(1.0, 1), STATE).reason == 'full round'
    assert strategy.ask(request(2)).mode == 'act'
    assert strategy.horizon(sure(0.81, 2), STATE).reason == 'confident'
    assert not strategy.wants_chunk(STATE)
    assert strategy.ask(request(3)).mode == 'act'
    assert strategy.horizon(sure(0.79, 3), STATE).reason == 'confidence fell'
    assert strategy.wants_chunk(STATE)  # at once
    assert strategy.ask(request(4)).mode == ''
    assert not strategy.wants_chunk(STATE)
    assert strategy.ask(request(5)).mode == ''  # not answered yet: nothing new is encoded
    assert strategy.horizon(sure(0.3, 5), STATE).reason == 'full round'
    assert strategy.ask(request(6)).mode == 'act'
    assert strategy.horizon(sure(0.2, 6), STATE).reason == 'confident'


def test_after_an_interrupt_the_scene_is_encoded_anew() -> None:
    strategy = made('confidence')
    strategy.ask(request(1, 'start'))
    strategy.horizon(sure(1.0, 1), STATE)
    assert strategy.ask(request(2, 'surprise: object moved')).mode == ''
    # the answer to an older request is not the yardstick
    assert strategy.horizon(sure(0.1, 1), STATE).reason == 'confident'
    assert strategy.horizon(sure(0.5, 2), STATE).reason == 'full round'


def test_a_policy_without_an_action_expert_of_its_own_is_only_asked_earlier() -> None:
    strategy = made('confidence', replace(SPEC, capabilities=('confidence',)))
    for seq, kappa, doubts in ((1, 1.0, False), (2, 0.9, False), (3, 0.5, True)):
        assert strategy.ask(request(seq)).mode == ''
        strategy.horizon(sure(kappa, seq), STATE)
        assert strategy.wants_chunk(STATE) is doubts
    strategy.ask(request(4))
    assert strategy.horizon(sure(0.5, 4), STATE).reason == 'full round'
    assert not strategy.wants_chunk(STATE)


@pytest.mark.parametrize('confidence', [None, np.full(8, np.nan, np.float32)])
def test_a_chunk_without_confidence_is_refused(confidence) -> None:
    with pytest.raises(InvalidDataError, match='no finite confidence'):
        made('confidence').horizon(chunk(confidence=confidence), STATE)


# ---- the others ---------------------------------------------------------------------------------


def test_foresight_asks_for_a_start_in_the_future() -> None:
    assert made('foresight').ask(request()).state_at_start
    assert made('foresight', horizon=5).horizon(chunk(), STATE).chosen == 5


def test_rows_up_to_a_way_point_are_even() -> None:
    marked = np.array([0.1, 0.4, 0.2, 0.5, 0.9, 0.9, 0.2, 0.1], np.float32)
    values = (0.1, 0.3, 0.2, 0.2, 0.5, 0.1, 0.7, 0.6)
    rows = made('hybrid_waypoint').rows(chunk(values, waypoint=marked), STATE)
    assert rows[:, 0] == pytest.approx([0.2] * 4 + [0.5, 0.1, 0.7, 0.6])
    strict = made('hybrid_waypoint', threshold=0.8)
    rows = strict.rows(chunk(values, waypoint=marked), STATE)
    assert rows[:5, 0] == pytest.approx([0.26] * 5)


@pytest.mark.parametrize('marked', [None, np.zeros(3, np.float32), np.full(8, np.nan)])
def test_a_chunk_that_does_not_say_where_its_way_points_are_is_refused(marked) -> None:
    with pytest.raises(InvalidDataError, match='8 rows without a finite way point probability'):
        made('hybrid_waypoint').rows(chunk(waypoint=marked), STATE)


@pytest.mark.parametrize(
    ('trusted', 'rows', 'reason'),
    [
        (5.9, 5, 'trusted_rows'),
        (1.0, 2, 'base'),
        (-3.0, 2, 'base'),
        (99.0, 8, 'end of chunk'),
        (2.0, 2, 'trusted_rows'),
    ],
)
def test_the_horizon_head_is_followed_within_the_chunk(trusted, rows, reason) -> None:
    decision = made('trim').horizon(chunk(diagnostics={'trusted_rows': trusted}), STATE)
    assert (decision.chosen, decision.reason) == (rows, reason)


def test_a_horizon_head_that_says_nothing_is_refused() -> None:
    for diagnostics in ({}, {'trusted_rows': float('nan')}):
        with pytest.raises(InvalidDataError, match="'trusted_rows' of the chunk is nan"):
            made('trim').horizon(chunk(diagnostics=diagnostics), STATE)


# ---- per-row corrector --------------------------------------------------------------------------

META = {
    'format': correction.FORMAT,
    'inputs': json.dumps(['ee.x', 'goal.x']),
    'space_hash': SPACE.hash,
}


def tensors(**changes) -> dict[str, np.ndarray]:
    """Return a corrector with two layers: x += tanh(goal.x - ee.x), the rest untouched."""
    first, second = np.zeros((1, 6)), np.zeros((4, 1))
    first[0, :2], second[0, 0] = (-1.0, 1.0), 1.0
    values = {
        '0.weight': first,
        '0.bias': np.zeros(1),
        '1.weight': second,
        '1.bias': np.zeros(4),
        'input_mean': np.zeros(2),
        'input_std': np.full(2, 0.5),
        'bound': np.full(4, 0.3),
        **changes,
    }
    return {
        name: np.asarray(value, np.float32) for name, value in values.items() if value is not None
    }


def written(folder, meta=META, **changes) -> str:
    file = folder / 'corrector.safetensors'
    save_file(tensors(**changes), file, meta)
    return str(file)


def seen(ee: float, goal: float) -> Observation:
    values = np.array([ee, 0, 0, goal, 0, 0], np.float32)
    return Observation(Id(1, 1), 0, 0, NAMES, values)


def test_a_row_is_corrected_within_the_bound(tmp_path) -> None:
    strategy = made('corrector', file=written(tmp_path))
    row = np.array([0.1, 0.2, 0.3, 1.0], np.float32)
    near = strategy.correct(row, seen(0.0, 0.1))
    assert near == pytest.approx([0.1 + np.tanh(0.2), 0.2, 0.3, 1.0])
    assert near.dtype == np.float32
    far = strategy.correct(row, seen(0.0, 5.0))
    assert far == pytest.approx([0.4, 0.2, 0.3, 1.0])
    edge = strategy.correct(np.array([0.9, 0, 0, 1], np.float32), seen(0.0, 5.0))
    assert edge[0] == 1.0  # the space's own limit
    assert row == pytest.approx([0.1, 0.2, 0.3, 1.0])


def test_an_unknown_input_leaves_the_row_as_it_was_predicted(tmp_path) -> None:
    strategy = made('corrector', file=written(tmp_path))
    row = np.array([0.1, 0.2, 0.3, 1.0], np.float32)
    np.testing.assert_array_equal(strategy.correct(row, seen(0.0, float('nan'))), row)
    lacking = replace(seen(0.0, 0.1), state_names=('other',) * 6)
    np.testing.assert_array_equal(strategy.correct(row, lacking), row)


@pytest.mark.parametrize(
    ('meta', 'changes', 'message'),
    [
        ({'format': 'other/1'}, {}, "format 'other/1', must be"),
        ({'space_hash': 'abc'}, {}, "for action space 'abc', in force is"),
        ({'inputs': '["ee.x", "cup.x"]'}, {}, r'reads cup\.x, the policy only ee\.x'),
        ({'inputs': '["ee.x"]'}, {}, r'input_mean has shape \(2,\), expected \(1,\)'),
        ({'inputs': '3'}, {}, 'must be a list of names'),
        ({}, {'bound': np.zeros(3)}, r'bound has shape \(3,\), expected \(4,\)'),
        ({}, {'bound': np.full(4, -1.0)}, 'bound at least 0'),
        ({}, {'input_std': np.zeros(2)}, 'input_std above 0'),
        ({}, {'1.weight': np.zeros((4, 2))}, r'1\.weight has shape \(4, 2\).*expected \(4, 1\)'),
        ({}, {'0.weight': np.zeros((1, 5))}, r'0\.weight has shape \(1, 5\).*expected \(1, 6\)'),
        ({}, {'1.bias': None}, r"lacks '1\.bias'"),
        ({}, {'0.bias': np.full(1, np.nan)}, r'0\.bias holds numbers that are not finite'),
    ],
)
def test_an_unfit_corrector_is_refused_when_configured(tmp_path, meta, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        made('corrector', file=written(tmp_path, {**META, **meta}, **changes))


def test_weights_that_overflow_leave_the_row_as_it_was_predicted(tmp_path) -> None:
    row = np.array([0.1, 0.2, 0.3, 1.0], np.float32)
    one = {'0.weight': np.zeros((4, 6)), '0.bias': np.zeros(4), '1.weight': None, '1.bias': None}
    file = written(tmp_path, **one, input_std=np.full(2, 1e-45))  # 0 times infinity
    with np.errstate(all='ignore'):
        corrected = made('corrector', file=file).correct(row, seen(1.0, 1.0))
    np.testing.assert_array_equal(corrected, row)


def headed(text: bytes) -> bytes:
    return len(text).to_bytes(8, 'little') + text


@pytest.mark.parametrize(
    'content',
    [
        headed(b'{"__metadata__": [1]}'),
        headed(b'{"__metadata__": null}'),
        headed(b'[' * 100_000),
        headed(b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}') + bytes(4),
        headed(b'{"a": null}'),
        pickle.dumps({'0.weight': np.zeros((4, 6))}),
        (1 << 62).to_bytes(8, 'little') + b'{}',
    ],
)
def test_a_file_that_only_has_the_name_of_a_corrector_is_one_clear_error(
    tmp_path, content
) -> None:
    file = tmp_path / 'corrector.safetensors'
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r'corrector .*corrector\.safetensors: '):
        made('corrector', file=str(file))


@pytest.mark.parametrize(('name', 'option'), [('corrector', 'file'), ('upcycling', 'calibration')])
def test_a_device_is_refused_instead_of_read_for_ever(name, option) -> None:
    with pytest.raises(ConfigError, match='/dev/full: not an ordinary file'):
        made(name, **{option: '/dev/full'})


def test_a_bias_without_length_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r'0\.bias \(\), expected'):
        made('corrector', file=written(tmp_path, **{'0.bias': np.float32(0.0)}))


def test_a_missing_or_damaged_corrector_is_one_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="file is '', a corrector must be named"):
        made('corrector')
    with pytest.raises(ConfigError, match=r'none\.safetensors: .*No such file'):
        made('corrector', file=str(tmp_path / 'none.safetensors'))
    file = Path(written(tmp_path))
    whole = file.read_bytes()
    for damaged in (b'', b'\x02\0\0\0\0\0\0\0[]', whole[:20], whole[:-8]):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r'corrector .*corrector\.safetensors: '):
            made('corrector', file=str(file))


# ---- in the loop --------------------------------------------------------------------------------


class Reach(Policy):
    """Goes straight to the goal, and offers every hook; keeps what it was asked for."""

    spec = SPEC

    def __init__(self) -> None:
        self.asked: list[ChunkRequest] = []

    def act(self, observation: Observation, request: ChunkRequest) -> ActionChunk:
        self.asked.append(request)
        values = observation.state
        if request.state_at_start:
            stamp_ns = observation.stamp_ns
            values = prefix.at_start(SPACE, NAMES, values, request, stamp_ns)
        place, goal = values[:3], values[3:]
        rows = np.zeros((SPEC.horizon, 4), np.float32)
        rows[:, 3] = 1.0
        for row in rows:
            row[:3] = np.clip((goal - place) / 0.05 * 0.4, -0.5, 0.5)
            place = place + 0.05 * row[:3]
        wiggles = 0.02 * np.sin(np.arange(8))[None, :, None] * np.arange(8)[:, None, None]
        count = 2 * request.n_samples if request.n_samples > 1 else 3
        samples = np.clip(rows + np.resize(wiggles, (count, 8, 1)), -1, 1).astype(np.float32)
        fallen = 0.1 * sum(one.mode == 'act' for one in self.asked)
        answer = self.chunk(observation, request, rows, samples)
        return replace(
            answer,
            confidence=np.full(8, 1.0 - fallen, np.float32),
            waypoint=np.array([0, 0, 0, 1, 0, 0, 0, 1], np.float32),
            diagnostics={'trusted_rows': 6.0},
        )


@dataclass
class Room:
    """An arm that follows at once, a goal, and a policy that answers after a while."""

    strategy: Strategy
    policy: Reach = field(default_factory=Reach)
    goal: tuple[float, float, float] = (0.3, -0.2, 0.1)
    latency_ms: int = 50
    now: int = 10**12
    measured: np.ndarray = field(default_factory=lambda: np.array([0.0, 0.0, 0.2, 0.08]))
    decisions: list = field(default_factory=list)
    refused: list = field(default_factory=list)

    def run(self, seconds: float = 3.0) -> 'Room':
        executor = Executor(self.strategy, session=7)
        executor.configure(SPEC)
        executor.remember_delays([self.latency_ms / 1000.0] * 8)
        executor.set_guard(GuardStatus(self.now, ArmState.ARMED, 3, self.now), self.now)
        executor.set_episode(True, 'task', self.now, 'episode')
        due: list[tuple[int, ActionChunk]] = []
        for count in range(round(seconds / 0.01)):
            self.now += 10 * MS
            state = np.concatenate((self.measured[:3], self.goal)).astype(np.float32)
            observation = Observation(Id(8, count + 1), self.now, self.now, NAMES, state)
            executor.observe(observation, self.now)
            while due and due[0][0] <= self.now:
                problem = executor.receive(due.pop(0)[1], self.now)
                self.refused += [problem] if problem else []
            tick = executor.tick(self.now, self.measured, self.now)
            if tick.request is not None:
                due.append(
                    (self.now + self.latency_ms * MS, self.policy.act(observation, tick.request))
                )
            if tick.command is not None:
                self.measured = np.concatenate([group.values for group in tick.command.groups])
            self.decisions += [tick.decision] if tick.decision else []
        self.stats = executor.stats()
        return self

    @property
    def missed_m(self) -> float:
        return float(np.linalg.norm(self.measured[:3] - self.goal))


SERVED = (*NEEDS, 'temporal_ensemble', 'median_ensemble', 'vote')


@pytest.mark.parametrize('name', SERVED)
def test_it_reaches_the_goal_with_a_policy_that_offers_what_it_needs(name: str) -> None:
    room = Room(made(name, horizon=4)).run()
    assert room.missed_m < 0.005
    assert room.refused == []
    assert room.stats.starved_ticks == 0
    assert {decision.strategy for decision in room.decisions} == {name}


def test_what_was_asked_for_reaches_the_policy() -> None:
    def asked(name: str, **options) -> list[ChunkRequest]:
        return Room(made(name, **options)).run(1.0).policy.asked[1:]

    assert all(one.state_at_start for one in asked('foresight', horizon=4))
    assert {one.n_samples for one in asked('bid', horizon=4, samples=6)} == {6}
    guided = asked('real_time_chunking', horizon=4, variant='identity')
    assert {one.guidance for one in guided} == {'identity'}
    assert all(len(one.guidance_weights) == len(one.prefix) for one in guided)
    assert all(np.all(one.guidance_weights[: one.committed_rows] == 1.0) for one in guided)
    modes = [one.mode for one in asked('confidence', horizon=4)]
    assert modes[:4] == ['act', 'act', 'act', '']  # 0.9, 0.8, 0.7: more than 0.2 below 1


def test_no_row_of_a_chunk_from_the_future_is_late() -> None:
    """Eight rows, 320 ms, last through any delay up to that; else twice the delay is needed."""
    rooms = {
        name: Room(made(name, horizon=8), latency_ms=240, goal=(1.5, -1.0, 0.1)).run(2.0).stats
        for name in ('fixed', 'foresight')
    }
    assert rooms['fixed'].starved_ticks > 10
    assert rooms['foresight'].starved_ticks == 0
    assert rooms['foresight'].late_rows == 0


def test_an_ensemble_asks_more_often_than_its_horizon_makes_necessary() -> None:
    calls = {name: len(Room(made(name)).run(1.0).policy.asked) for name in ('fixed', 'vote')}
    assert calls['vote'] > 2 * calls['fixed']


def test_a_trusted_horizon_saves_calls() -> None:
    room = Room(made('trim', horizon=2)).run(1.0)
    assert {decision.chosen for decision in room.decisions} == {6}


def test_a_corrector_acts_between_two_chunks(tmp_path) -> None:
    """The chunks go on to where the goal was; the corrector sees where it is."""
    gain = {'0.weight': np.array([[-40.0, 40.0, 0, 0, 0, 0]]), 'input_std': np.ones(2)}
    strategy = made('corrector', horizon=8, file=written(tmp_path, **gain))
    plain = Room(made('fixed', horizon=8), goal=(0.02, 0, 0.2)).run(0.3)
    corrected = Room(strategy, goal=(0.02, 0, 0.2)).run(0.3)
    assert corrected.missed_m < 0.5 * plain.missed_m
