"""
LeRobot datasets: their documented schema, and LeRobot itself where an environment of it is named.

``CHUNKPILOT_LEROBOT_PYTHON=/path/to/python`` of an environment with lerobot 0.4 runs the latter.
"""

import json
import os
from pathlib import Path
import resource
import subprocess
import textwrap
from typing import Any

from chunkpilot_core import cli
from chunkpilot_core.bags import cache
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.lerobot.export import export, ExportOptions
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import EpisodeOutcome, Image
import numpy as np
import pytest

pq = pytest.importorskip('pyarrow.parquet')
pytestmark = pytest.mark.ros
LEROBOT = os.environ.get('CHUNKPILOT_LEROBOT_PYTHON', '')


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory, made: Any) -> Cache:
    """Four episodes; one begins with unknown numbers, one has a hole and fails."""
    folder = tmp_path_factory.mktemp('data')
    paths = []
    for i in range(4):
        recording = made.reaching(i, 30)
        if i == 2:
            recording.features[:5] = np.nan
        if i == 3:
            recording.features[12] = np.nan
            recording.outcome, recording.reward = EpisodeOutcome.FAILURE, 0.0
        for k in range(0, 30, 3):
            pixels = np.full((24, 32, 3), 8 * k, np.uint8)
            recording.images.append((recording.seen_ns[k], Image('front', 0, pixels)))
        paths.append(made.write(folder / f'b{i}', recording))
    return cache.build(paths, folder / 'cache')


