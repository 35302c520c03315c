"""
Bags as files: complete, readable by others, recognisable when cut off, honest about the disk.
"""

from collections.abc import Callable
from pathlib import Path
import signal
import subprocess
import sys
import textwrap

from chunkpilot_core.bags.definitions import Definitions, share_folders
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import Command, CommandGroup, Id, Kind, NS_PER_S
from helpers.mcap_files import saved_stamps
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
import numpy as np
import pytest
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
import yaml

STRING, COMMAND = 'std_msgs/msg/String', 'chunkpilot/msg/Command'
pytestmark = pytest.mark.skipif(
    not any((folder / 'chunkpilot').is_dir() for folder in share_folders()),
    reason='definitions of chunkpilot are not in AMENT_PREFIX_PATH: source env.sh',
)


def as_offered(qos: Qos) -> TopicQos:
    """Return what rosbags has read."""
    times = (qos.deadline, qos.lifespan, qos.liveliness_lease_duration)
    deadline_ns, lifespan_ns, lease_ns = (time.sec * NS_PER_S + time.nsec for time in times)
    return TopicQos(
        qos.reliability != QosReliability.BEST_EFFORT,
        qos.durability == QosDurability.TRANSIENT_LOCAL,
        qos.depth,
        qos.history == QosHistory.KEEP_ALL,
        deadline_ns,
        lifespan_ns,
        qos.liveliness == QosLiveliness.MANUAL_BY_TOPIC,
        lease_ns,
    )


@pytest.fixture(scope='module')
def definitions() -> Definitions:
    known = Definitions()
    for name in (STRING, COMMAND):
        known.load(name)
    return known


@pytest.fixture
def string(definitions: Definitions) -> Callable[[str], bytes]:
    kind = definitions.store.types[STRING]
    return lambda text: bytes(definitions.store.serialize_cdr(kind(text), STRING))


def command(seq: int) -> bytes:
    """Serialise a real message as the middleware does."""
    serialization = pytest.importorskip('rclpy.serialization')
    from chunkpilot_nodes import convert

    values = np.array([0.1, np.pi, -1e300])
    group = CommandGroup('arm', Kind.EE_POSE, values, np.zeros(3), names=('x', 'y', 'z'))
    sent = Command(Id(2**64 - 1, seq), 12_000_000_034, 7, (group,))
    return bytes(serialization.serialize_message(convert.command_to_msg(sent)))


def test_a_bag_reads_back_in_libraries_that_we_did_not_write(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    commands = [command(i) for i in range(100)]  # once: their padding is not the same again
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING, TopicQos(latched=True, depth=0))
        bag.add_topic('/command', COMMAND, TopicQos(reliable=False))
        for i in range(100):
            bag.write('/text', 1000 + 2 * i, string(f'number {i}'))
            bag.write('/command', 1001 + 2 * i, commands[i])
    assert sorted(path.name for path in tmp_path.iterdir()) == ['bag']

    with (tmp_path / 'bag' / 'bag_0.mcap').open('rb') as stream:
        rows = list(
            make_reader(stream, decoder_factories=[DecoderFactory()]).iter_decoded_messages()
        )
    assert [row[2].log_time for row in rows] == list(range(1000, 1200))
    assert rows[0][3].data == 'number 0'
    last = rows[-1][3]
    assert (last.id.session, last.id.seq, last.header.stamp.sec) == (2**64 - 1, 99, 12)
    assert list(last.groups[0].values) == [0.1, np.pi, -1e300]
    assert list(last.groups[0].names) == ['x', 'y', 'z']
    assert {row[0].encoding for row in rows} == {'ros2msg'}

    with Reader(tmp_path / 'bag') as reader:
        raw = [bytes(data) for c, _, data in reader.messages() if c.topic == '/command']
        qos = {c.topic: c.ext.offered_qos_profiles[0] for c in reader.connections}
    assert raw == commands
    assert (qos['/text'].durability.value, qos['/text'].depth) == (1, 1)
    assert qos['/command'].reliability.value == 2


