"""Every strategy that a shipped policy can serve solves PickAndPlace in the closed loop."""

from chunkpilot_core import registry, spaces
from chunkpilot_core.eval import runner
from chunkpilot_core.execution.runtime import correction
from chunkpilot_core.policies.runtime import checkpoint
import numpy as np
import pytest
from safetensors.numpy import save_file

SERVED = {
    ('fixed', 'mlp'): {},
    ('upcycling', 'mlp'): {},
    ('auto', 'mlp'): {},
    ('temporal_ensemble', 'mlp'): {},
    ('median_ensemble', 'mlp'): {},
    ('vote', 'flow'): {},
    ('foresight', 'mlp'): {},
    ('foresight', 'flow'): {},
    ('real_time_chunking', 'flow'): {'variant': 'jacobian'},
    ('real_time_chunking', 'flow', 'identity'): {'variant': 'identity'},
    ('bid', 'flow'): {},
    ('corrector', 'mlp'): {},
}
UNSERVED = {'confidence', 'hybrid_waypoint', 'mixture_of_horizons', 'trim'}


def test_no_strategy_is_forgotten() -> None:
    assert {name for name, *_ in SERVED} | UNSERVED == set(registry.names('execution'))


def idle_corrector(file) -> str:
    """Write a corrector that corrects nothing, which is what an untrained one is."""
    space, names = spaces.ee_delta_space(), ('ee.x', 'object.x')
    size = len(names) + space.size
    tensors = {
        '0.weight': np.zeros((space.size, size)),
        '0.bias': np.zeros(space.size),
        'input_mean': np.zeros(len(names)),
        'input_std': np.ones(len(names)),
        'bound': np.full(space.size, 0.05),
    }
    meta = {
        'format': correction.FORMAT,
        'inputs': '["ee.x", "object.x"]',
        'space_hash': space.hash,
    }
    save_file({name: value.astype(np.float32) for name, value in tensors.items()}, file, meta)
    return str(file)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize('case', SERVED, ids='-'.join)
def test_it_solves_pick_and_place(case: tuple[str, ...], tmp_path) -> None:
    name, policy = case[:2]
    options = {'horizon': 8, **SERVED[case]}
    if name == 'corrector':
        options['file'] = idle_corrector(tmp_path / 'corrector.safetensors')
    settings = runner.Settings(
        task='pick_and_place',
        policy=str(checkpoint.find(f'{policy}_pick_and_place')),
        entries=(runner.Entry(name, name, options),),
        episodes=3,
        calibration_episodes=4,
    )
    episodes = runner.run(settings)[name]
    assert sum(episode.success for episode in episodes) >= 2, episodes
    assert sum(episode.starved_ticks for episode in episodes) == 0
    assert sum(episode.chunks_rejected for episode in episodes) == 0, episodes
    assert sum(episode.unanswered for episode in episodes) == 0, episodes
