"""Real-time chunking: weights, what is asked for, guidance of the flow, where rows meet."""

from dataclasses import replace
import math

from chunkpilot_core import spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import CapabilityError, ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.real_time_chunking import RealTimeChunking, weights
from chunkpilot_core.policies.flow import FlowPolicy
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.policies.runtime.net_policy import Guide
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    Id,
    Observation,
    PolicySpec,
)
import numpy as np
import pytest
import torch

SPACE = spaces.ee_delta_space()
SPEC = PolicySpec('flow', 'fake', 1, SPACE, 16, 0.04, ('ee.x',), capabilities=('guidance',))
MS = 1_000_000
DT = 40 * MS
STATE = ExecutionState(0, np.zeros(4, np.float32), 0, 0.12, 0.0)


def made(**options) -> RealTimeChunking:
    strategy = RealTimeChunking(build(RealTimeChunking.Config, options))
    strategy.configure(SPEC)
    return strategy


def asked(rows: int = 12, committed: int = 3, reason: str = 'horizon', **options) -> ChunkRequest:
    request = ChunkRequest(
        Id(1, 1),
        0,
        1,
        't',
        reason,
        0,
        prefix=np.zeros((rows, 4)),
        prefix_velocity=np.zeros((rows, 4)),
        prefix_dt_s=0.04,
        committed_rows=committed,
    )
    return made(**options).ask(request)


def test_weights_of_the_paper() -> None:
    linear = weights(2, 6, 10, 'linear')
    assert linear == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0, 0])
    c = np.array([0.8, 0.6, 0.4, 0.2])
    falling = c * (np.exp(c) - 1.0) / (math.e - 1.0)
    assert weights(2, 6, 10, 'exponential') == pytest.approx([1, 1, *falling, 0, 0, 0, 0])
    assert weights(3, 2, 4, 'linear') == pytest.approx([1, 1, 1, 0])  # what is committed stays
    assert weights(0, 0, 2, 'linear') == pytest.approx([0, 0])


def test_weights_end_where_the_new_chunk_is_on_its_own() -> None:
    # h = 7, d = 3: s = 4, so rows from H - s = 12 on are free
    request = asked(16, 3, horizon=7, decay='linear')
    expected = [1, 1, 1, *(np.arange(9, 0, -1) / 10.0), 0, 0, 0, 0]
    assert request.guidance_weights == pytest.approx(expected)
    assert (request.guidance, request.guidance_limit) == ('jacobian', 5.0)
    # of a prefix of 8 rows nothing is left to hold on to after that
    assert asked(8, 3, horizon=7, decay='linear').guidance_weights == pytest.approx(
        [1, 1, 1, *(np.arange(5, 0, -1) / 6.0)]
    )
    assert asked(variant='identity', limit=2.0).guidance == 'identity'


def test_after_an_interrupt_only_what_is_committed_is_held_on_to() -> None:
    request = asked(reason='surprise: object moved 3 cm')
    assert request.guidance_weights == pytest.approx([1] * 3 + [0] * 9)


def test_the_first_chunk_is_free() -> None:
    request = asked(rows=0, committed=0, reason='start')
    assert (request.guidance, request.guidance_weights.size) == ('', 0)


def chunk() -> ActionChunk:
    rows = np.zeros((16, 4), np.float32)
    return ActionChunk(Id(2, 1), Id(1, 1), 1, 't', Id(), 0, 0, 0.04, rows, SPACE.hash, 'f', 1)


def test_the_horizon_keeps_the_constraint_on_the_delay() -> None:
    strategy = made(horizon=7)
    decision = strategy.horizon(chunk(), STATE)  # d = 3, s = 4: fits
    assert (decision.chosen, decision.reason) == (7, 'fixed')
    longer = strategy.horizon(chunk(), replace(STATE, delay_s=0.2))  # d = 5 > s = 2
    assert (longer.chosen, longer.reason) == (10, 'delay of 5 rows fits: d <= s <= H - d')
    too_long = strategy.horizon(chunk(), replace(STATE, delay_s=0.4))  # 2 d > H
    assert (too_long.chosen, 'delay of 10 rows is too long' in too_long.reason) == (16, True)
    with pytest.raises(ConfigError, match=r'horizon 1 leaves no room .* allowed 2 to 16'):
        made(horizon=1)