def test_metadata_is_version_9_with_custom_data(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    bag = BagWriter(tmp_path / 'bag', definitions)
    bag.add_topic('/text', STRING)
    bag.write('/text', 5_000_000_000, string('a'))
    bag.write('/text', 7_000_000_000, string('b'))
    assert bag.close({'outcome': 'success'}) == tmp_path / 'bag'
    text = (tmp_path / 'bag' / 'metadata.yaml').read_text()
    info = yaml.safe_load(text)['rosbag2_bagfile_information']
    assert (info['version'], info['storage_identifier'], info['message_count']) == (9, 'mcap', 2)
    assert info['duration']['nanoseconds'] == 2_000_000_000
    assert info['relative_file_paths'] == ['bag_0.mcap']
    assert info['custom_data'] == {'outcome': 'success'}
    topic = info['topics_with_message_count'][0]['topic_metadata']
    assert topic['type_description_hash'].startswith('RIHS01_')
    with BagReader(tmp_path / 'bag') as reader:
        assert reader.metadata == {'outcome': 'success'}
        assert reader.topics == {'/text': STRING}
        assert [reader.decode(m).data for m in reader.messages(['/text'])] == ['a', 'b']
        with pytest.raises(UnknownNameError, match="Did you mean '/text'"):
            list(reader.messages(['/txt']))


def test_an_empty_bag_is_a_bag(tmp_path: Path, definitions: Definitions) -> None:
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING)
    with BagReader(tmp_path / 'bag') as reader:
        assert list(reader.messages()) == []


def test_refusals_say_why(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING)
        with pytest.raises(BagError, match='type std_msgs/msg/String, not chunkpilot'):
            bag.add_topic('/text', COMMAND)
        with pytest.raises(BagError, match='no definition of nowhere/msg/Thing'):
            bag.add_topic('/thing', 'nowhere/msg/Thing')
        with pytest.raises(BagError, match='is no message type'):
            bag.add_topic('/thing', '../msg/passwd')
        with pytest.raises(BagError, match='/other was not announced'):
            bag.write('/other', 0, string('x'))
    with pytest.raises(BagError, match='exists already'):
        BagWriter(tmp_path / 'bag', definitions)
    with pytest.raises(BagError, match='nothing'):
        BagReader(tmp_path / 'nothing')


def test_a_damaged_bag_is_an_error_not_a_crash(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING)
        for i in range(1000):
            bag.write('/text', i, string(f'{i}' * 50))
    file = tmp_path / 'bag' / 'bag_0.mcap'
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 3):
        file.write_bytes(whole[:size])
        with pytest.raises(BagError, match='bag'), BagReader(tmp_path / 'bag') as reader:
            list(reader.messages())


KILLED = textwrap.dedent("""
    import sys, time
    from chunkpilot_core.bags.definitions import Definitions
    from chunkpilot_core.bags.writer import BagWriter
    definitions = Definitions()
    bag = BagWriter(sys.argv[1], definitions)
    bag.add_topic('/text', 'std_msgs/msg/String')
    kind = definitions.store.types['std_msgs/msg/String']
    for i in range(2200):
        text = kind(f'{i} ' + 'x' * 1000)
        cdr = definitions.store.serialize_cdr(text, 'std_msgs/msg/String')
        bag.write('/text', i * 1_000_000, bytes(cdr))
        if i == 1999:
            bag.flush()
    print('enough', flush=True)
    time.sleep(60)
""")


def test_kill_9_leaves_an_unfinished_bag_with_everything_flushed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', KILLED, str(tmp_path / 'bag')], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == 'enough\n'
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert [path.name for path in tmp_path.iterdir()] == ['bag.unfinished']
    for name in ('bag', 'bag.unfinished'):
        with pytest.raises(BagError, match='cut off'):
            BagReader(tmp_path / name)
    saved = saved_stamps(tmp_path / 'bag.unfinished' / 'bag' / 'bag_0.mcap')
    assert saved == [i * 1_000_000 for i in range(2000)]


