"""
Training: chunks are cut honestly, a killed run ends as if it had not been, the command works.
"""

from dataclasses import replace
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from chunkpilot_core import cli, spaces
from chunkpilot_core.errors import CheckpointError, InvalidDataError
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import checkpoint, demonstrations, recipe, serving, training
from chunkpilot_core.types import PolicySpec
import numpy as np
import pytest
import torch

NAMES = ('ee.x', 'goal.x')


def make_episode(seed: int, rows: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    values = random.uniform(-0.2, 0.2, (rows, 2)).astype(np.float32)
    actions = np.zeros((rows, 4), np.float32)
    actions[:, 0] = 2.0 * (values[:, 1] - values[:, 0])
    return values, actions, np.zeros(rows, bool)


def make_policy(steps: int = 400) -> MlpPolicy:
    torch.manual_seed(0)
    spec = PolicySpec('mlp', 'x', 1, spaces.ee_delta_space(), 4, 0.04, NAMES, max_row_age_s=1.0)
    config = MlpPolicy.Config(width=32, depth=2, training_steps=steps, batch_size=64)
    return MlpPolicy(config, spec)


def weights(policy: MlpPolicy) -> list[np.ndarray]:
    return [value.numpy() for value in policy.net.state_dict().values()]


def test_chunks_end_with_their_episode_and_with_what_could_be_foreseen() -> None:
    values, actions, disturbed = make_episode(0, rows=6)
    actions[:, 0] = np.arange(6)
    disturbed[2] = True
    data = training.dataset([(values, actions, disturbed)], horizon=4)
    assert len(data) == 6
    # row 2 was the expert's wish, but not what was done: nothing after it was foreseen before it
    expected = [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
    ]
    np.testing.assert_array_equal(data.valid.numpy(), expected)
    np.testing.assert_array_equal(data.actions[1, :, 0].numpy(), [1, 2, 3, 4])
    np.testing.assert_array_equal(data.actions[5, :, 0].numpy(), [5, 5, 5, 5])


def test_masked_rows_do_not_count() -> None:
    data = training.dataset([make_episode(0)], horizon=4)
    spoilt = replace(data, actions=torch.where(data.valid[..., None] > 0, data.actions, 1e6))
    policy = make_policy()
    assert training.evaluate(policy, data, 0) == training.evaluate(policy, spoilt, 0) < 100.0


def test_bad_data_is_refused() -> None:
    values, actions, disturbed = make_episode(0)
    values[3, 0] = np.nan
    with pytest.raises(InvalidDataError, match='not finite'):
        training.dataset([(values, actions, disturbed)], 4)
    with pytest.raises(InvalidDataError, match='no episodes'):
        training.dataset([], 4)


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(training, 'SAVE_EVERY', 50)
    data = training.dataset([make_episode(seed) for seed in range(5)], horizon=4)
    whole = make_policy()
    loss = training.train(whole, data, seed=1)
    assert loss < 0.5 * training.evaluate(make_policy(), data, 0)  # it does learn

    state = tmp_path / 'state'

    def kill(step: int, loss: float) -> None:
        if step == 230:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(make_policy(), data, seed=1, state_file=state, progress=kill)
    steps: list[int] = []
    resumed = make_policy()
    training.train(
        resumed, data, 1, state_file=state, progress=lambda step, loss: steps.append(step)
    )
    assert steps == list(range(200, 400))
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)

    with pytest.raises(CheckpointError, match='other data or settings'):
        training.train(make_policy(), data, seed=2, state_file=state)
    state.write_bytes(b'\x80\x04.')
    with pytest.raises(CheckpointError, match='damaged'):
        training.train(make_policy(), data, seed=1, state_file=state)


def test_inputs_are_those_that_deployment_has() -> None:
    names = ('panda_joint1.position', 'ee.x', 'ee.vx', 'gripper.width', 'object.x', 'object.held')
    names = (*names, 'object.age', 'goal.x')
    assert recipe.input_names(names) == (
        'ee.x', 'ee.vx', 'gripper.width', 'object.x', 'object.held', 'goal.x',
    )  # fmt: skip


def test_demonstrations_depend_on_their_seed_and_are_kept(tmp_path: Path) -> None:
    first = next(demonstrations.collect('push', 1, 3, tmp_path))
    assert first.success
    assert np.isfinite(first.inputs).all()
    assert np.abs(first.rows).max() <= 1.0
    seen = first.select(('object.x', 'object.y'))
    assert np.abs(seen[0]).max() < 0.2
    file = tmp_path / '00000.npz'
    before = file.stat().st_mtime_ns
    again = next(demonstrations.collect('push', 1, 3, tmp_path))
    assert file.stat().st_mtime_ns == before
    file.unlink()
    anew = next(demonstrations.collect('push', 1, 3, tmp_path))
    for one in (again, anew):
        np.testing.assert_array_equal(one.inputs, first.inputs)
        np.testing.assert_array_equal(one.rows, first.rows)
    with pytest.raises(InvalidDataError, match='another task, seed'):
        next(iter(demonstrations.collect('push', 1, 4, tmp_path)))
    file.write_bytes(b'PK')
    with pytest.raises(InvalidDataError, match='damaged'):
        list(demonstrations.collect('push', 1, 3, tmp_path))


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--policy', 'mpl'], "Did you mean 'mlp'"),
        (['--task', 'pick_and_plce'], "Did you mean 'pick_and_place'"),
        (['--set', 'widht=3'], "Did you mean 'mlp.width'"),
        (['--set', 'width=wide'], "'wide' is of type str"),
        (['--set', 'width'], 'NAME=VALUE'),
        (['--episodes', '1'], '--episodes 1: allowed 2 to'),
        (['--seed', '-1'], '--seed -1: allowed 0 to'),
        (['--out', '/tmp'], '--out /tmp: exists and is no checkpoint'),
        (['--out', '/dev/null/x'], '--out /dev/null/x: can not be written'),
        (['--out', '..'], "checkpoint name '..'"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(tmp_path: Path, capsys, words, said) -> None:
    assert cli.main(['train', '--out', str(tmp_path / 'x'), *words]) == 1
    assert said in capsys.readouterr().err


def test_the_command_survives_kill_9_and_its_checkpoint_acts(tmp_path: Path) -> None:
    out = tmp_path / 'policies' / 'short'
    words = ['train', '--policy', 'flow', '--task', 'push', '--episodes', '3', '--seed', '5']
    words += ['--out', str(out), '--demonstrations', str(tmp_path / 'demonstrations')]
    words += ['--set', 'training_steps=60', 'width=32']
    command = [sys.executable, '-m', 'chunkpilot_core.cli', *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ) as process:
        deadline = time.monotonic() + 60.0
        while not (tmp_path / 'demonstrations' / '00001.npz').exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    before = (tmp_path / 'demonstrations' / '00000.npz').stat().st_mtime_ns
    assert cli.main(words) == 0
    assert (tmp_path / 'demonstrations' / '00000.npz').stat().st_mtime_ns == before
    policy, _ = serving.prepare(out, 1, '', time.monotonic_ns)
    assert policy.spec.task_kind == 'push'
    assert 'object.held' in policy.spec.input_names
    trained = checkpoint.read_manifest(out)['trained']
    assert trained['command'].startswith('chunkpilot train --policy flow --task push')
    assert trained['seed'] == 5
    assert [path.name for path in out.parent.iterdir()] == ['short']