def test_a_policy_without_guidance_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(CapabilityError, match=r'needs guidance .*do: .*flow_pick_and_place'):
        RealTimeChunking().configure(replace(SPEC, capabilities=('samples',)))


# ---- the policy's side --------------------------------------------------------------------------


class Field(torch.nn.Module):
    """A velocity field that is linear in the noisy chunk: v = slope x."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, chunks, encoded, time):
        return self.slope * chunks


def flow(slope: float, horizon: int = 4, **options) -> FlowPolicy:
    config = build(FlowPolicy.Config, {'temperature': 0.0, 'width': 8, 'depth': 1, **options})
    policy = FlowPolicy(config, replace(SPEC, horizon=horizon))
    policy.net = Field(slope)
    return policy


def pulled(policy: FlowPolicy, weight, *, jacobian: bool, target: float = 1.0) -> np.ndarray:
    """Return the first column of a chunk that starts from zero noise."""
    horizon = policy.spec.horizon
    guide = Guide(
        torch.full((horizon, 4), target),
        torch.as_tensor(weight, dtype=torch.float32)[:, None],
        5.0,
        jacobian,
    )
    with torch.no_grad():
        rows = policy.guided(torch.zeros(1, 1), 1, torch.Generator(), guide)
    return rows[0, :, 0].numpy()


def test_the_gain_of_the_paper() -> None:
    guide = Guide(torch.zeros(1), torch.zeros(1), 5.0, jacobian=True)
    # (1-t)/t (t^2 + (1-t)^2)/(1-t)^2
    expected = [5.0, 4.25, 1.5 * 0.52 / 0.36, 0.52 / 0.16 / 1.5, 4.25]
    assert [guide.gain(step / 5) for step in range(5)] == pytest.approx(expected)


@pytest.mark.parametrize('jacobian', [True, False])
def test_without_a_field_the_pull_alone_leads_to_the_rows(jacobian: bool) -> None:
    """The Jacobian is the identity then, and each step leaves 1 - w g / 5 of the error."""
    left = np.prod([1 - 0.5 * gain / 5 for gain in (5, 4.25, 13 / 6, 13 / 6, 4.25)])
    rows = pulled(flow(0.0), [1.0, 0.5, 0.0, 1.0], jacobian=jacobian)
    assert rows == pytest.approx([1.0, 1.0 - left, 0.0, 1.0], abs=1e-5)


def test_a_linear_field_scales_the_true_pull_by_its_jacobian() -> None:
    """x1 = x + (1-t) c x, so J = 1 + (1-t) c; one step from x = 0 with gain 5, c = -0.6."""
    one = pulled(flow(-0.6, guided_steps=1), [0.1] * 4, jacobian=True)
    assert one == pytest.approx([5.0 * 0.1 * 0.4] * 4)
    identity = pulled(flow(-0.6, guided_steps=1), [0.1] * 4, jacobian=False)
    assert identity == pytest.approx([5.0 * 0.1] * 4)
    # the second of two steps: t = 1/2, x = 0.1 (or 0.25), end = 0.7 x, J = 0.7, gain 2
    two = pulled(flow(-0.6, guided_steps=2), [0.1] * 4, jacobian=True)
    assert two == pytest.approx([0.1 + 0.5 * (-0.06 + 2.0 * 0.1 * 0.93 * 0.7)] * 4)
    two = pulled(flow(-0.6, guided_steps=2), [0.1] * 4, jacobian=False)
    assert two == pytest.approx([0.25 + 0.5 * (-0.15 + 2.0 * 0.1 * 0.825)] * 4)


def test_samples_are_all_guided() -> None:
    policy = flow(0.0)
    guide = Guide(torch.ones(4, 4), torch.ones(4, 1), 5.0, jacobian=True)
    rows = policy.guided(torch.zeros(1, 1), 3, torch.Generator().manual_seed(0), guide)
    assert rows.numpy() == pytest.approx(np.ones((3, 4, 4)), abs=1e-5)


SHIPPED = 'flow_pick_and_place'


def observation(policy, values: dict[str, float], stamp_ns: int) -> Observation:
    names = policy.spec.input_names
    numbers = np.array([values[name] for name in names], np.float32)
    return Observation(Id(1, 1), stamp_ns, stamp_ns, names, numbers, task_id='t')


def scene(seed: int) -> dict[str, float]:
    """Return an arm that begins to reach for a cube."""
    random = np.random.default_rng(seed)
    tool = random.uniform((-0.1, -0.1, 0.1), (0.1, 0.1, 0.2))
    cube = (*random.uniform(-0.1, 0.1, 2), 0.02)
    values = {f'{part}.{axis}': 0.0 for part in ('ee', 'object', 'goal') for axis in 'xyz'}
    values |= dict(zip(('ee.x', 'ee.y', 'ee.z'), tool, strict=True))
    values |= dict(zip(('object.x', 'object.y', 'object.z'), cube, strict=True))
    return {
        **values,
        **{f'ee.v{axis}': 0.0 for axis in 'xyz'},
        'gripper.width': 0.08,
        'object.held': 0.0,
        'goal.x': 0.1,
        'goal.z': 0.15,
    }


def continuation(policy, variant: str, seed: int, shift_ms: int = 0):
    """Return four committed rows, and what guided and free chunks say for their times."""
    policy.reset(seed)
    values = scene(seed)
    bare = ChunkRequest(Id(1, 1), 0, 1, 't', 'start', 0)
    old = policy.act(observation(policy, values, 0), bare).actions
    start = np.array([values['ee.x'], values['ee.y'], values['ee.z'], 0.08])
    targets = spaces.resolve(policy.spec.space, old, start)
    rates = np.diff(targets, axis=0, prepend=start[None]) / 0.04
    for i, axis in enumerate('xyz'):
        values[f'ee.{axis}'], values[f'ee.v{axis}'] = targets[3, i], rates[3, i]
    request = replace(
        bare,
        reason='horizon',
        prefix=targets[4:],
        prefix_velocity=rates[4:],
        prefix_start_ns=4 * DT,
        prefix_dt_s=0.04,
        committed_rows=4,
    )
    guided = made(variant=variant, horizon=8).ask(request)
    seen = observation(policy, values, 4 * DT + shift_ms * MS)
    policy.reset(seed + 100)
    new = policy.act(seen, guided).actions[:4]
    policy.reset(seed + 100)
    free = policy.act(seen, request).actions[:4]
    return old[4:8], new, free


def gaps(variant: str, shift_ms: int = 0) -> tuple[float, float]:
    """Return the mean distance of guided and of free rows to the committed ones, in row units."""
    policy = checkpoint.load(SHIPPED)
    both = []
    for seed in range(6):
        old, new, free = continuation(policy, variant, seed, shift_ms)
        both.append([np.abs(rows - old)[:, :3].mean() for rows in (new, free)])
    guided, unguided = np.mean(both, axis=0)
    return float(guided), float(unguided)


def test_the_shipped_flow_meets_the_committed_rows() -> None:
    guided, free = gaps('identity')
    assert guided < 0.005  # 0.25 mm
    assert guided < 0.3 * free


def test_the_true_jacobian_goes_only_where_the_demonstrations_went() -> None:
    """It leads to the rows along what the network thinks possible: the gap only shrinks."""
    guided, free = gaps('jacobian')
    assert guided < 0.8 * free


def test_rows_between_those_of_the_prefix_are_met_too() -> None:
    """The chunk begins half a row later; rows change little from one to the next."""
    guided, free = gaps('identity', 20)
    assert guided < 0.5 * free


def test_an_unknown_guidance_and_a_policy_without_are_refused() -> None:
    request = ChunkRequest(Id(1, 1), 0, 1, 't', 'horizon', 0)
    for name, variant, error in (
        (SHIPPED, 'jacobain', UnknownNameError),
        ('mlp_pick_and_place', 'jacobian', InvalidDataError),
    ):
        policy = checkpoint.load(name)
        seen = observation(policy, scene(0), 0)
        with pytest.raises(error, match=r"Did you mean 'jacobian'|does not offer"):
            policy.act(seen, replace(request, guidance=variant))
