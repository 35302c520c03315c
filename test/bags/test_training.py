"""
Training from bags: what is learned of them, from the command to a checkpoint, killed on the way.

The episodes are synthetic: the right action is known, so that what was learned can be judged.
"""

from dataclasses import replace
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time
from typing import Any

from chunkpilot_core import cli, spaces
from chunkpilot_core.bags import cache as caches
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.cache_index import CachedEpisode, Index, Layout
from chunkpilot_core.bags.frames import FrameOptions, Frames
from chunkpilot_core.bags.growing import GrowingArray
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.policies.runtime import checkpoint, recorded, training_report
from chunkpilot_core.policies.runtime.recorded import Selection
from chunkpilot_core.types import (
    EpisodeOutcome,
    ExecutedRows,
    Id,
    Observation,
    PolicySpec,
    RowSource,
    Task,
)
import numpy as np
import pytest
import torch

pytest.importorskip('rclpy')
from chunkpilot.msg import EpisodeEvent, Outcome
from chunkpilot_nodes import convert
from rclpy.serialization import serialize_message

SPACE = spaces.ee_delta_space()
DT_NS = 40_000_000
STATE, FEATURES, GOAL = ('arm.position', 'ee.x'), ('object.x',), ('goal.x',)
GAIN = 2.0


def numbers(seed: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return observed ee.x and goal.x (T, 2), and the actions (T, 4) that are right there."""
    random = np.random.default_rng(seed)
    goal = random.uniform(-0.2, 0.2)
    seen = np.full((rows, 2), goal, np.float32)
    seen[:, 0] = goal + random.uniform(-0.4, 0.4) * 0.9 ** np.arange(rows)
    actions = np.zeros((rows, 4), np.float32)
    actions[:, 0] = GAIN * (seen[:, 1] - seen[:, 0])
    actions[:, 3] = 1.0
    return seen, actions


def write_bag(
    path: Path,
    seed: int,
    *,
    outcome: EpisodeOutcome = EpisodeOutcome.SUCCESS,
    sources: dict[int, RowSource] | None = None,
    actions: np.ndarray | None = None,
    task_kind: str = 'push',
) -> Path:
    """Record the episode of a seed, with the messages that nodes would have sent."""
    seen, right = numbers(seed)
    actions = right if actions is None else actions
    start_ns = 1_000_000_000 * (seed + 1)
    stamps = [start_ns + i * DT_NS for i in range(len(seen))]
    task = Task('t', task_kind, '', GOAL, seen[0, 1:].copy())
    kinds = [(sources or {}).get(i, RowSource.HUMAN) for i in range(len(seen))]
    spec = PolicySpec('mlp', 'p', 1, SPACE, 8, 0.04, ('ee.x',), task_kind, max_row_age_s=1.0)
    info = convert.policy_info_to_msg(
        spec, session=1, stamp_ns=0, state='ready', warm_inference_s=0.0
    )
    with BagWriter(path) as bag:
        _write(bag, 'policy/info', stamps[0], info)
        _write(bag, 'task', stamps[0], convert.task_to_msg(task, stamps[0]))
        event = EpisodeEvent(event=EpisodeEvent.START, episode_id=f'e{seed}', task_id='t')
        _write(bag, 'episode', stamps[0], event)
        for i, stamp_ns in enumerate(stamps):
            state = np.array([0.0, seen[i, 0]], np.float32)
            observation = Observation(
                Id(1, i), stamp_ns, stamp_ns, STATE, state, FEATURES, seen[i, :1], GOAL, task.goal
            )
            _write(bag, 'observation', stamp_ns, convert.observation_to_msg(observation))
        rows = ExecutedRows(
            Id(2, 0),
            stamps[0],
            1,
            Id(3, 0),
            0,
            0.04,
            actions,
            tuple(kinds),
            tuple(stamp_ns + DT_NS for stamp_ns in stamps),
            ('j',),
            np.zeros((len(seen), 1)),
            SPACE.hash,
            't',
            f'e{seed}',
        )
        _write(bag, 'executed_rows', stamps[-1] + DT_NS, convert.executed_rows_to_msg(rows))
        end = Outcome(episode_id=f'e{seed}', outcome=int(outcome), duration_s=1.6)
        _write(bag, 'outcome', stamps[-1] + DT_NS, end)
    return path


def _write(bag: BagWriter, topic: str, stamp_ns: int, msg: Any) -> None:
    package, kind = type(msg).__module__.split('.')[0], type(msg).__name__
    bag.add_topic(topic, f'{package}/msg/{kind}', TopicQos())
    bag.write(topic, stamp_ns, bytes(serialize_message(msg)))


def write_cache(folder: Path, episodes: int, rows: int, features: int = 30) -> Path:
    """Write the cache of many episodes without their bags."""
    names = tuple(f'object.x{i}' for i in range(features))
    frames = _frames(0, rows, names)
    index = Index(FrameOptions(), layout=Layout.of(frames))
    data = index.data(folder)
    data.mkdir(parents=True)
    arrays = {
        name: GrowingArray(data / f'{name}.npy', dtype, tail, 0)
        for name, (dtype, tail) in index.layout.arrays().items()
    }
    for seed in range(episodes):
        frames = _frames(seed, rows, names)
        entry = CachedEpisode.of(frames, f'bag-{seed}', f'{seed:064x}', index.frames)
        index.episodes.append(entry)
        for name, array in arrays.items():
            array.append(getattr(frames, name))
    for array in arrays.values():
        array.commit()
        array.close()
    index.write(folder)
    return folder


def _frames(seed: int, rows: int, names: tuple[str, ...]) -> Frames:
    seen, actions = numbers(seed, rows)
    stamps = np.arange(rows, dtype=np.int64) * DT_NS
    noise = np.random.default_rng(seed).normal(size=(rows, len(names))).astype(np.float32)
    state = np.stack((np.zeros(rows), seen[:, 0]), axis=1).astype(np.float32)
    sources = np.full(rows, RowSource.HUMAN, np.uint8)
    valid, skew = np.ones(rows, bool), np.zeros(rows, np.float32)
    frames = Frames(
        f'e{seed}', 0.04, SPACE, stamps, STATE, state, names, noise, GOAL, seen[:, 1:], actions,
        sources, valid, skew,
    )  # fmt: skip
    return replace(frames, outcome=EpisodeOutcome.SUCCESS, task_kind='push')


@pytest.fixture(scope='module')
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record twelve episodes, of which two fail by doing the contrary."""
    folder = tmp_path_factory.mktemp('bags')
    for seed in range(10):
        write_bag(folder / f'bag-{seed}', seed)
    for seed in (10, 11):
        wrong = -numbers(seed)[1]
        write_bag(folder / f'bag-{seed}', seed, outcome=EpisodeOutcome.FAILURE, actions=wrong)
    return folder


@pytest.fixture(scope='module')
def cache(bags: Path, tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Return the frames of the twelve."""
    return caches.build(sorted(bags.iterdir()), tmp_path_factory.mktemp('cache'))


def test_only_successes_are_learned_unless_all_are_asked_for(cache: Cache) -> None:
    material = recorded.material(cache, 8)
    assert material.names == ('ee.x', 'object.x', 'goal.x')
    assert (material.task_kind, material.space.hash) == ('push', SPACE.hash)
    failed = {i for i, episode in enumerate(cache.episodes) if not episode.success}
    assert len(failed) == 2
    assert set(material.data.episodes()) == set(range(12)) - failed
    assert len(material.source['bags']) == 10
    everything = recorded.material(cache, 8, Selection(outcomes='all'))
    assert everything.data.episodes() == list(range(12))
    seen = everything.data.batch(np.array([0]))
    number = int(cache.episodes[0].id[1:])
    np.testing.assert_allclose(seen.inputs[0, [0, 2]], numbers(number)[0][0], atol=1e-6)


def test_inputs_are_chosen_by_name(cache: Cache) -> None:
    chosen = recorded.material(cache, 8, Selection(inputs=('goal.*', 'ee.x')))
    assert chosen.names == ('ee.x', 'goal.x')
    assert chosen.data.batch(np.arange(3)).inputs.shape == (3, 2)
    with pytest.raises(ConfigError, match=r"unknown input 'ee\.z'. Did you mean 'ee\.x'"):
        recorded.material(cache, 8, Selection(inputs=('ee.z',)))


def test_whose_rows_are_learned(tmp_path: Path) -> None:
    made = {5: RowSource.GUARD, 20: RowSource.DISTURBED, 30: RowSource.POLICY}
    paths = [
        write_bag(tmp_path / 'one', 0, sources=made), write_bag(tmp_path / 'two', 1)
    ]  # fmt: skip
    cache = caches.build(paths, tmp_path / 'cache')
    first = next(episode for episode in cache.episodes if episode.id == 'e0').start

    def valid(selection: Selection, row: int) -> list[float]:
        data = recorded.material(cache, 8, selection).data
        (pick,) = np.flatnonzero(data.starts == first + row)
        return data.batch(np.array([pick])).valid[0].tolist()

    usual = Selection()
    assert valid(usual, 3) == [1, 1, 0, 1, 1, 1, 1, 1]  # without the guard's row
    assert valid(usual, 17) == [1, 1, 1, 0, 0, 0, 0, 0]  # nobody foresaw the push
    assert valid(usual, 25) == [1, 1, 1, 1, 1, 1, 1, 1]
    weighted = Selection(sources=('human', 'policy'), source_weights=(1.0, 0.25))
    assert valid(weighted, 29) == [1, 0.25, 1, 1, 1, 1, 1, 1]
    assert valid(Selection(sources=('guard',)), 3) == [0, 0, 1, 0, 0, 0, 0, 0]
    assert first + 20 not in recorded.material(cache, 8).data.starts


def test_weights_of_a_learner_and_frames_left_out(cache: Cache) -> None:
    weights = np.linspace(0.0, 1.0, len(cache)).astype(np.float32)
    left_out = np.zeros(len(cache), bool)
    left_out[100:110] = True
    data = recorded.material(
        cache, 8, Selection(outcomes='all'), weights=weights, left_out=left_out
    ).data
    np.testing.assert_allclose(data.weights[:100], weights[:100] * cache.valid[:100])
    assert not data.weights[100:110].any()
    assert not set(range(100, 110)) & set(data.starts.tolist())
    with pytest.raises(InvalidDataError, match=r'weights: shape \(3,\), must be'):
        recorded.material(cache, 8, weights=weights[:3])
    with pytest.raises(InvalidDataError, match='not below 0'):
        recorded.material(cache, 8, weights=-weights)


def test_tasks_are_not_mixed(tmp_path: Path) -> None:
    paths = [
        write_bag(tmp_path / f'b{i}', i, task_kind=('push', 'reach')[i > 1]) for i in range(4)
    ]
    cache = caches.build(paths, tmp_path / 'cache')
    with pytest.raises(ConfigError, match='several tasks, choose one: push 2, reach 2'):
        recorded.material(cache, 8)
    chosen = recorded.material(cache, 8, Selection(task='reach'))
    assert chosen.task_kind == 'reach'
    assert {cache.episodes[i].task_kind for i in chosen.data.episodes()} == {'reach'}
    with pytest.raises(ConfigError, match="unknown task in the bags 'reech'"):
        recorded.material(cache, 8, Selection(task='reech'))


def test_failures_alone_are_refused(tmp_path: Path) -> None:
    fail = EpisodeOutcome.FAILURE
    paths = [write_bag(tmp_path / f'b{i}', i, outcome=fail) for i in range(2)]
    cache = caches.build(paths, tmp_path / 'cache')
    with pytest.raises(ConfigError, match='0 of 2 episodes are chosen, need 2; outcomes: failure'):
        recorded.material(cache, 8)


def words(bags: Path, out: Path, *more: str) -> list[str]:
    cache = out.parent / 'frames'
    return ['train', '--policy', 'mlp', '--bags', str(bags), '--out', str(out), '--horizon', '8',
            '--cache', str(cache), *more]  # fmt: skip


def test_the_command_learns_what_was_done(bags: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / 'out'
    options = ('training_steps=500', 'width=32', 'depth=2', 'learning_rate=0.005')
    assert cli.main(words(bags, out, '--set', *options)) == 0
    said = capsys.readouterr().out
    assert '10 of 12 episodes' in said
    assert 'rows by source: human 480\n' in said
    policy = checkpoint.load(out)
    assert policy.spec.task_kind == 'push'
    assert (policy.spec.horizon, policy.spec.dt_s) == (8, 0.04)
    seen, actions = numbers(50)  # a scene that was not recorded
    inputs = torch.from_numpy(np.stack((seen[:, 0], seen[:, 0], seen[:, 1]), axis=1))
    with torch.inference_mode():
        rows = policy.unscale_actions(policy.sample(policy.encode_inputs(inputs), 1, None))
    assert np.abs(rows[:, 0, 0].numpy() - actions[:, 0]).max() < 0.15

    trained = checkpoint.read_manifest(out)['trained']
    assert len(trained['bags']) == 10
    assert all(re.fullmatch('[0-9a-f]{64}', digest) for digest in trained['bags'].values())
    assert {Path(bag).name for bag in trained['bags']} == {f'bag-{i}' for i in range(10)}
    assert trained['command'].startswith(f'chunkpilot train --policy mlp --bags {bags}')
    report = json.loads((out / training_report.JSON).read_text())
    assert report['episodes'] == 10
    assert len(report['validation_episodes']) == 1
    assert np.shape(report['error']) == (8, 4)
    assert report['column_error'][0] < 0.3 * report['column_error_of_mean_row'][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ['frames', 'out']


@pytest.mark.parametrize(
    ('more', 'said'),
    [
        (('--episodes', '3'), '--episodes is of the scripted expert'),
        (('--sources', 'humn'), "Did you mean 'human'"),
        (('--sources', 'human=much'), "--sources 'human=much': must be NAME or NAME=WEIGHT"),
        (('--task', 'reach'), "unknown task in the bags 'reach'"),
        (('--weights', '/dev/null'), '--weights /dev/null'),
        (('--sources', 'human=1e300'), '1e+300'),
        (('--max-skew', '-1'), '--max_skew_s: -1.0 s is below the minimum'),
        (('--bags', '/'), '/: no bag'),
    ],
)
def test_the_command_says_what_is_wrong(bags: Path, tmp_path: Path, capsys, more, said) -> None:
    assert cli.main(words(bags, tmp_path / 'out', *more)) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize('value', [1e300, -1.0, np.nan, np.inf])
@pytest.mark.filterwarnings('error')
def test_weights_that_can_not_be_are_told(bags: Path, tmp_path: Path, capsys, value) -> None:
    np.save(tmp_path / 'w.npy', np.array([1.0, value]))
    assert cli.main(words(bags, tmp_path / 'out', '--weights', str(tmp_path / 'w.npy'))) == 1
    assert f'w.npy: {value}, allowed 0 to 1e+12' in capsys.readouterr().err


def test_a_checkpoint_of_another_command_is_not_replaced(
    bags: Path, tmp_path: Path, capsys
) -> None:
    out, few = tmp_path / 'out', ('--set', 'training_steps=20', 'width=8', 'depth=1')
    assert cli.main(words(bags, out, *few)) == 0
    before = checkpoint.read_manifest(out)
    assert cli.main(words(bags, out, '--seed', '1', *few)) == 1
    said = capsys.readouterr().err
    assert 'not replaced without --replace' in said
    assert before['trained']['command'] in said
    assert checkpoint.read_manifest(out) == before
    assert cli.main(words(bags, out, *few)) == 0  # the same again
    assert cli.main(words(bags, out, '--seed', '1', *few, '--replace')) == 0
    assert checkpoint.read_manifest(out)['trained']['seed'] == 1
    (out / checkpoint.MANIFEST).write_text('[')  # it does not say who made it
    assert cli.main(words(bags, out, *few)) == 1
    assert cli.main(words(bags, out, *few, '--replace')) == 0


def test_options_of_bags_need_bags(tmp_path: Path, capsys) -> None:
    assert cli.main(['train', '--out', str(tmp_path / 'x'), '--outcomes', 'all']) == 1
    assert '--outcomes needs --bags' in capsys.readouterr().err


def test_pauses_are_left_out_on_demand(bags: Path, tmp_path: Path, capsys) -> None:
    still = np.zeros((40, 4), np.float32)  # the hand let go for all the episode
    write_bag(tmp_path / 'bags' / 'still', 20, actions=still)
    both = ('--bags', str(bags), str(tmp_path / 'bags'), '--set', 'training_steps=2', 'width=8')
    assert cli.main(words(bags, tmp_path / 'all', *both)) == 0
    assert '11 of 13 episodes' in capsys.readouterr().out
    assert cli.main(words(bags, tmp_path / 'moving', *both, '--leave-out', 'idle')) == 0
    assert '10 of 13 episodes' in capsys.readouterr().out
    trained = checkpoint.read_manifest(tmp_path / 'moving')['trained']
    assert trained['rows_left_out'] >= 40
    assert '--leave-out idle' in trained['command']
    assert cli.main(words(bags, tmp_path / 'x', '--leave-out', 'idel')) == 1
    assert "Did you mean 'idle'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_that_is_killed_ends_with_the_same_weights(bags: Path, tmp_path: Path) -> None:
    options = ('--set', 'training_steps=1200', 'width=16', 'batch_size=16')
    digests = []
    for name in ('whole', 'killed'):
        out = tmp_path / name / 'out'
        if name == 'killed':
            state = out.with_name('.out.training')
            command = [sys.executable, '-m', 'chunkpilot_core.cli', *words(bags, out, *options)]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ) as process:
                deadline = time.monotonic() + 400.0
                while not state.exists():
                    assert time.monotonic() < deadline
                    assert process.poll() is None
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            assert not out.exists()
        assert cli.main(words(bags, out, *options)) == 0
        manifest = checkpoint.read_manifest(out)
        digests.append((manifest['weights_sha256'], manifest['normalizer_sha256']))
        assert sorted(path.name for path in out.parent.iterdir()) == ['frames', 'out']
    assert digests[0] == digests[1]


TRAIN = """
from pathlib import Path
import sys
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.policies.flow import FlowPolicy
from chunkpilot_core.policies.runtime import recipe, recorded
material = recorded.material(Cache.open(sys.argv[1]), 16)
recipe.train(FlowPolicy, FlowPolicy.Config(training_steps=100), 'x', material, 0)
print(Path('/proc/self/status').read_text())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_hardly_grows_with_the_episodes(tmp_path: Path) -> None:
    own = []
    for episodes in (500, 5000):
        folder = write_cache(tmp_path / str(episodes), episodes, rows=150)
        command = [sys.executable, '-c', TRAIN, str(folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        own.append(int(re.search(r'RssAnon:\s+(\d+) kB', said)[1]) / 1024)
    # Frames of 4,500 episodes are 105 MB, the chunks that overlap in them 220 MB.
    assert own[1] - own[0] < 60.0
