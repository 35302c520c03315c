"""
Training: chunks are cut honestly, a killed run ends as if it had not been, the command works.
"""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from chunkpilot_core import cli, spaces
from chunkpilot_core.errors import CheckpointError, InvalidDataError
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import (
    checkpoint,
    dataset,
    demonstrations,
    inputs,
    recipe,
    serving,
    training,
    training_report,
)
from chunkpilot_core.policies.runtime.demonstrations import DemonstrationConfig
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
    data = dataset.from_episodes([(values, actions, disturbed)], horizon=4)
    assert len(data) == 6
    batch = data.batch(np.arange(6))
    # row 2 was the expert's wish, but not what was done: nothing after it was foreseen before it
    expected = [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
    ]
    np.testing.assert_array_equal(batch.valid.numpy(), expected)
    np.testing.assert_array_equal(batch.actions[1, :, 0].numpy(), [1, 2, 3, 4])
    np.testing.assert_array_equal(batch.actions[5, :, 0].numpy(), [5, 5, 5, 5])


def test_rows_without_weight_do_not_count() -> None:
    values, actions, _ = make_episode(0)
    weights = np.ones(30, np.float32)
    weights[[4, 29]] = 0.0
    policy, losses = make_policy(), []
    for spoilt in (0.0, 1e6, np.nan):
        actions[[4, 29]] = spoilt
        data = dataset.build([(values, (0, 1))], actions, [30], 4, weights=weights, sha256='')
        assert 29 not in data.starts  # nothing is left of the chunk that begins there
        assert 4 in data.starts
        losses.append(training.evaluate(policy, data, 0))
    assert losses[0] == losses[1] == losses[2] < 100.0


def test_weights_move_what_is_learned() -> None:
    values = np.zeros((200, 2), np.float32)
    actions = np.zeros((200, 4), np.float32)
    actions[100:, 0] = 1.0  # in the second episode the contrary is done in the same situation
    for first, second, learned in ((1.0, 3.0, 1.0), (3.0, 1.0, 0.0)):
        weights = np.repeat([first, second], 100).astype(np.float32)
        table = (values, (0, 1))
        data = dataset.build([table], actions, [100, 100], 4, weights=weights, sha256='')
        policy = make_policy()
        training.train(policy, data, seed=0)
        batch = data.batch(np.arange(1))
        rows = policy.unscale_actions(policy.sample(policy.encode_inputs(batch.inputs), 1, None))
        np.testing.assert_allclose(rows[0, :, 0].detach(), learned, atol=0.1)


def test_chunks_start_only_where_inputs_are_known() -> None:
    values, actions, _ = make_episode(0)
    values[7, 1] = np.nan
    data = dataset.build([(values, (0, 1))], actions, [10, 20], 4, sha256='')
    assert 7 not in data.starts
    assert len(data) == 29
    assert dataset.build([(values, (0,))], actions, [10, 20], 4, sha256='').episodes() == [0, 1]
    assert list(data.only([1]).starts) == list(range(10, 30))


def test_a_normaliser_is_the_same_in_pieces() -> None:
    random = np.random.default_rng(0)
    values = random.normal(5.0, 0.1, (1000, 2)).astype(np.float32)
    rows = random.normal(size=(1000, 4)).astype(np.float32)
    whole = inputs.fit(NAMES, values, rows)
    cuts = [(values[i : i + 77], rows[i : i + 77]) for i in range(0, 1000, 77)]
    pieces = inputs.fit_blocks(NAMES, cuts)
    for name in ('input_mean', 'input_std', 'action_mean', 'action_std'):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-9)
    np.testing.assert_allclose(whole.action_std, rows.std(0), rtol=1e-6)


def test_bad_data_is_refused() -> None:
    values, actions, disturbed = make_episode(0)
    values[3, 0] = np.nan
    with pytest.raises(InvalidDataError, match='not finite'):
        dataset.from_episodes([(values, actions, disturbed)], 4)
    with pytest.raises(InvalidDataError, match='no episodes'):
        dataset.from_episodes([], 4)
    table = (values, (0, 1))
    with pytest.raises(InvalidDataError, match='weights: 29 rows, the episodes have 30'):
        dataset.build([table], actions, [30], 4, weights=np.ones(29, np.float32), sha256='')
    with pytest.raises(InvalidDataError, match='not below 0'):
        dataset.build([table], actions, [30], 4, weights=-np.ones(30, np.float32), sha256='')
    with pytest.raises(InvalidDataError, match='no row of 1 episodes'):
        dataset.build([table], actions, [30], 4, weights=np.zeros(30, np.float32), sha256='')


