"""
Recording in a thread: nothing waits for the disk, nothing is lost unsaid, every file stands alone.
"""

from collections.abc import Callable
from pathlib import Path
import signal
import subprocess
import sys
import textwrap
import time

from chunkpilot_core.bags.definitions import Definitions, share_folders
from chunkpilot_core.bags.information import ERROR, REPEATED
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.recorder import Limits, Recorder
from chunkpilot_core.bags.repair import repair
from chunkpilot_core.bags.writer import TopicQos
from chunkpilot_core.errors import BagError
from helpers.mcap_files import saved_stamps
from mcap.reader import make_reader
import numpy as np
import pytest
from rosbags.rosbag2 import Reader

STRING = 'std_msgs/msg/String'
LATCHED = TopicQos(latched=True, depth=1)
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)


@pytest.fixture(scope='module')
def definitions() -> Definitions:
    known = Definitions()
    known.load(STRING)
    return known


@pytest.fixture
def string(definitions: Definitions) -> Callable[[str], bytes]:
    kind = definitions.store.types[STRING]
    return lambda text: bytes(definitions.store.serialize_cdr(kind(text), STRING))


def noise(count: int, size: int = 10_000) -> list[str]:
    """Texts that do not compress to nothing."""
    rows = np.random.default_rng(0).integers(33, 126, (count, size), np.uint8)
    return [row.tobytes().decode() for row in rows]


def wait(until: Callable[[], bool], duration_s: float = 10.0) -> None:
    end = time.monotonic() + duration_s
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize('limits', [Limits(), Limits(max_bytes=300_000)], ids=['one', 'split'])
def test_a_full_disk_ends_recording_at_once_and_leaves_a_readable_bag(
    small_disk: Path, definitions: Definitions, string: Callable[[str], bytes], limits: Limits
) -> None:
    recorder = Recorder(definitions, limits=limits)
    recorder.add_topic('/text', STRING)
    recorder.start(small_disk / 'bag', 0)
    texts = noise(400)
    for i, text in enumerate(texts):
        recorder.put('/text', i, string(text))
    wait(lambda: bool(recorder.error))  # before anybody asks
    assert 'No space left on device' in recorder.error
    assert str(small_disk / 'bag') in recorder.error
    with pytest.raises(BagError, match='No space left on device'):
        recorder.split()
    with pytest.raises(BagError, match='No space left on device'):
        recorder.stop()
    assert recorder.path is None
    assert [path.name for path in small_disk.iterdir()] == ['bag']
    with BagReader(small_disk / 'bag') as bag:
        got = [bag.decode(message).data for message in bag.messages()]
        assert 'No space left' in bag.metadata[ERROR]
    assert 20 < len(got) < 400  # a MB holds 120 of them
    assert got == texts[: len(got)]
    assert f'{len(got)} messages' in recorder.error
    with Reader(small_disk / 'bag') as reader:
        assert reader.message_count == len(got)
    with pytest.raises(BagError, match=r'No space left|exists already'):
        recorder.start(small_disk / 'bag', 0)
    assert recorder.path is None


def test_a_disk_that_was_full_refuses_the_next_bag(
    small_disk: Path, definitions: Definitions
) -> None:
    with pytest.raises(OSError, match='No space'):
        (small_disk / 'rest').write_bytes(bytes(2_000_000))
    recorder = Recorder(definitions)
    recorder.add_topic('/text', STRING)
    with pytest.raises(BagError, match='No space left'):
        recorder.start(small_disk / 'bag', 0)
    assert [path.name for path in small_disk.iterdir()] == ['rest']
    (small_disk / 'rest').unlink()
    recorder.start(small_disk / 'bag', 0)
    assert recorder.stop().messages == 0


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
    recorder.add_topic('/state', STRING, LATCHED)
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