@pytest.fixture(scope='module')
def dataset(built: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('out') / 'dataset'
    done = export(built, out, ExportOptions(cameras=('front',)))
    assert (done.episodes, done.frames, done.frames_left_out, done.tasks) == (5, 114, 6, 1)
    return out


def test_it_is_laid_out_as_version_3(dataset: Path) -> None:
    files = sorted(str(f.relative_to(dataset)) for f in dataset.rglob('*') if f.is_file())
    assert files == [
        'data/chunk-000/file-000.parquet',
        'meta/episodes/chunk-000/file-000.parquet',
        'meta/info.json',
        'meta/stats.json',
        'meta/tasks.parquet',
    ]
    info = json.loads((dataset / 'meta/info.json').read_text())
    assert (info['codebase_version'], info['fps']) == ('v3.0', 25)
    assert (info['total_episodes'], info['total_frames'], info['total_tasks']) == (5, 114, 1)
    assert info['splits'] == {'train': '0:5'}
    state = info['features']['observation.state']
    assert state == {
        'dtype': 'float32', 'shape': [4], 'names': ['ee.x', 'ee.y', 'ee.z', 'gripper.width']
    }  # fmt: skip
    assert info['features']['action']['names'] == ['arm.x', 'arm.y', 'arm.z', 'gripper']
    assert info['features']['observation.images.front']['shape'] == [24, 32, 3]
    assert info['chunkpilot']['space']['hash']
    tasks = pq.read_table(dataset / 'meta/tasks.parquet')
    assert tasks.column_names == ['task_index', '__index_level_0__']
    assert tasks.to_pylist() == [{'task_index': 0, '__index_level_0__': 'push it'}]
    assert b'pandas' in tasks.schema.metadata


def test_frames_are_ours(dataset: Path, built: Cache) -> None:
    table = pq.read_table(dataset / 'data/chunk-000/file-000.parquet')
    good = np.isfinite(built.features).all(axis=1)
    for column, expected in (
        ('action', built.actions[good]),
        ('observation.state', built.state[good]),
        ('observation.environment_state', np.hstack([built.features, built.goal])[good]),
    ):
        got = np.array(table[column].to_pylist(), np.float32)
        np.testing.assert_array_equal(got, expected, column)
    assert table['index'].to_pylist() == list(range(114))
    lengths = [30, 30, 25, 12, 17]  # the hole makes two of the last
    assert table['episode_index'].to_pylist() == list(np.repeat(range(5), lengths))
    np.testing.assert_allclose(table['timestamp'][:3].to_pylist(), [0.0, 0.04, 0.08], atol=1e-6)
    ends = np.cumsum(lengths) - 1
    assert np.flatnonzero(table['next.done'].to_pylist()).tolist() == ends.tolist()
    assert np.flatnonzero(table['next.success'].to_pylist()).tolist() == ends[:3].tolist()
    image = table['observation.images.front'][4].as_py()
    assert image['bytes'].startswith(b'\xff\xd8')  # as recorded: nothing is encoded twice


def test_episodes_and_statistics_agree_with_the_data(dataset: Path) -> None:
    table = pq.read_table(dataset / 'data/chunk-000/file-000.parquet')
    episodes = pq.read_table(dataset / 'meta/episodes/chunk-000/file-000.parquet').to_pylist()
    stats = json.loads((dataset / 'meta/stats.json').read_text())
    actions = np.array(table['action'].to_pylist())
    for episode in episodes:
        rows = slice(episode['dataset_from_index'], episode['dataset_to_index'])
        assert set(table['episode_index'][rows].to_pylist()) == {episode['episode_index']}
        assert episode['length'] == rows.stop - rows.start
        np.testing.assert_allclose(episode['stats/action/mean'], actions[rows].mean(axis=0))
        assert episode['stats/action/count'] == [episode['length']]
        assert episode['tasks'] == ['push it']
    np.testing.assert_allclose(stats['action']['mean'], actions.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(stats['action']['std'], actions.std(axis=0), atol=1e-9)
    np.testing.assert_allclose(stats['action']['max'], actions.max(axis=0))
    assert np.shape(stats['observation.images.front']['mean']) == (3, 1, 1)
    assert {'min', 'max', 'mean', 'std', 'count', 'q01', 'q10', 'q50', 'q90', 'q99'} == set(
        stats['timestamp']
    )


def test_what_is_written_is_chosen(built: Cache, tmp_path: Path) -> None:
    left_out = np.zeros(len(built), bool)
    left_out[built.episodes[0].rows] = True
    options = ExportOptions(outcomes='success', features=False, min_frames=26)
    done = export(built, tmp_path / 'a', options, left_out=left_out)
    assert (done.episodes, done.frames, done.episodes_left_out) == (2, 60, 2)
    info = json.loads((tmp_path / 'a/meta/info.json').read_text())
    assert 'observation.environment_state' not in info['features']
    with pytest.raises(BagError, match='exists already'):
        export(built, tmp_path / 'a')
    with pytest.raises(BagError, match='no episode has 99 frames'):
        export(built, tmp_path / 'b', ExportOptions(min_frames=99))
    with pytest.raises(BagError, match="Did you mean 'front'"):
        export(built, tmp_path / 'b', ExportOptions(cameras=('frint',)))
    assert not (tmp_path / 'b').exists()


def test_small_files_are_begun_anew_between_episodes(built: Cache, tmp_path: Path) -> None:
    from chunkpilot_core.bags.lerobot import schema, tables

    features = schema.features(built.state_names, (), built.space, {})
    writer = tables.DatasetWriter(tmp_path, features, 1)
    writer._bytes = 3000
    frames = built.frames(0)
    values = {
        'observation.state': frames.state, 'action': frames.actions,
        'next.reward': np.zeros(30, np.float32), 'next.done': np.zeros(30, bool),
        'next.success': np.zeros(30, bool),
        **{name: np.zeros(30, np.int64) for name in
           ('source', 'frame_index', 'episode_index', 'index', 'task_index')},
        'timestamp': np.zeros(30, np.float32),
    }  # fmt: skip
    for _ in range(3):
        writer.append(values, {}, 'x', {})
    writer.close()
    names = sorted(file.name for file in (tmp_path / 'data/chunk-000').iterdir())
    assert names == ['file-000.parquet', 'file-001.parquet', 'file-002.parquet']
    rows = pq.read_table(tmp_path / 'meta/episodes/chunk-000/file-000.parquet').to_pylist()
    assert [row['data/file_index'] for row in rows] == [0, 1, 2]


def test_the_command(built: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(built.episodes[0].bag).parent
    words = ['export', 'lerobot', str(folder), '--out', str(tmp_path / 'd'), '--json']
    words += ['--cache', str(tmp_path / 'cache'), '--leave-out', 'unknown']
    assert cli.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['episodes'], told['frames']) == (5, 114)
    assert cli.main(words) == 1
    assert 'exists already' in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_behind(built: Cache, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(BagError, match='not written'):
            export(built, tmp_path / 'd')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_export_leaves_nothing_behind(built: Cache, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(built, tmp_path / 'd', progress=interrupt)
    assert not list(tmp_path.iterdir())


LOAD = textwrap.dedent("""
    import json, sys
    import numpy as np
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset('chunkpilot/test', root=sys.argv[1])
    ahead = {'action': [i / data.fps for i in range(4)]}
    chunks = LeRobotDataset('chunkpilot/test', root=sys.argv[1], delta_timestamps=ahead)
    items = [data[i] for i in range(len(data))]
    print(json.dumps({
        'episodes': data.meta.total_episodes,
        'action': [item['action'].tolist() for item in items],
        'state': [item['observation.state'].tolist() for item in items],
        'image': [float(item['observation.images.front'].mean()) * 255 for item in items[:30]],
        'shape': list(items[0]['observation.images.front'].shape),
        'task': items[0]['task'],
        'mean': data.meta.stats['action']['mean'].tolist(),
        'chunk': chunks[0]['action'].tolist(),
        'padded': chunks[len(data) - 2]['action_is_pad'].tolist(),
    }))
""")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not LEROBOT, reason='CHUNKPILOT_LEROBOT_PYTHON names no Python with lerobot')
def test_lerobot_itself_loads_it(dataset: Path, built: Cache, tmp_path: Path) -> None:
    environment = {'PATH': os.environ['PATH'], 'HOME': str(tmp_path), 'HF_HUB_OFFLINE': '1'}
    environment['OMP_NUM_THREADS'] = '1'
    done = subprocess.run(
        [LEROBOT, '-c', LOAD, str(dataset)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    good = np.isfinite(built.features).all(axis=1)
    assert told['episodes'] == 5
    np.testing.assert_array_equal(np.array(told['action'], np.float32), built.actions[good])
    np.testing.assert_array_equal(np.array(told['state'], np.float32), built.state[good])
    np.testing.assert_array_equal(np.array(told['chunk'], np.float32), built.actions[:4])
    assert told['padded'] == [False, False, True, True]
    np.testing.assert_allclose(told['image'], np.repeat(8.0 * np.arange(0, 30, 3), 3), atol=1.5)
    assert (told['shape'], told['task']) == ([3, 24, 32], 'push it')
