"""
Bags as files: complete, readable by others, recognisable when cut off, honest about the disk.
"""

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import signal
import subprocess
import sys
import textwrap

from chunkpilot_core.bags.definitions import Definitions, share_folders
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.recorder import Recorder
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import Command, CommandGroup, Id, Kind
from mcap.reader import make_reader
from mcap.stream_reader import StreamReader
from mcap_ros2.decoder import DecoderFactory
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
import yaml

STRING, COMMAND = 'std_msgs/msg/String', 'chunkpilot/msg/Command'
pytestmark = pytest.mark.skipif(
    not any((folder / 'chunkpilot').is_dir() for folder in share_folders()),
    reason='definitions of chunkpilot are not in AMENT_PREFIX_PATH: source env.sh',
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
    with BagWriter(tmp_path / 'bag', definitions) as bag:
        bag.add_topic('/text', STRING, TopicQos(latched=True, depth=0))
        bag.add_topic('/command', COMMAND, TopicQos(reliable=False))
        for i in range(100):
            bag.write('/text', 1000 + 2 * i, string(f'number {i}'))
            bag.write('/command', 1001 + 2 * i, command(i))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['bag']

    with (tmp_path / 'bag' / 'bag.mcap').open('rb') as stream:
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
    assert raw == [command(i) for i in range(100)]
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
    assert info['relative_file_paths'] == ['bag.mcap']
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
    file = tmp_path / 'bag' / 'bag.mcap'
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 3):
        file.write_bytes(whole[:size])
        with pytest.raises(BagError, match='bag'), BagReader(tmp_path / 'bag') as reader:
            list(reader.messages())


KILLED = textwrap.dedent("""
    import itertools, sys, time
    from chunkpilot_core.bags.definitions import Definitions
    from chunkpilot_core.bags.writer import BagWriter
    definitions = Definitions()
    bag = BagWriter(sys.argv[1], definitions)
    bag.add_topic('/text', 'std_msgs/msg/String')
    kind = definitions.store.types['std_msgs/msg/String']
    for i in itertools.count():
        text = kind(f'{i} ' + 'x' * 1000)
        cdr = definitions.store.serialize_cdr(text, 'std_msgs/msg/String')
        bag.write('/text', i * 1_000_000, bytes(cdr))
        if i == 2000:
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
    with (tmp_path / 'bag.unfinished' / 'bag' / 'bag.mcap').open('rb') as stream:
        saved = []
        try:
            for record in StreamReader(stream).records:
                if type(record).__name__ == 'Message':
                    saved.append(record.log_time)
        except Exception:
            pass
    assert len(saved) > 2000 - 300  # chunks of 256 kB
    assert saved == [i * 1_000_000 for i in range(len(saved))]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / 'disk'
    folder.mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f'mount is not possible: {mounted.stderr.decode().strip()}')
    yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)


def test_a_full_disk_is_an_error_and_no_success(
    small_disk: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/text', STRING)
    recorder.start(small_disk / 'bag', 0)
    noise = np.random.default_rng(0).integers(33, 126, (400, 10_000), np.uint8)
    for i, row in enumerate(noise):
        recorder.put('/text', i, string(row.tobytes().decode()))
    with pytest.raises(BagError, match='No space left on device'):
        recorder.stop()
    assert 'No space left' in recorder.error
    assert [path.name for path in small_disk.iterdir()] == ['bag.unfinished']
    with pytest.raises(BagError, match=r'No space left|exists already'):
        recorder.start(small_disk / 'bag', 0)
    assert recorder.path is None


def test_a_folder_that_cannot_be_written_refuses_to_start(
    tmp_path: Path, definitions: Definitions
) -> None:
    (tmp_path / 'file').write_text('in the way')
    with pytest.raises(BagError, match='not written'):
        Recorder(definitions).start(tmp_path / 'file' / 'bag', 0)


def test_each_bag_starts_with_the_latched_messages(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/state', STRING, TopicQos(latched=True))
    recorder.add_topic('/text', STRING)
    recorder.put('/state', 1, string('old'))
    recorder.put('/state', 2, string('armed'))
    recorder.put('/text', 3, string('before the bag'))
    for number in (1, 2):
        recorder.start(tmp_path / f'bag{number}', 10 * number)
        recorder.put('/text', 10 * number + 1, string(f'in bag {number}'))
        done = recorder.stop({'number': str(number)})
        assert (done.messages, done.dropped) == (2, 0)
        with BagReader(done.path) as bag:
            got = [(m.topic, m.stamp_ns, bag.decode(m).data) for m in bag.messages()]
            assert bag.metadata == {'number': str(number), 'dropped_messages': '0'}
        assert got == [
            ('/state', 10 * number, 'armed'),
            ('/text', 10 * number + 1, f'in bag {number}'),
        ]
    with pytest.raises(BagError, match='no bag is being recorded'):
        recorder.stop()


def test_a_full_queue_drops_and_counts(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions, max_queue_bytes=5_000)
    recorder.add_topic('/text', STRING)
    recorder.start(tmp_path / 'bag', 0)
    for i in range(100):  # faster than the thread wakes up
        recorder.put('/text', i, string('x' * 1000))
    assert recorder.dropped > 0
    done = recorder.stop()
    assert done.messages + done.dropped == 100
    with BagReader(done.path) as bag:
        assert sum(bag.counts.values()) == done.messages
        assert bag.metadata['dropped_messages'] == str(done.dropped)


def test_nothing_is_lost_at_5000_messages_a_second(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/text', STRING)
    recorder.start(tmp_path / 'bag', 0)
    data = string('x' * 1000)
    for i in range(5000):
        recorder.put('/text', i * 200_000, data)
    done = recorder.stop()
    assert (done.messages, done.dropped) == (5000, 0)
    assert os.path.getsize(done.path / 'bag.mcap') < 5_000_000  # compressed