def write_split(path: Path, definitions: Definitions, string: Callable[[str], bytes]) -> None:
    with BagWriter(path, definitions) as bag:
        bag.add_topic('/text', STRING, TopicQos(reliable=False))
        for i in range(300):
            if i in (100, 200):
                assert bag.split() == bag.file
            if i == 150:
                bag.add_topic('/late', STRING)
            if i >= 150:
                bag.write('/late', 10 * i + 5, string(f'late {i}'))
            bag.write('/text', 10 * i, string(f'number {i}'), published_ns=10 * i - 3 if i else 0)


def test_a_bag_of_several_files_reads_back_as_one(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    path = tmp_path / 'run'
    write_split(path, definitions, string)
    assert sorted(file.name for file in path.iterdir()) == [
        'metadata.yaml',
        'run_0.mcap',
        'run_1.mcap',
        'run_2.mcap',
    ]
    info = yaml.safe_load((path / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert info['relative_file_paths'] == [f'run_{n}.mcap' for n in range(3)]
    files = info['files']
    assert [file['path'] for file in files] == info['relative_file_paths']
    assert [file['message_count'] for file in files] == [100, 150, 200]
    starts = [file['starting_time']['nanoseconds_since_epoch'] for file in files]
    assert starts == [0, 1000, 2000]
    assert [file['duration']['nanoseconds'] for file in files] == [990, 995, 995]
    assert (info['message_count'], info['duration']['nanoseconds']) == (450, 2995)
    assert info['starting_time']['nanoseconds_since_epoch'] == 0
    expected = [f'number {i}' for i in range(300)]

    with Reader(path) as reader:
        connections = [c for c in reader.connections if c.topic == '/text']
        raw = [bytes(data) for _, _, data in reader.messages(connections)]
        assert reader.message_count == 450
    assert raw == [string(text) for text in expected]

    with BagReader(path) as bag:
        assert [bag.decode(m).data for m in bag.messages(['/text'])] == expected
        assert bag.counts == {'/text': 300, '/late': 150}

    got = []
    for number in range(3):  # each file stands alone
        with (path / f'run_{number}.mcap').open('rb') as stream:
            found = make_reader(stream, validate_crcs=True, decoder_factories=[DecoderFactory()])
            rows = list(found.iter_decoded_messages(topics=['/text']))
            summary = found.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.message_count == files[number]['message_count']
        got += [(row[2].log_time, row[2].publish_time, row[3].data) for row in rows]
    assert got == [(10 * i, max(10 * i - 3, 0), text) for i, text in enumerate(expected)]


def test_metadata_says_what_another_writer_says(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    stamps = (5_000_000_000, 7_000_000_000)
    with BagWriter(tmp_path / 'ours' / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING, TopicQos(latched=True, depth=1))
        bag.add_topic('/none', STRING, TopicQos(reliable=False))
        for stamp_ns in stamps:
            bag.write('/text', stamp_ns, string('a'))
    theirs = Writer(tmp_path / 'theirs' / 'bag', version=9, storage_plugin=StoragePlugin.MCAP)
    with Reader(tmp_path / 'ours' / 'bag') as reader, theirs:
        for connection in reader.connections:
            made = theirs.add_connection(
                connection.topic,
                connection.msgtype,
                typestore=definitions.store,
                offered_qos_profiles=connection.ext.offered_qos_profiles,
            )
            if connection.topic == '/text':
                for stamp_ns in stamps:
                    theirs.write(made, stamp_ns, string('a'))
    about = [
        yaml.safe_load((tmp_path / whose / 'bag' / 'metadata.yaml').read_text())
        for whose in ('ours', 'theirs')
    ]
    for data in about:
        info = data['rosbag2_bagfile_information']
        del info['ros_distro']
        info['relative_file_paths'] = [name[-5:] for name in info['relative_file_paths']]
        info['files'][0]['path'] = info['files'][0]['path'][-5:]
    assert about[0] == about[1]


def test_channels_carry_the_type_hash_and_all_offered_qualities_of_service(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    offered = (TopicQos(depth=3, deadline_ns=1_500_000_000), TopicQos(reliable=False, depth=0))
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING, offered)
        bag.add_topic('/command', COMMAND)
        bag.write('/text', 1, string('a'))
    with (tmp_path / 'bag' / 'bag_0.mcap').open('rb') as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    channels = {channel.topic: channel for channel in summary.channels.values()}
    for topic, type_name in (('/text', STRING), ('/command', COMMAND)):
        digest = definitions.store.hash_rihs01(type_name)
        assert channels[topic].metadata['topic_type_hash'] == digest
    text = (tmp_path / 'bag' / 'metadata.yaml').read_text()
    info = yaml.safe_load(text)['rosbag2_bagfile_information']
    about = info['topics_with_message_count'][0]['topic_metadata']
    assert about['type_description_hash'] == definitions.store.hash_rihs01(STRING)
    profiles = yaml.safe_load(channels['/text'].metadata['offered_qos_profiles'])
    assert profiles == about['offered_qos_profiles']
    assert [profile['depth'] for profile in profiles] == [3, 1]
    assert [profile['reliability'] for profile in profiles] == ['reliable', 'best_effort']
    assert profiles[0]['deadline'] == {'sec': 1, 'nsec': 500_000_000}
    assert profiles[1]['deadline'] == {'sec': 9223372036, 'nsec': 854775807}
    with Reader(tmp_path / 'bag') as reader:
        (connection,) = (c for c in reader.connections if c.topic == '/text')
        read = tuple(as_offered(qos) for qos in connection.ext.offered_qos_profiles)
    assert read == (offered[0], TopicQos(reliable=False, depth=1))


def test_a_definition_that_is_not_installed_is_taken_as_given(
    tmp_path: Path, definitions: Definitions
) -> None:
    given = Definition('other_msgs/msg/Level', 'ros2msg', 'float32 level\n', 'RIHS01_' + '0' * 64)
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/level', given.type_name, definition=given)
        bag.write('/level', 1, b'\x00\x01\x00\x00\x00\x00\x80\x3f')
    with (tmp_path / 'bag' / 'bag_0.mcap').open('rb') as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        ((schema, channel, _, decoded),) = reader.iter_decoded_messages()
    assert (schema.name, schema.data.decode()) == (given.type_name, given.text)
    assert channel.metadata['topic_type_hash'] == given.hash
    assert decoded.level == 1.0


def test_times_that_no_bag_can_hold_are_refused(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    bag = BagWriter(tmp_path / 'bag', definitions)
    bag.add_topic('/text', STRING)
    for stamp_ns, sent_ns in ((-1, 0), (2**63, 0), (0, -1)):
        with pytest.raises(BagError, match='time'):
            bag.write('/text', stamp_ns, string('a'), sent_ns)
    bag.write('/text', 2**63 - 1, string('a'), 0)
    bag.close()


LIMITED = textwrap.dedent("""
    import os, resource, sys
    from chunkpilot_core.bags.definitions import Definitions
    from chunkpilot_core.bags.writer import BagWriter
    from chunkpilot_core.errors import BagError
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    definitions = Definitions()
    bag = BagWriter(sys.argv[1], definitions, chunk_bytes=50_000)
    bag.add_topic('/text', 'std_msgs/msg/String')
    kind = definitions.store.types['std_msgs/msg/String']
    try:
        for i in range(1000):
            text = kind(os.urandom(5_000).hex())
            cdr = definitions.store.serialize_cdr(text, 'std_msgs/msg/String')
            bag.write('/text', i, bytes(cdr))
            if i == 50:
                bag.split()
    except BagError as error:
        print(error)
    bag.salvage({'error': 'full'})
    print(bag.messages)
""")


def test_what_was_written_before_an_error_is_made_a_bag(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-c', LIMITED, str(tmp_path / 'bag')],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told, count = done.stdout.splitlines()
    assert 'not written: File too large' in told
    with BagReader(tmp_path / 'bag') as bag:
        stamps = [message.stamp_ns for message in bag.messages()]
        assert bag.metadata['error'] == 'full'
    assert stamps == list(range(int(count)))
    assert 51 < len(stamps) < 1000
    with Reader(tmp_path / 'bag') as reader:
        assert reader.message_count == len(stamps)
