"""The contract of every policy plug-in: a request is answered by a chunk that can be executed."""

from collections.abc import Iterator
from dataclasses import replace

from chunkpilot_core import registry, spaces
from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import inputs, serving
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    Health,
    Id,
    nanoseconds,
    Observation,
    PolicySpec,
)
import numpy as np
import pytest
import torch

SPACE = spaces.ee_delta_space()
NAMES = ('ee.x', 'ee.y', 'ee.z', 'object.x', 'object.y', 'object.z', 'gripper.width', 'goal.x')
PLUGINS = registry.names('policies')


def make_policy(plugin: str, **changes: object) -> Policy:
    torch.manual_seed(0)
    cls = registry.get('policies', plugin)
    spec = PolicySpec(plugin, 'example', 3, SPACE, 16, 0.04, NAMES, max_row_age_s=1.14)
    return cls(replace(cls.Config(), **changes), spec)


def make_observation(seed: int = 0, **changes: object) -> Observation:
    values = np.random.default_rng(seed).normal(size=len(NAMES)).astype(np.float32)
    observation = Observation(Id(7, 5), 1_000_000_000, 900_000_000, NAMES, values, task_id='t')
    return replace(observation, **changes)


def make_request(**changes: object) -> ChunkRequest:
    request = ChunkRequest(Id(9, 4), 1_010_000_000, 42, 't', 'horizon', 1_050_000_000)
    return replace(request, **changes)


def act(policy: Policy, observation: Observation, **changes: object) -> ActionChunk:
    result = policy.act(observation, make_request(**changes))
    return list(result)[-1] if isinstance(result, Iterator) else result


@pytest.mark.parametrize('plugin', PLUGINS)
def test_answers_with_a_chunk_that_says_what_it_is(plugin: str) -> None:
    policy = make_policy(plugin)
    chunk = act(policy, make_observation())
    assert chunk.actions.shape == (16, 4)
    assert chunk.actions.dtype == np.float32
    assert np.all(np.abs(chunk.actions) <= 1.0)
    chunk.validate(policy.spec.space)
    assert (chunk.request_id, chunk.observation_id) == (Id(9, 4), Id(7, 5))
    assert (chunk.arm_epoch, chunk.task_id) == (42, 't')
    assert (chunk.observation_stamp_ns, chunk.observation_oldest_ns) == (10**9, 900_000_000)
    assert (chunk.dt_s, chunk.max_row_age_s) == (0.04, 1.14)
    assert (chunk.policy, chunk.policy_version, chunk.space_hash) == (plugin, 3, SPACE.hash)
    starts = {'observation': 10**9, 'request': 1_050_000_000}
    assert chunk.start_ns == starts[policy.spec.starts_at]
    assert sum(part.n_rows for part in chunk.parts) == 16
    assert act(policy, make_observation()).id.newer_than(chunk.id)


@pytest.mark.parametrize('plugin', PLUGINS)
def test_the_same_seed_gives_the_same_chunks(plugin: str) -> None:
    policy = make_policy(plugin)
    runs = []
    for seed in (1, 2, 1):
        policy.reset(seed)
        runs.append([act(policy, make_observation(i)).actions for i in range(3)])
    np.testing.assert_array_equal(runs[0], runs[2])
    assert np.any(runs[0][0] != runs[0][1])  # it looks at the observation


@pytest.mark.parametrize('plugin', PLUGINS)
def test_an_unknown_input_is_named_not_guessed(plugin: str) -> None:
    values = make_observation().state.copy()
    values[3] = np.nan
    with pytest.raises(InvalidDataError, match=r'object\.x'):
        act(make_policy(plugin), make_observation(state=values))
    lacking = make_observation(state_names=NAMES[:-1], state=values[:-1])
    with pytest.raises(UnknownNameError, match=r"'goal\.x'"):
        act(make_policy(plugin), lacking)


@pytest.mark.parametrize('plugin', PLUGINS)
def test_numbers_that_are_not_finite_never_leave(plugin: str) -> None:
    policy = make_policy(plugin)
    for value in (np.nan, np.inf):
        with torch.no_grad():
            next(policy.net.parameters()).fill_(value)
        with pytest.raises(InvalidDataError, match='not finite'):
            act(policy, make_observation())


@pytest.mark.parametrize('plugin', PLUGINS)
def test_inputs_far_from_training_give_bounded_actions(plugin: str) -> None:
    values = np.full(len(NAMES), 1e6, np.float32)
    chunk = act(make_policy(plugin), make_observation(state=values))
    assert np.all(np.abs(chunk.actions) <= 1.0)


@pytest.mark.parametrize('plugin', PLUGINS)
def test_samples_come_from_those_that_offer_them(plugin: str) -> None:
    policy = make_policy(plugin)
    chunk = act(policy, make_observation(), n_samples=5)
    if 'samples' not in policy.spec.capabilities:
        assert chunk.samples is None
        return
    assert chunk.samples is not None
    assert chunk.samples.shape == (5, 16, 4)
    np.testing.assert_array_equal(chunk.samples[0], chunk.actions)
    assert len({sample.tobytes() for sample in chunk.samples}) == 5


def test_a_colder_flow_spreads_less() -> None:
    spread = {}
    for temperature in (0.0, 0.5, 1.0):
        policy = make_policy('flow', temperature=temperature)
        rows = [act(policy, make_observation()).actions for _ in range(20)]
        spread[temperature] = float(np.std(rows, axis=0).mean())
    assert spread[0.0] < 1e-6
    assert 0.0 < spread[0.5] < spread[1.0]


def test_differences_of_positions_are_inputs() -> None:
    names = ('goal.x', 'object.x', 'ee.x', 'object.held')
    encoded = np.array([0.5, 0.3, 0.1, 1.0]) @ inputs.encoding(names)
    np.testing.assert_allclose(encoded, [0.5, 0.3, 0.1, 1.0, 0.2, 0.2, 0.4], atol=1e-12)
    assert inputs.encoding(('ee.x', 'goal.y')).shape == (2, 2)


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'stamp_ns': 10**9 - 1, 'task_id': 't'}, 'older than the request allows'),
        ({'stamp_ns': 10**9 - 400_000_000}, '0.410 s old, limit 0.2 s'),
        ({'task_id': 'other'}, "task 'other', request of 't'"),
        ({'health': Health.BAD, 'health_reason': 'front: no image yet'}, 'no image yet'),
        ({'health': Health.DEGRADED, 'health_reason': 'late'}, None),
        ({}, None),
    ],
)
def test_which_observation_may_answer(changes: dict[str, object], said: str | None) -> None:
    request = make_request(not_before_ns=10**9)
    now_ns = 10**9 + nanoseconds(0.01)
    reason = serving.refusal(request, make_observation(**changes), now_ns, 0.2)
    assert (reason is None) == (said is None)
    assert said is None or said in str(reason)
    assert serving.refusal(request, None, now_ns, 0.2) == 'no observation yet'
