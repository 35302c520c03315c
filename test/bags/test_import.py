"""Other people's data becomes bags, by a mapping file: LeRobot datasets, MCAP, ROS 1 bags."""

import json
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core import cli
from chunkpilot_core.bags import cache, episodes, frames
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.frames import FrameOptions
from chunkpilot_core.bags.imports import mapping as mappings
from chunkpilot_core.bags.imports.messages import Messages
from chunkpilot_core.bags.imports.run import bring_in
from chunkpilot_core.bags.lerobot.export import export, ExportOptions
from chunkpilot_core.bags.writer import BagWriter
from chunkpilot_core.errors import BagError, ChunkpilotError, ConfigError
from chunkpilot_core.types import EpisodeOutcome, Image, RowSource
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.typesys import get_typestore, Stores
import yaml

pytestmark = pytest.mark.ros
START_NS, DT_NS = 10**18, 50_000_000
LEROBOT_MAP = """
task: {kind: push}
space: ee_delta
outcome_from: next.success
reward_from: next.reward
state:
  - from: observation.state
features:
  - {from: observation.environment_state, index: [0, 1]}
goal:
  - {from: observation.environment_state, index: [2, 3]}
action:
  - from: action
images: {front: observation.images.front}
"""
TOPICS_MAP = """
rate: 20
task: {kind: wipe, text: wipe the table}
outcome: success
split: {gap_s: 1.0}
state:
  - {from: /joint_states, field: position, joints: [b, a], names: [b.position, a.position]}
action:
  - {from: /commands, field: data, index: [0, 1], group: arm, kind: joint_position, names: [b, a]}
  - {from: /commands, field: data, index: [2], group: hand, kind: gripper, unit: m, scale: 0.01}
"""


def write_map(folder: Path, text: str) -> Path:
    file = folder / 'map.yaml'
    file.write_text(text)
    return file


@pytest.fixture(scope='module')
def dataset(tmp_path_factory: pytest.TempPathFactory, made: Any) -> Path:
    folder = tmp_path_factory.mktemp('data')
    paths = []
    for i in range(3):
        recording = made.reaching(i, 20)
        for k in range(20):
            pixels = np.full((24, 32, 3), 10 * k, np.uint8)
            recording.images.append((recording.seen_ns[k], Image('front', 0, pixels)))
        if i == 2:
            recording.outcome, recording.reward = EpisodeOutcome.FAILURE, 0.0
        paths.append(made.write(folder / f'b{i}', recording))
    built = cache.build(paths, folder / 'cache')
    export(built, folder / 'dataset', ExportOptions(cameras=('front',)))
    return folder / 'dataset'


def test_what_went_out_as_lerobot_comes_back_bit_by_bit(
    dataset: Path, tmp_path: Path, made: Any
) -> None:
    done = bring_in('lerobot', dataset, write_map(tmp_path, LEROBOT_MAP), tmp_path / 'bags')
    assert (done.episodes, done.new_episodes, done.rows) == (3, 3, 60)
    paths = episodes.bags(tmp_path / 'bags')
    for i, path in enumerate(paths):
        expected = made.reaching(i, 20)
        found = frames.load(path, FrameOptions(cameras=('front',)))
        np.testing.assert_array_equal(found.actions, expected.rows)
        np.testing.assert_array_equal(found.state, expected.state)
        np.testing.assert_array_equal(found.features, expected.features)
        np.testing.assert_array_equal(found.goal, expected.goal)
        assert found.state_names == made.STATE
        assert found.goal_names == made.GOAL
        assert found.space == made.SPACE
        assert found.valid.all()
        assert set(found.source) == {RowSource.HUMAN}
        assert (found.success, found.reward) == ((i < 2), float(i < 2))
        assert (found.task_kind, found.task_text) == ('push', 'push it')
        brightness = found.images['front'].mean(axis=(1, 2, 3))
        np.testing.assert_allclose(brightness, 10.0 * np.arange(20), atol=1.5)


def test_imported_bags_are_read_by_libraries_that_we_did_not_write(
    dataset: Path, tmp_path: Path
) -> None:
    bring_in('lerobot', dataset, write_map(tmp_path, LEROBOT_MAP), tmp_path / 'bags')
    file = next((tmp_path / 'bags' / 'episode-000001').glob('*.mcap'))
    with file.open('rb') as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        decoded = [(row[1].topic, row[3]) for row in reader.iter_decoded_messages()]
    rows = [message for topic, message in decoded if topic == '/executed_rows']
    assert sum(len(message.stamps) for message in rows) == 20
    assert all(message.episode_id == 'episode-000001' for message in rows)
    assert rows[0].space_hash
    assert [message.event for topic, message in decoded if topic == '/episode'] == [1, 2]