def test_a_split_holds_out_whole_episodes_by_their_keys() -> None:
    data = dataset.from_episodes([make_episode(seed, 12) for seed in range(40)], 4)
    keys = [f'bag-{number}' for number in range(40)]
    training_data, held_out_data, held_out = recipe.split(data, keys)
    assert len(held_out) == 2
    assert held_out_data.episodes() == held_out
    assert sorted(training_data.episodes() + held_out) == list(range(40))
    *_, again = recipe.split(data, keys[::-1])  # the same bags in another order
    assert {keys[i] for i in held_out} == {keys[::-1][i] for i in again}
    with pytest.raises(InvalidDataError, match='1 of 1 episodes can be learned from, need 2'):
        recipe.split(dataset.from_episodes([make_episode(0)], 4), ['a'])


def test_training_stops_when_held_out_loss_rises_and_keeps_the_best(monkeypatch) -> None:
    monkeypatch.setattr(training, 'EVALUATE_EVERY', 50)
    random = np.random.default_rng(0)
    noisy = []
    for seed in range(6):
        values, actions, disturbed = make_episode(seed)
        noisy.append((values, actions + random.normal(0, 1, actions.shape), disturbed))
    data, held_out = (dataset.from_episodes(part, 4) for part in (noisy[:3], noisy[3:]))
    policy = make_policy(steps=4000)
    history = training.train(policy, data, 0, validation=held_out, patience=5)
    losses = [point.validation for point in history.points]
    assert history.updates < 4000  # it memorises noise
    assert history.updates == history.kept + 5 * 50
    assert history.validation == min(losses) == training.evaluate(policy, held_out, 0)


def test_the_report_tells_errors_by_row_and_column() -> None:
    values, actions, _ = make_episode(0)
    actions[:] = 0.0
    actions[:, 0] = 0.1 * (1 + np.arange(30)) ** 0.5
    startable = np.arange(30) == 0
    data = dataset.build([(values, (0, 1))], actions, [30], 4, startable=startable, sha256='')
    policy = make_policy()
    policy.sample = lambda encoded, count, random: torch.zeros(1, 4, 4)
    history = training.History((training.Point(500, 0.5, float('nan')),), 500, 500, 1000)
    report = training_report.make(policy, data, history, seed=0)
    np.testing.assert_allclose(np.array(report['error'])[:, 0], actions[:4, 0], rtol=1e-6)
    np.testing.assert_allclose(report['row_error'], actions[:4, 0] / 4, rtol=1e-6)
    assert report['doubling_row'] == 3  # the root of 4 is 2
    assert report['doubling_s'] == pytest.approx(0.12)
    assert report['column_error'][1:] == [0.0, 0.0, 0.0]
    files = training_report.files({**report, 'episodes': 2, 'validation_episodes': ['a']})
    page = files[training_report.MARKDOWN].decode()
    assert 'doubles at row 3 (0.12 s)' in page
    assert 'stopped early' in page
    assert json.loads(files[training_report.JSON])['curve'][0]['validation_loss'] is None


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(training, 'SAVE_EVERY', 50)
    monkeypatch.setattr(training, 'EVALUATE_EVERY', 70)
    data = dataset.from_episodes([make_episode(seed) for seed in range(5)], horizon=4)
    held_out = dataset.from_episodes([make_episode(9)], horizon=4)
    whole = make_policy()
    history = training.train(whole, data, 1, validation=held_out)
    assert history.validation < 0.5 * training.evaluate(make_policy(), held_out, 1)  # it learns

    state = tmp_path / 'state'

    def kill(step: int, loss: float) -> None:
        if step == 230:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(
            make_policy(), data, 1, validation=held_out, state_file=state, progress=kill
        )
    steps: list[int] = []
    resumed = make_policy()
    went_on = training.train(
        resumed,
        data,
        1,
        validation=held_out,
        state_file=state,
        progress=lambda step, loss: steps.append(step),
    )
    assert steps == list(range(200, 400))
    assert went_on == history
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(one, other)

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


def test_a_slow_expert_takes_longer_for_the_same_scene(tmp_path: Path) -> None:
    slow = DemonstrationConfig(pace=0.5)
    fast = next(demonstrations.collect('push', 1, 3, tmp_path / 'fast'))
    half = next(demonstrations.collect('push', 1, 3, tmp_path / 'slow', slow))
    assert fast.success
    assert half.success
    assert len(half.rows) > 1.4 * len(fast.rows)
    for episode, top in ((fast, 0.012), (half, 0.006)):
        speed = 0.05 * np.linalg.norm(episode.rows[~episode.disturbed, :3], axis=1)
        assert np.quantile(speed, 0.9) <= 1.05 * top


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
    report = json.loads((out / training_report.JSON).read_text())
    assert np.shape(report['error']) == (16, 4)
    assert report['columns'] == ['arm.x', 'arm.y', 'arm.z', 'gripper']
    assert [point['update'] for point in report['curve']] == [60]
    assert (out / training_report.PICTURE).read_bytes().startswith(b'\x89PNG')
    assert '| arm.x |' in (out / training_report.MARKDOWN).read_text()
    assert [path.name for path in out.parent.iterdir()] == ['short']
