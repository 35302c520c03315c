"""The trainer learns from successes, releases versions that are no worse, and survives kills."""

from dataclasses import replace
import json

from chunkpilot_core import spaces
from chunkpilot_core.errors import CapabilityError, CheckpointError
from chunkpilot_core.learning.behaviour_cloning import BehaviourCloning
from chunkpilot_core.learning.runtime.episodes import Episode
from chunkpilot_core.learning.runtime.trainer import Trainer, TrainerConfig
from chunkpilot_core.learning.runtime.versions import VersionStore
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.types import EpisodeOutcome, nanoseconds, PolicySpec, RowSource
import numpy as np
import pytest
import torch

SPACE = spaces.ee_delta_space()
NAMES = ('ee.x', 'ee.y', 'goal.x', 'goal.y')


def _policy(name: str = 'reacher', horizon: int = 4) -> MlpPolicy:
    torch.manual_seed(0)
    spec = PolicySpec(
        'mlp', name, 1, SPACE, horizon, 0.04, NAMES, task_kind='reach', max_row_age_s=0.6
    )
    return MlpPolicy(MlpPolicy.Config(width=32, depth=2), spec)


def _episode(seed: int, outcome=EpisodeOutcome.SUCCESS, source=RowSource.POLICY) -> Episode:
    """Return a reach in a straight line at constant speed, seen and sent at 25 Hz."""
    random = np.random.default_rng(seed)
    start, goal = random.uniform(-0.15, 0.15, (2, 2))
    count = 40
    stamps = nanoseconds(0.04) * np.arange(1, count + 1)
    places = start + np.linspace(0, 1, count)[:, None] * (goal - start)
    targets = np.column_stack((places, np.full(count, 0.2), np.full(count, 0.08)))
    inputs = np.column_stack((places, np.tile(goal, (count, 1)))).astype(np.float32)
    return Episode(
        f'e{seed}',
        't',
        outcome,
        inputs,
        stamps,
        targets,
        stamps - nanoseconds(0.04),
        stamps,
        np.full(count, source, np.uint8),
    )


@pytest.fixture(name='base')
def _base(tmp_path):
    folder = tmp_path / 'base'
    checkpoint.save(_policy(), folder)
    return folder


def _trainer(tmp_path, base, rate: float = 1e-3, **options) -> Trainer:
    store = VersionStore(tmp_path / 'versions', base)
    config = BehaviourCloning.Config(learning_rate=rate, batch_size=64)
    return Trainer(BehaviourCloning(config, store.policy), store, TrainerConfig(**options))


def _run(trainer: Trainer) -> list:
    versions = []
    while not trainer.idle:
        version = trainer.work()
        if version is not None:
            versions.append(version)
    return versions


def test_learning_releases_a_better_version_that_loads(tmp_path, base) -> None:
    trainer = _trainer(tmp_path, base, min_examples=100, episodes_per_version=8, utd=1.0)
    for seed in range(8):
        trainer.add(_episode(seed))
    (version,) = _run(trainer)
    assert version.accepted
    assert (version.version, version.parent) == (2, 1)
    assert version.metrics['held_out_loss'] < 0.9 * version.metrics['parent_held_out_loss']
    loaded = checkpoint.load(version.path, sha256=version.sha256)
    assert loaded.spec.version == 2
    assert loaded.normalizer.sha256 == version.normalizer_sha256
    assert trainer.success.value == 1.0
    # learning goes on from what was accepted
    assert trainer._learner.held_out_loss() == pytest.approx(version.metrics['held_out_loss'])
    # held-out episodes are not trained on, and updates stay under the cap
    assert trainer.examples <= 6 * 40
    assert trainer.updates <= trainer.examples


