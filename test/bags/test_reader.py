"""Bags as other recorders and machines make them: several files, sqlite3, compressed, no names."""

from collections.abc import Callable
from pathlib import Path
import sqlite3
import struct

from chunkpilot_core.bags.definitions import Definitions, share_folders
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError, UnknownNameError
from mcap.writer import CompressionType, IndexType
from mcap.writer import Writer as McapWriter
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import get_typestore, Stores

STRING, COUNT = 'std_msgs/msg/String', 60
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)


def text(value: str, big_endian: bool = False) -> bytes:
    data = value.encode() + b'\0'
    return (
        bytes([0, not big_endian, 0, 0])
        + struct.pack('>I' if big_endian else '<I', len(data))
        + data
    )


def everything(path: Path, **where: int) -> list[tuple[str, int, str]]:
    with BagReader(path) as bag:
        return [(m.topic, m.stamp_ns, bag.decode(m).data) for m in bag.messages(**where)]


EXPECTED = [('/a' if i % 2 else '/b', 1000 + i, f'number {i}') for i in range(COUNT)]


def by_rosbags(
    path: Path,
    plugin: StoragePlugin,
    mode: CompressionMode = CompressionMode.NONE,
    version: int = 9,
) -> Path:
    store = get_typestore(Stores.ROS2_JAZZY)
    with_compression = Writer(path, version=version, storage_plugin=plugin)
    with_compression.set_compression(mode, CompressionFormat.ZSTD)
    with with_compression as writer:
        connections = {
            topic: writer.add_connection(topic, STRING, typestore=store) for topic in ('/a', '/b')
        }
        for topic, stamp_ns, value in EXPECTED:
            writer.write(connections[topic], stamp_ns, text(value))
    return path


def test_messages_of_one_time_stay_in_the_order_of_their_chunks(tmp_path: Path) -> None:
    values = [f'number {i}' for i in range(COUNT)]
    with BagWriter(tmp_path / 'bag', chunk_bytes=100) as bag:
        bag.add_topic('/a', STRING)
        for value in values:
            bag.write('/a', 1000, text(value))
    assert everything(tmp_path / 'bag') == [('/a', 1000, value) for value in values]