def test_an_import_that_was_killed_goes_on(dataset: Path, tmp_path: Path) -> None:
    file, out = write_map(tmp_path, LEROBOT_MAP), tmp_path / 'bags'

    class Killed(BaseException):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if what == 'episodes' and done == 2:
            raise Killed

    with pytest.raises(Killed):
        bring_in('lerobot', dataset, file, out, kill)
    (out / 'episode-000002.unfinished' / 'episode-000002').mkdir(parents=True)
    done = bring_in('lerobot', dataset, file, out)
    assert (done.episodes, done.new_episodes) == (3, 1)
    assert len(episodes.bags(out)) == 3
    file.write_text(LEROBOT_MAP + 'source: policy\n')
    with pytest.raises(BagError, match='with another mapping'):
        bring_in('lerobot', dataset, file, out)
    with pytest.raises(BagError, match='is not empty'):
        bring_in('lerobot', dataset, file, dataset)


def test_the_command(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ['import', 'lerobot', str(dataset), '--out', str(tmp_path / 'bags'), '--map']
    assert cli.main([*words, str(write_map(tmp_path, LEROBOT_MAP)), '--json']) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['episodes'], told['rows'], told['dt_s']) == (3, 60, 0.04)
    wrong = write_map(tmp_path, LEROBOT_MAP.replace('from: action', 'from: actions'))
    assert cli.main([*words, str(wrong)]) == 1
    assert "Did you mean 'action'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'stat': []}, "Did you mean 'state'"),
        ({'rate': -1}, 'below the minimum'),
        ({'state': {}}, 'state: must be a list'),
        ({'state': []}, 'state and action need an entry'),
        ({'state': [{'form': 'x'}]}, r"Did you mean 'state\[0\]\.from'|state\[0\]"),
        ({'state': [{'names': ['x']}]}, 'needs "from"'),
        ({'action': [{'from': 'a', 'kind': 'joint_positon'}]}, "Did you mean 'joint_position'"),
        ({'images': {'front': 3}}, 'images'),
        ({'task': 'push'}, 'task: must be a map'),
        ({'source': 'humann'}, "Did you mean 'human'"),
        ({'split': {'gap': 1.0}}, "Did you mean 'split.gap_s'"),
    ],
)
def test_a_mapping_that_is_wrong_says_where(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    data = {**yaml.safe_load(TOPICS_MAP), **change}
    with pytest.raises(ConfigError, match=said):
        mappings.load(write_map(tmp_path, yaml.safe_dump(data)))


def test_a_mapping_can_not_run_code_or_be_huge(tmp_path: Path) -> None:
    for text in ('!!python/object/apply:os.system [id]', '[' * 100_000, '- 1'):
        with pytest.raises(ConfigError):
            mappings.load(write_map(tmp_path, text))
    with pytest.raises(ConfigError):
        mappings.load(Path('/dev/zero'))


def signals(count: int) -> list[tuple[int, str, dict[str, Any]]]:
    """Return two episodes of joints at 100 Hz and commands at 20 Hz, two seconds apart."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    for part in range(2):
        begin = START_NS + part * (count * DT_NS + 2 * 10**9)
        for i in range(count * 5):
            at = begin - 20_000_000 + i * 10_000_000
            values = [0.1 * part + 1e-3 * i, -1e-3 * i]
            found.append((at, '/joint_states', {'name': ['a', 'b'], 'position': values}))
        for i in range(count):
            data = np.array([0.01 * i, 0.02 * i, 8.0 - i % 2])
            # a command is sent a little before or after its row begins
            found.append((begin + i * DT_NS + (-1) ** i * 3_000_000, '/commands', {'data': data}))
    return sorted(found, key=lambda entry: entry[0])


def check_topics(out: Path, count: int) -> None:
    paths = episodes.bags(out)
    assert len(paths) == 2
    for part, path in enumerate(paths):
        found = frames.load(path)
        assert found.state_names == ('b.position', 'a.position')
        assert abs(len(found) - count) <= 1
        np.testing.assert_allclose(found.actions[:, 0], 0.01 * np.arange(len(found)), atol=1e-6)
        np.testing.assert_allclose(found.actions[:, 2], 8.0 - np.arange(len(found)) % 2)
        stamps = (found.stamps_ns - (START_NS + part * (count * DT_NS + 2 * 10**9))) / 1e7 + 2
        expected = 0.1 * part + 1e-3 * np.floor(stamps + 1e-6)
        np.testing.assert_allclose(found.state[:, 1], expected, atol=1e-6)
        assert found.success
        assert found.task_text == 'wipe the table'
        groups = {group.name: group for group in found.space.groups}
        assert groups['arm'].names == ('b', 'a')
        assert groups['hand'].scale == (0.01,)
        assert found.space.lower[2] < 7.0 < 8.0 < found.space.upper[2]


def test_topics_of_an_mcap_file(tmp_path: Path) -> None:
    messages = Messages(Definitions())
    types = {'/joint_states': 'sensor_msgs/msg/JointState',
             '/commands': 'std_msgs/msg/Float64MultiArray'}  # fmt: skip
    with BagWriter(tmp_path / 'theirs' / 'one', messages.definitions) as bag:
        for topic, kind in types.items():
            bag.add_topic(topic, kind)
        for stamp_ns, topic, values in signals(30):
            message = messages.make(types[topic], **values)
            bag.write(topic, stamp_ns, messages.serialize(message))
    file = write_map(tmp_path, TOPICS_MAP)
    bring_in('mcap', tmp_path / 'theirs', file, tmp_path / 'bags')
    check_topics(tmp_path / 'bags', 30)
    single = next((tmp_path / 'theirs' / 'one').glob('*.mcap'))
    assert bring_in('mcap', single, file, tmp_path / 'again').episodes == 2
    wrong = write_map(tmp_path, TOPICS_MAP.replace('/commands', '/command'))
    with pytest.raises(BagError, match="Did you mean '/commands'"):
        bring_in('mcap', single, wrong, tmp_path / 'wrong')
    wrong = write_map(tmp_path, TOPICS_MAP.replace('[b, a], names: [b.', '[b, c], names: [b.'))
    with pytest.raises(BagError, match="joint in /joint_states 'c'"):
        bring_in('mcap', single, wrong, tmp_path / 'wrong')
    wrong = write_map(tmp_path, TOPICS_MAP.replace('field: data', 'field: dat'))
    with pytest.raises(BagError, match="Did you mean 'data'"):
        bring_in('mcap', single, wrong, tmp_path / 'wrong')


def test_topics_of_a_ros1_bag(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS1_NOETIC)
    types = {'/joint_states': 'sensor_msgs/msg/JointState',
             '/commands': 'std_msgs/msg/Float64MultiArray'}  # fmt: skip
    (tmp_path / 'theirs').mkdir()
    with Ros1Writer(tmp_path / 'theirs' / 'one.bag') as bag:
        to = {t: bag.add_connection(t, kind, typestore=store) for t, kind in types.items()}
        for seq, (stamp_ns, topic, values) in enumerate(signals(30)):
            bag.write(to[topic], stamp_ns, ros1(store, types[topic], seq, stamp_ns, values))
    bring_in('rosbag1', tmp_path / 'theirs', write_map(tmp_path, TOPICS_MAP), tmp_path / 'bags')
    check_topics(tmp_path / 'bags', 30)
    whole = (tmp_path / 'theirs' / 'one.bag').read_bytes()
    for size in (0, 13, 4000, len(whole) // 2):
        (tmp_path / 'theirs' / 'one.bag').write_bytes(whole[:size])
        with pytest.raises(ChunkpilotError, match=r'one\.bag'):
            bring_in('rosbag1', tmp_path / 'theirs', tmp_path / 'map.yaml', tmp_path / f'x{size}')


def ros1(store: Any, kind: str, seq: int, stamp_ns: int, values: dict[str, Any]) -> bytes:
    types = store.types
    if kind.endswith('JointState'):
        time = types['builtin_interfaces/msg/Time'](stamp_ns // 10**9, stamp_ns % 10**9)
        header = types['std_msgs/msg/Header'](seq, time, '')
        empty = np.zeros(0)
        message = types[kind](header, values['name'], np.array(values['position']), empty, empty)
    else:
        layout = types['std_msgs/msg/MultiArrayLayout']([], 0)
        message = types[kind](layout, values['data'])
    return bytes(store.serialize_ros1(message, kind))


def test_whole_episodes_of_an_incomplete_dataset_are_taken_on_demand(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / 'cut'
    shutil.copytree(dataset, root)
    data = next((root / 'data').rglob('*.parquet'))
    pq.write_table(pq.read_table(data).slice(0, 30), data)  # the second is cut, the third lacks
    words = ['import', 'lerobot', str(root), '--out', str(tmp_path / 'bags'), '--map']
    words.append(str(write_map(tmp_path, LEROBOT_MAP)))
    assert cli.main(words) == 1
    assert '--incomplete' in capsys.readouterr().err
    assert cli.main([*words, '--incomplete', '--json']) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['episodes'], told['rows']) == (1, 20)
    words[1] = 'mcap'
    assert cli.main([*words, '--incomplete']) == 1
    assert '--incomplete is of lerobot' in capsys.readouterr().err


def test_a_dataset_that_lies_is_an_error(dataset: Path, tmp_path: Path) -> None:
    def refuse(said: str, edit: Any) -> None:
        root = tmp_path / f'd{len(list(tmp_path.iterdir()))}'
        shutil.copytree(dataset, root)
        edit(root)
        with pytest.raises(BagError, match=said):
            bring_in('lerobot', root, file, root / 'bags')

    def info(**changes: Any) -> Any:
        def edit(root: Path) -> None:
            data = json.loads((root / 'meta/info.json').read_text())
            (root / 'meta/info.json').write_text(json.dumps({**data, **changes}))

        return edit

    def link(root: Path) -> None:
        data = next((root / 'data').rglob('*.parquet'))
        data.unlink()
        data.symlink_to(next((dataset / 'data').rglob('*.parquet')))

    def cut(root: Path) -> None:
        data = next((root / 'data').rglob('*.parquet'))
        data.write_bytes(data.read_bytes()[:5000])

    def fewer(root: Path) -> None:
        data = next((root / 'data').rglob('*.parquet'))
        pq.write_table(pq.read_table(data).slice(0, 10), data)

    def moved(root: Path) -> None:
        data = next((root / 'data').rglob('*.parquet'))
        table = pq.read_table(data)
        numbers = pa.array([0] * 25 + [1] * 15 + [2] * 20)
        at = table.column_names.index('episode_index')
        pq.write_table(table.set_column(at, 'episode_index', numbers), data)

    def webp(root: Path) -> None:
        data = next((root / 'data').rglob('*.parquet'))
        table = pq.read_table(data)
        name = 'observation.images.front'
        images = pa.array([{'bytes': b'RIFF0000WEBP', 'path': ''}] * len(table))
        pq.write_table(table.set_column(table.column_names.index(name), name, images), data)

    file = write_map(tmp_path, LEROBOT_MAP)
    refuse('10 frames in data, meta/info.json says total_frames 60', fewer)
    refuse('episode 0 has 25 frames, its metadata says 20', moved)
    refuse('3 episodes, meta/info.json says total_episodes 4', info(total_episodes=4))
    refuse('total_frames 61', info(total_frames=61))
    refuse('total_episodes 10{15}, must be a whole number up to', info(total_episodes=10**15))
    refuse('total_frames 10{15}, must be', info(total_frames=10**15))
    refuse("total_frames '60', must be", info(total_frames='60'))
    refuse('must be an object', lambda root: (root / 'meta/info.json').write_text('[1]'))
    refuse('too many digits', lambda root: (root / 'meta/info.json').write_text('9' * 5000))
    refuse('fps 1e\\+300, must be', info(fps=1e300))
    refuse('features .* must be an object', info(features={'action': 5}))
    (tmp_path / 'tasks').mkdir()
    pq.write_table(pa.table({'task': ['x']}), tmp_path / 'tasks/t.parquet')
    broken = (tmp_path / 'tasks/t.parquet').read_bytes()
    refuse('tasks: .*task_index', lambda root: (root / 'meta/tasks.parquet').write_bytes(broken))
    refuse('lengths of the episodes', lambda root: shutil.rmtree(root / 'meta/episodes'))
    features = json.loads((dataset / 'meta/info.json').read_text())['features']
    refuse("format 'v9'", info(codebase_version='v9'))
    refuse('frames per second', info(fps=0))
    refuse('unknown column', info(features={}))
    huge = {**features, 'action': {**features['action'], 'shape': [10**9]}}
    refuse(r'shape \[1000000000\]', info(features=huge))
    state = {**features['observation.state'], 'shape': [3]}
    other = {**features, 'observation.state': state}
    refuse('must hold 3 numbers', info(features=other))
    refuse('leads out of', link)
    refuse('parquet', cut)
    refuse('front: images must be jpeg or png', webp)
    refuse('no such', lambda root: shutil.rmtree(root))