def test_failures_and_the_guards_rows_are_not_imitated(tmp_path, base) -> None:
    trainer = _trainer(tmp_path, base, min_examples=1, episodes_per_version=1)
    trainer.add(_episode(0, EpisodeOutcome.FAILURE))
    trainer.add(_episode(1, EpisodeOutcome.ABORTED))
    trainer.add(_episode(2, source=RowSource.GUARD))
    assert _run(trainer) == []
    assert (trainer.examples, trainer.updates, trainer.episodes) == (0, 0, 3)
    assert (trainer.success.value, trainer.success.low < 0.1) == (0.5, True)


def test_a_worse_version_is_written_but_not_followed(tmp_path, base) -> None:
    trainer = _trainer(tmp_path, base, rate=0.1, min_examples=1, episodes_per_version=4)
    before = {k: v.clone() for k, v in trainer.store.policy.net.state_dict().items()}
    learner = trainer._learner
    for seed in range(4):
        trainer.add(_episode(seed))
    while trainer.updates < 2:
        trainer.work()
    with torch.no_grad():  # as an update gone wrong would
        learner._policy.net.last.weight.fill_(3.0)
    versions = []
    while not versions:
        versions = [version for version in [trainer.work()] if version]
        trainer._credit = 0.0
    assert not versions[0].accepted
    assert 'not at most' in versions[0].reason
    assert trainer.store.newest.version == 1
    for name, value in learner.export().net.state_dict().items():
        assert torch.equal(value, before[name])


def test_numbers_go_up_over_restarts_damage_and_rejection(tmp_path, base) -> None:
    def released() -> int:
        # What four reaches teach depends on how the CPU rounds: numbers are what counts here.
        options = {'min_examples': 1, 'episodes_per_version': 4, 'tolerance': 0.5}
        trainer = _trainer(tmp_path, base, **options)
        for seed in range(4):
            trainer.add(_episode(seed))
        (version,) = _run(trainer)
        assert version.accepted
        return version.version

    assert [released(), released()] == [2, 3]
    folder = tmp_path / 'versions/reacher'
    (folder / 'v000003/weights.safetensors').write_bytes(b'cut short by kill -9')
    (folder / '.v000004.1234.new').mkdir()  # what a kill in the middle of writing leaves
    store = VersionStore(tmp_path / 'versions', base)
    assert store.newest.version == 2
    assert 'v000003' in store.damaged
    assert released() == 4
    manifest = json.loads((folder / 'v000004/manifest.json').read_text())
    assert manifest['parent'] == 2


def test_versions_of_another_base_are_not_resumed(tmp_path, base) -> None:
    trainer = _trainer(tmp_path, base, min_examples=1, episodes_per_version=4)
    for seed in range(4):
        trainer.add(_episode(seed))
    assert _run(trainer)
    retrained = _policy()
    with torch.no_grad():
        retrained.net.last.bias += 0.1
    for other, reason in ((_policy(horizon=5), 'horizon'), (retrained, 'weights')):
        checkpoint.save(other, base)
        store = VersionStore(tmp_path / 'versions', base)
        assert store.newest.version == 1
        assert reason in store.damaged['v000002']


def test_same_data_same_weights(tmp_path, base) -> None:
    learned = []
    for name in ('a', 'b'):
        trainer = _trainer(tmp_path / name, base, min_examples=1, episodes_per_version=4)
        for seed in range(4):
            trainer.add(_episode(seed))
        learned.append(_run(trainer)[0].sha256)
    assert learned[0] == learned[1]


def test_without_held_out_episodes_nothing_is_accepted(tmp_path, base) -> None:
    trainer = _trainer(tmp_path, base, min_examples=1, episodes_per_version=1)
    trainer.add(_episode(0))
    (version,) = _run(trainer)
    assert not version.accepted
    assert 'no held-out' in version.reason


def test_a_missing_base_says_so(tmp_path) -> None:
    with pytest.raises(CheckpointError, match='nowhere'):
        VersionStore(tmp_path, tmp_path / 'nowhere')


def test_a_policy_without_network_is_refused() -> None:
    class Scripted:
        spec = replace(_policy().spec, policy='scripted')

    with pytest.raises(CapabilityError, match='scripted'):
        BehaviourCloning(BehaviourCloning.Config(), Scripted())