@pytest.mark.parametrize('version', [8, 9])
@pytest.mark.parametrize(
    ('plugin', 'mode'),
    [
        (StoragePlugin.MCAP, CompressionMode.NONE),
        (StoragePlugin.MCAP, CompressionMode.STORAGE),
        (StoragePlugin.MCAP, CompressionMode.MESSAGE),
        (StoragePlugin.MCAP, CompressionMode.FILE),
        (StoragePlugin.SQLITE3, CompressionMode.NONE),
        (StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
        (StoragePlugin.SQLITE3, CompressionMode.FILE),
    ],
)
def test_what_rosbags_writes_is_read(
    tmp_path: Path, plugin: StoragePlugin, mode: CompressionMode, version: int
) -> None:
    path = by_rosbags(tmp_path / 'bag', plugin, mode, version)
    assert everything(path) == EXPECTED
    assert everything(path, start_ns=1010, stop_ns=1020) == EXPECTED[10:20]
    with BagReader(path) as bag:
        assert (bag.start_ns, bag.end_ns, bag.counts) == (1000, 1059, {'/a': 30, '/b': 30})
        known = Definitions()
        known.load(STRING)
        assert bag.details['/a'].definition.hash == known.store.hash_rihs01(STRING)
        assert [m.stamp_ns for m in bag.messages(['/a'])] == list(range(1001, 1060, 2))


@pytest.mark.parametrize('compression', list(CompressionType))
@pytest.mark.parametrize(
    'options',
    [
        {},
        {'use_chunking': False},
        {'index_types': IndexType.NONE},
        {'use_statistics': False},
        {'repeat_channels': False, 'repeat_schemas': False},
        {'use_summary_offsets': False, 'enable_crcs': False},
    ],
    ids=str,
)
def test_any_way_to_write_mcap_is_read(
    tmp_path: Path, compression: CompressionType, options: dict
) -> None:
    file = tmp_path / 'bag.mcap'
    with file.open('wb') as stream:
        writer = McapWriter(stream, chunk_size=300, compression=compression, **options)
        writer.start('ros2')
        schema = writer.register_schema(STRING, 'ros2msg', b'# text\nstring data')
        channels = {name: writer.register_channel(name, 'cdr', schema) for name in ('/a', '/b')}
        for i, (topic, stamp_ns, value) in enumerate(EXPECTED):
            writer.add_message(channels[topic], stamp_ns, text(value, i % 3 == 0), stamp_ns)
        writer.finish()
    assert everything(file) == EXPECTED
    assert everything(file, start_ns=1017, stop_ns=1042) == EXPECTED[17:42]


def test_messages_of_chunks_that_overlap_come_in_order(tmp_path: Path) -> None:
    with BagWriter(tmp_path / 'bag') as bag:
        bag.add_topic('/a', STRING)
        bag.add_topic('/b', STRING)
        late = [*EXPECTED[30:], *EXPECTED[:45:2], *EXPECTED[1:30:2]]
        for number, (topic, stamp_ns, value) in enumerate(late):
            bag.write(topic, stamp_ns, text(value))
            if number % 7 == 6:
                bag.flush()
    got = everything(tmp_path / 'bag')
    assert sorted(got, key=lambda entry: entry[1]) == got
    assert sorted(got) == sorted(late)
    with BagReader(tmp_path / 'bag') as reader:
        assert [m.stamp_ns for m in reader.as_written()] == [entry[1] for entry in late]


def test_a_bag_in_several_files(tmp_path: Path) -> None:
    with BagWriter(tmp_path / 'bag') as bag:
        bag.add_topic('/a', STRING)
        bag.add_topic('/b', STRING, TopicQos(latched=True, depth=3))
        for number, (topic, stamp_ns, value) in enumerate(EXPECTED):
            bag.write(topic, stamp_ns, text(value))
            if number in (20, 40):
                bag.split()
    assert len(list((tmp_path / 'bag').glob('*.mcap'))) == 3
    assert everything(tmp_path / 'bag') == EXPECTED
    assert everything(tmp_path / 'bag', start_ns=1015, stop_ns=1045) == EXPECTED[15:45]
    with BagReader(tmp_path / 'bag') as reader:
        assert reader.counts == {'/a': 30, '/b': 30}
        assert reader.details['/b'].latched
        with pytest.raises(UnknownNameError, match=r"Did you mean '/a'"):
            list(reader.messages(['/aa']))
    single = sorted((tmp_path / 'bag').glob('*.mcap'))[1]
    assert everything(single) == EXPECTED[21:41]


def test_a_database_of_humble_has_no_definitions_and_is_read_by_what_is_installed(
    tmp_path: Path,
) -> None:
    profile = (
        '- history: 3\n  depth: 0\n  reliability: 1\n  durability: 1\n  deadline:\n    sec: 1\n'
        '    nsec: 5\n  lifespan:\n    sec: 9223372036\n    nsec: 854775807\n  liveliness: 1\n'
        '  liveliness_lease_duration:\n    sec: 9223372036\n    nsec: 854775807\n'
        '  avoid_ros_namespace_conventions: false'
    )
    base = sqlite3.connect(tmp_path / 'bag_0.db3')
    base.executescript(
        'CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, '
        'serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);'
        'CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, '
        'timestamp INTEGER NOT NULL, data BLOB NOT NULL);'
    )
    base.execute('INSERT INTO topics VALUES(1, "/a", ?, "cdr", ?)', (STRING, profile))
    base.execute('INSERT INTO topics VALUES(2, "/b", "nowhere/msg/Thing", "cdr", "")')
    base.execute('INSERT INTO messages VALUES(1, 1, 5, ?)', (text('hello'),))
    base.execute('INSERT INTO messages VALUES(2, 2, 6, ?)', (text('what'),))
    base.commit()
    base.close()
    with BagReader(tmp_path / 'bag_0.db3') as bag:
        first, second = bag.messages()
        assert bag.decode(first).data == 'hello'
        assert (bag.details['/a'].latched, bag.details['/a'].qos[0].deadline_ns) == (
            True,
            1_000_000_005,
        )
        with pytest.raises(BagError, match=r'the bag has no definition of nowhere/msg/Thing'):
            bag.decode(second)


def test_texts_of_custom_data_stay_texts(tmp_path: Path) -> None:
    given = {'yes': 'no', 'time': '12:30:00', 'number': '007', 'none': '~x', 'word': 'a: b #c'}
    path = tmp_path / 'bag'
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for key, value in given.items():
            writer.set_custom_data(key, value)
    with BagReader(path) as bag:
        assert bag.metadata == given
        assert (bag.start_ns, bag.end_ns, list(bag.messages())) == (0, 0, [])


def test_types_with_one_name_in_two_bags_do_not_mix(tmp_path: Path) -> None:
    make: Callable[[str, str, bytes], Path] = lambda name, definition, cdr: _one(  # noqa: E731
        tmp_path / name, definition, cdr
    )
    one = make('one.mcap', 'int32 a', b'\0\1\0\0' + struct.pack('<i', 7))
    two = make('two.mcap', 'float64 b', b'\0\1\0\0' + struct.pack('<d', 0.5))
    for _ in range(2):
        for path, field, value in ((one, 'a', 7), (two, 'b', 0.5)):
            with BagReader(path) as bag:
                (message,) = bag.messages()
                assert isinstance(message, Message)
                assert getattr(bag.decode(message), field) == value


def _one(file: Path, definition: str, cdr: bytes) -> Path:
    with file.open('wb') as stream:
        writer = McapWriter(stream)
        writer.start('ros2')
        schema = writer.register_schema('a/msg/B', 'ros2msg', definition.encode())
        writer.add_message(writer.register_channel('/x', 'cdr', schema), 5, cdr, 5)
        writer.finish()
    return file
