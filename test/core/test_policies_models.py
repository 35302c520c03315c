"""The models that are trained here: each learns, and those that sample keep ways apart."""

from typing import Any

from chunkpilot_core import config, registry, spaces
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.policies.runtime import serving
from chunkpilot_core.policies.runtime.net_policy import Batch, NetPolicy
from chunkpilot_core.types import PolicySpec
import numpy as np
import pytest
import torch

SPACE = spaces.ee_delta_space()
NAMES = ('ee.x', 'goal.x')
MODELS: dict[str, dict[str, Any]] = {
    'mlp': {'width': 32},
    'act': {'width': 32, 'depth': 1},
    'flow': {'width': 64},
    'flow dit': {'network': 'dit', 'width': 32, 'depth': 2},
    'diffusion': {'width': 16, 'depth': 2},
    'diffusion ddpm': {'width': 16, 'depth': 2, 'sampler': 'ddpm', 'sampling_steps': 25},
    'diffusion transformer': {'network': 'transformer', 'width': 32, 'depth': 2},
}
SAMPLERS = [name for name in MODELS if name.startswith(('flow', 'diffusion'))]


def make_policy(model: str, horizon: int = 4, **changes: Any) -> NetPolicy:
    torch.manual_seed(0)
    plugin = registry.get('policies', model.split()[0])
    settings = config.build(plugin.Config, {**MODELS[model], **changes}, 'test.')
    spec = PolicySpec(model.split()[0], 'x', 1, SPACE, horizon, 0.04, NAMES, max_row_age_s=1.0)
    policy: NetPolicy = plugin(settings, spec)
    return policy


def learn(policy: NetPolicy, side: str, updates: int = 400) -> None:
    """Train on ways that go to the goal, or round it on a side that nobody can foresee."""
    random = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(policy.net.parameters(), lr=3e-3)
    policy.net.train()
    for _ in range(updates):
        inputs = torch.rand((64, 2), generator=random) - 0.5
        actions = torch.zeros((64, policy.spec.horizon, SPACE.size))
        actions[..., 0] = (inputs[:, 1] - inputs[:, 0])[:, None] * 0.8
        if side == 'either':
            left = torch.randint(2, (64,), generator=random)
            actions[..., 1] = (2.0 * left - 1.0)[:, None] * 0.8
        batch = Batch(inputs, actions, torch.ones(actions.shape[:2]))
        loss = policy.loss(batch, random)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.net.eval()


def answers(policy: NetPolicy, values: tuple[float, float], count: int) -> np.ndarray:
    """Return decisions (count, H, A) on one observation."""
    observation, request = serving.example(policy.spec)
    policy.reset(5)
    observation.state[:] = values
    return np.array(
        [serving.answer(policy, observation, request)[-1].actions for _ in range(count)]
    )


@pytest.mark.parametrize('model', MODELS)
def test_each_learns_where_the_goal_is(model: str) -> None:
    policy = make_policy(model)
    learn(policy, 'straight')
    for values in ((-0.3, 0.4), (0.4, -0.1)):
        rows = answers(policy, values, 5)
        wanted = (values[1] - values[0]) * 0.8
        np.testing.assert_allclose(rows[..., 0].mean(0), wanted, atol=0.12)
        assert np.abs(rows[..., 1:]).mean() < 0.12


@pytest.mark.parametrize('model', SAMPLERS)
def test_two_ways_are_not_averaged_into_a_third(model: str) -> None:
    policy = make_policy(model)
    learn(policy, 'either', 800)
    sides = answers(policy, (0.0, 0.2), 40)[..., 1]
    assert (np.abs(sides) > 0.4).mean() > 0.9, 'nearly every row is on one of the sides'
    assert 0.15 < (sides.mean(1) > 0).mean() < 0.85, 'both sides are taken'
    assert np.abs(sides - sides.mean(1, keepdims=True)).mean() < 0.2, 'a chunk stays on its side'


@pytest.mark.parametrize('horizon', [1, 3, 16, 50])
@pytest.mark.parametrize('model', MODELS)
def test_any_horizon_fits(model: str, horizon: int) -> None:
    policy = make_policy(model, horizon)
    assert answers(policy, (0.0, 0.1), 1).shape == (1, horizon, SPACE.size)


def test_a_style_is_drawn_for_samples_only() -> None:
    policy = make_policy('act')
    decisions = answers(policy, (0.1, 0.2), 3)
    np.testing.assert_array_equal(decisions[0], decisions[2])


def test_no_style_is_read_from_rows_beyond_the_end() -> None:
    policy = make_policy('act')
    chunks = torch.rand((3, 4, SPACE.size))
    valid = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    encoded = policy.encode_inputs(torch.rand((3, 2)))
    spoilt = torch.where(valid[..., None] > 0, chunks, 1e3)
    for said, again in zip(
        policy.net.style(encoded, chunks, valid),
        policy.net.style(encoded, spoilt, valid),
        strict=True,
    ):
        torch.testing.assert_close(said, again)


def test_more_steps_than_noise_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match='sampling_steps 30: at most noise_levels, 20'):
        make_policy('diffusion', sampling_steps=30, noise_levels=20)


@pytest.mark.parametrize('model', ['act', 'flow dit', 'diffusion transformer'])
def test_a_width_that_the_heads_do_not_divide_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=r'width 30: must be a multiple of heads, 4'):
        make_policy(model, width=30)


def test_a_width_that_the_groups_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'width 20: must be a multiple of 8'):
        make_policy('diffusion', width=20)