def test_what_came_before_the_start_stays_out_unless_it_is_in_force(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/state', STRING, LATCHED)
    recorder.add_topic('/text', STRING)
    recorder.start(tmp_path / 'bag', 1000)
    for topic, stamp_ns in (('/text', 999), ('/state', 999), ('/text', 1000)):
        recorder.put(topic, stamp_ns, string('a'))
    wait(lambda: recorder.messages == 2)
    time.sleep(1.0)
    recorder.put('/text', 500, string('b'))  # a clock that was set back
    done = recorder.stop()
    assert files_of(done.path) == [[(500, 500, 'b'), (999, 999, 'a'), (1000, 1000, 'a')]]


def test_what_came_before_the_news_of_a_start_is_in_the_bag(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/state', STRING, LATCHED)
    recorder.add_topic('/text', STRING)
    for stamp_ns in (1, 5_000_000_000, 5_100_000_000, 5_200_000_000):
        recorder.put('/text', stamp_ns, string('a'))
    recorder.put('/state', 5_150_000_000, string('s'))
    recorder.start(tmp_path / 'bag', 5_100_000_000)
    recorder.put('/text', 5_300_000_000, string('b'))
    done = recorder.stop()
    stamps = [stamp_ns for stamp_ns, _, _ in files_of(done.path)[0]]
    assert stamps == [5_100_000_000, 5_100_000_000, 5_200_000_000, 5_300_000_000]
    recorder.put('/text', 6_000_000_000, bytes(40 * 1024 * 1024))  # more than is remembered
    recorder.start(tmp_path / 'next', 5_900_000_000)
    assert recorder.stop().messages == 1


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
    assert (done.path / 'bag_0.mcap').stat().st_size < 1_000_000  # compressed


def files_of(path: Path) -> list[list[tuple[int, int, str]]]:
    """Log time, publish time and text of each message of each file."""
    found = []
    for number in range(len(list(path.glob('*.mcap')))):
        with (path / f'{path.name}_{number}.mcap').open('rb') as stream:
            rows = make_reader(stream).iter_messages()
            found.append([(m.log_time, m.publish_time, m.data[8:-1].decode()) for _, _, m in rows])
    return found


def test_every_file_of_a_bag_begins_with_the_latched_messages_in_force(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions, limits=Limits(max_ns=1000))
    recorder.add_topic('/state', STRING, LATCHED)
    recorder.add_topic('/text', STRING)
    recorder.put('/state', 5, string('idle'), 4)
    recorder.start(tmp_path / 'bag', 10)
    for stamp_ns, topic, text in (
        (20, '/text', 'a'),
        (500, '/state', 'armed'),
        (1000, '/text', 'b'),
        (1010, '/text', 'c'),
        (1200, '/state', 'held'),
        (2300, '/text', 'd'),
    ):
        recorder.put(topic, stamp_ns, string(text), stamp_ns - 1)
    done = recorder.stop()
    assert files_of(done.path) == [
        [(10, 4, 'idle'), (20, 19, 'a'), (500, 499, 'armed'), (1000, 999, 'b')],
        [(1010, 499, 'armed'), (1010, 1009, 'c'), (1200, 1199, 'held')],
        [(2300, 1199, 'held'), (2300, 2299, 'd')],
    ]
    with BagReader(done.path) as bag:
        assert bag.metadata[REPEATED] == '1010 2300'
        once = [(m.stamp_ns, bag.decode(m).data) for m in bag.messages()]
        assert len(list(bag.messages(repeated=True))) == sum(bag.counts.values()) == 9
    expected = ['idle', 'a', 'armed', 'b', 'c', 'held', 'd']
    assert once == list(zip([10, 20, 500, 1000, 1010, 1200, 2300], expected, strict=True))


def test_bags_are_split_by_size_and_on_demand(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions, limits=Limits(max_bytes=400_000))
    recorder.add_topic('/text', STRING)
    texts = noise(150)
    recorder.start(tmp_path / 'bag', 0)
    for i, text in enumerate(texts):
        recorder.put('/text', i, string(text))
    named = recorder.split()
    recorder.put('/text', 1000, string('after'))
    done = recorder.stop()
    files = sorted(done.path.glob('*.mcap'), key=lambda file: int(file.stem.split('_')[1]))
    assert len(files) > 3
    assert named.name == files[-1].name
    assert all(file.stat().st_size < 420_000 for file in files)  # limit + index
    assert all(file.stat().st_size > 250_000 for file in files[:-2])
    with BagReader(done.path) as bag:
        assert [bag.decode(m).data for m in bag.messages()] == [*texts, 'after']
    assert [text for *_, text in files_of(done.path)[-1]] == ['after']
    with pytest.raises(BagError, match='no bag is being recorded'):
        recorder.split()


def test_whatever_ends_the_thread_is_an_error_and_the_next_bag_is_whole(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/text', STRING)
    recorder.start(tmp_path / 'bag', 0)
    recorder.put('/text', 1, string('a'))
    recorder.put('/text', 2, 'no bytes')  # type: ignore[arg-type]
    with pytest.raises(BagError, match='TypeError'):
        recorder.split()
    with pytest.raises(BagError, match='TypeError'):
        recorder.stop()
    recorder.start(tmp_path / 'next', 0)
    recorder.put('/text', 3, string('b'))
    assert files_of(recorder.stop().path) == [[(3, 3, 'b')]]


def test_of_a_topic_with_several_latched_publishers_each_ones_last_message_is_kept(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.add_topic('/tf_static', STRING, (LATCHED, LATCHED))
    for i, text in enumerate(['arm', 'camera', 'camera moved']):
        recorder.put('/tf_static', i, string(text))
    recorder.start(tmp_path / 'bag', 10)
    done = recorder.stop()
    assert files_of(done.path) == [[(10, 0, 'arm'), (10, 1, 'camera'), (10, 2, 'camera moved')]]


def test_a_topic_that_appears_while_recording_is_recorded(
    tmp_path: Path, definitions: Definitions, string: Callable[[str], bytes]
) -> None:
    recorder = Recorder(definitions)
    recorder.start(tmp_path / 'bag', 0)
    recorder.add_topic('/state', STRING, LATCHED)
    recorder.put('/state', 1, string('a'))
    recorder.split()
    recorder.put('/state', 2, string('b'))
    done = recorder.stop()
    assert files_of(done.path) == [[(1, 1, 'a')], [(2, 1, 'a'), (2, 2, 'b')]]


KILLED = textwrap.dedent("""
    import sys, time
    from chunkpilot_core.bags.recorder import Recorder
    recorder = Recorder()
    recorder.add_topic('/text', 'std_msgs/msg/String')
    recorder.start(sys.argv[1], 0)
    for i in range(int(sys.argv[2])):
        recorder.put('/text', time.time_ns(), bytes(100))
        time.sleep(0.002)
    print(time.time_ns(), flush=True)
    while True:
        time.sleep(0.002)
        recorder.put('/text', time.time_ns(), bytes(100))
        if len(sys.argv) > 3:
            time.sleep(60)
""")


def killed(path: Path, *words: str, after_s: float) -> tuple[list[int], int, int]:
    """Kill a recorder; returns the stamps in its file, when it was told, when it was killed."""
    process = subprocess.Popen(
        [sys.executable, '-c', KILLED, str(path), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = int(process.stdout.readline())
    time.sleep(after_s)
    now = time.time_ns()
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    file = path.with_name(f'{path.name}.unfinished') / path.name / f'{path.name}_0.mcap'
    return saved_stamps(file), told, now


def test_kill_9_in_motion_costs_the_last_second_at_most(tmp_path: Path) -> None:
    saved, _, now = killed(tmp_path / 'bag', '300', after_s=1.0)
    assert len(saved) > 300
    assert 0 < now - saved[-1] < 1_000_000_000 + int(np.diff(saved).max())  # a busy machine
    repaired = repair(tmp_path / 'bag.unfinished', tmp_path / 'repaired')
    with BagReader(repaired.path) as bag:
        assert [message.stamp_ns for message in bag.messages()] == saved


def test_what_came_last_is_flushed_though_nothing_follows(tmp_path: Path) -> None:
    saved, told, _ = killed(tmp_path / 'bag', '10', 'and rest', after_s=1.0)
    assert len(saved) == 11
    assert saved[-1] > told
