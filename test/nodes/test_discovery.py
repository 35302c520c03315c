"""Which topics are recorded, and what is said of those that can't be, on real DDS."""

from pathlib import Path
import time

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.recorder import Recorder
from chunkpilot_core.errors import BagError
import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot_nodes.discovery import Discovery, Selection  # noqa: E402
from chunkpilot_nodes.tap import Received, Tap  # noqa: E402
from mcap.reader import make_reader  # noqa: E402
from rclpy.node import Node  # noqa: E402
from std_msgs.msg import Int32, String  # noqa: E402

pytestmark = pytest.mark.ros


@pytest.mark.parametrize(
    ('selection', 'chosen'),
    [
        (Selection(), ['/a', '/a/b', '/c']),
        (Selection(('/c', '/_hidden')), ['/_hidden', '/c']),
        (Selection(regex='^/a'), ['/a', '/a/b']),
        (Selection(('/c',), regex='b$'), ['/a/b', '/c']),
        (Selection(exclude=('/a',)), ['/a/b', '/c']),
        (Selection(exclude_regex='a'), ['/c']),
        (Selection(('/a',), exclude=('/a',)), ['/a']),
    ],
)
def test_what_is_chosen(selection: Selection, chosen: list[str]) -> None:
    assert [topic for topic in ('/_hidden', '/a', '/a/b', '/c') if topic in selection] == chosen


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(BagError, match='no regular expression'):
        Selection(regex='(')


def look(discovery: Discovery, topic: str) -> None:
    end = time.monotonic() + 20.0
    while topic not in discovery.followed and topic not in discovery.refused:
        assert time.monotonic() < end
        discovery.look()
        time.sleep(0.05)


def test_the_hash_in_the_bag_is_that_of_the_graph_also_where_definitions_differ(
    nodes: tuple[Node, Node], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sender, listener = nodes
    folder = tmp_path / 'share' / 'std_msgs' / 'msg'
    folder.mkdir(parents=True)
    (folder / 'Int32.msg').write_text('int32 other_name\n')
    recorder = Recorder(Definitions([tmp_path / 'share']))

    def deliver(message: Received) -> None:
        recorder.put(message.topic, message.received_ns, message.cdr)

    tap = Tap(listener, deliver)
    tap.start()
    discovery = Discovery(listener, Selection(('/number',)), recorder, tap)
    publisher = sender.create_publisher(Int32, '/number', 10)
    look(discovery, '/number')
    assert 'another std_msgs/msg/Int32 than this machine' in capfd.readouterr().err
    recorder.start(tmp_path / 'bag', 0)
    while recorder.messages == 0:
        publisher.publish(Int32(data=1))
        time.sleep(0.05)
    tap.close()
    recorder.stop()
    with (tmp_path / 'bag' / 'bag_0.mcap').open('rb') as stream:
        summary = make_reader(stream).get_summary()
    (channel,) = summary.channels.values()
    info = listener.get_publishers_info_by_topic('/number')[0]
    assert channel.metadata['topic_type_hash'] == str(info.topic_type_hash)


def test_a_topic_of_two_types_is_refused_by_name(nodes: tuple[Node, Node]) -> None:
    sender, listener = nodes
    recorder = Recorder()
    tap = Tap(listener, lambda message: None)
    sender.create_publisher(Int32, '/mixed', 10)
    listener.create_publisher(String, '/mixed', 10)
    end = time.monotonic() + 20.0
    while len(dict(listener.get_topic_names_and_types()).get('/mixed', ())) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    discovery = Discovery(listener, Selection(('/mixed',)), recorder, tap)
    look(discovery, '/mixed')
    assert '2 types' in discovery.refused['/mixed']
    tap.close()
