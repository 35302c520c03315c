"""recorder_node as a real process: services, one bag per episode, errors that are told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import Command, EpisodeEvent, Outcome, Task  # noqa: E402
from chunkpilot.srv import RecorderSplit, RecorderStart, RecorderStop  # noqa: E402
from chunkpilot_core.bags import episodes  # noqa: E402
from chunkpilot_core.bags.definitions import Definitions  # noqa: E402
from chunkpilot_core.bags.reader import BagReader  # noqa: E402
from chunkpilot_core.types import EpisodeOutcome  # noqa: E402
from chunkpilot_nodes import qos  # noqa: E402
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus  # noqa: E402
import domain_coordinator  # noqa: E402
from helpers.mcap_files import saved_stamps  # noqa: E402
from mcap.reader import make_reader  # noqa: E402
from mcap_ros2.decoder import DecoderFactory  # noqa: E402
from rclpy.duration import Duration  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402
from std_msgs.msg import Float64MultiArray, String  # noqa: E402
import yaml  # noqa: E402

pytestmark = pytest.mark.ros


class Graph:
    """A recorder process in a domain of its own, and who publishes there."""

    def __init__(self, domain: int, folder: Path, **options: object) -> None:
        self.folder = folder
        self.log = folder.parent / 'recorder.log'
        options |= {'directory': folder, 'stop_after_s': 0.2}
        words = [word for name in options for word in ('-p', f'{name}:={options[name]}')]
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'chunkpilot_nodes.recorder_node', '--ros-args', *words],
            stderr=subprocess.STDOUT,
            stdout=self.log.open('w'),
            env={
                **os.environ,
                'ROS_DOMAIN_ID': str(domain),
                'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
            },
        )
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('publisher', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        create = self.node.create_publisher
        self.command = create(Command, 'command', qos.COMMAND)
        self.image = create(CompressedImage, 'camera/front/image/compressed', qos.IMAGES)
        self.task = create(Task, 'task', qos.LATCHED)
        self.episode = create(EpisodeEvent, 'episode', qos.LATCHED)
        self.outcome = create(Outcome, 'outcome', qos.LATCHED)
        self.publishers = [self.command, self.image, self.task, self.episode, self.outcome]
        self.start = self.node.create_client(RecorderStart, 'recorder/start')
        self.stop = self.node.create_client(RecorderStop, 'recorder/stop')
        self.split = self.node.create_client(RecorderSplit, 'recorder/split')
        self.plots: list[Float64MultiArray] = []
        self.node.create_subscription(
            Float64MultiArray, 'plot/recorder', self.plots.append, qos.RELIABLE_10
        )

    def wait(self, until: Callable[[], bool], duration_s: float = 15.0) -> None:
        end = time.monotonic() + duration_s
        while not until():
            assert time.monotonic() < end, self.log.read_text()
            self.executor.spin_once(timeout_sec=0.02)

    def call(self, client, request):
        future = client.call_async(request)
        self.wait(future.done)
        return future.result()

    def send_commands(self, count: int, first: int = 0) -> None:
        for i in range(first, first + count):
            msg = Command(arm_epoch=i)
            msg.id.seq = i
            self.command.publish(msg)
            self.image.publish(CompressedImage(format='jpeg', data=bytes(3000)))
            self.executor.spin_once(timeout_sec=0.005)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@contextmanager
def running(folder: Path, **options: object) -> Iterator[Graph]:
    """Start a recorder of one's own and wait until it follows the publishers."""
    with domain_coordinator.domain_id() as domain:
        found = Graph(domain, folder, **options)
        try:
            ready = [publisher.get_subscription_count for publisher in found.publishers]
            found.wait(lambda: all(count() for count in ready) and found.stop.service_is_ready())
            yield found
        finally:
            found.close()


@pytest.fixture(scope='module')
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    with running(tmp_path_factory.mktemp('recorder') / 'bags') as found:
        yield found
        if found.process.poll() is None:
            found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(10) == 0


def test_start_and_stop_by_service(graph: Graph) -> None:
    graph.task.publish(Task(id='t1', kind='push'))
    graph.send_commands(5)
    reply = graph.call(
        graph.start, RecorderStart.Request(name='by_hand', keys=['who'], values=['me'])
    )
    assert (reply.success, reply.path) == (True, str(graph.folder / 'by_hand'))
    again = graph.call(graph.start, RecorderStart.Request(name='other'))
    assert not again.success
    assert 'is being recorded' in again.message
    graph.send_commands(200, first=100)
    done = graph.call(graph.stop, RecorderStop.Request(keys=['note'], values=['fine']))
    assert (done.success, done.dropped, done.path) == (True, 0, reply.path)
    with BagReader(done.path) as bag:
        assert bag.metadata['who'] == 'me'
        assert bag.metadata['note'] == 'fine'
        assert sum(bag.counts.values()) == done.messages
        epochs = [bag.decode(m).arm_epoch for m in bag.messages(['/command'])]
        assert epochs == list(range(100, 300))
        assert bag.counts['/camera/front/image/compressed'] > 150
        assert next(bag.decode(m).id for m in bag.messages(['/task'])) == 't1'
    assert not graph.call(graph.stop, RecorderStop.Request()).success


def test_type_hashes_are_those_of_the_graph(graph: Graph) -> None:
    known = Definitions()
    for topic in ('command', 'episode', 'task'):
        info = graph.node.get_publishers_info_by_topic(topic)[0]
        known.load(info.topic_type)
        assert known.store.hash_rihs01(info.topic_type) == str(info.topic_type_hash)


def test_bag_names_stay_inside_of_the_folder(graph: Graph) -> None:
    for name in ('../outside', '/tmp/outside', '.hidden', 'a b'):
        reply = graph.call(graph.start, RecorderStart.Request(name=name))
        assert not reply.success
        assert 'bag name' in reply.message


def test_names_of_bags_that_are_there_are_not_taken_again(graph: Graph) -> None:
    (graph.folder / 'same.unfinished').mkdir()  # somebody killed the recorder
    for expected in ('same-2', 'same-3'):
        reply = graph.call(graph.start, RecorderStart.Request(name='same'))
        assert (reply.success, Path(reply.path).name) == (True, expected)
        assert graph.call(graph.stop, RecorderStop.Request()).success


def test_every_episode_has_a_bag_of_its_own(graph: Graph) -> None:
    for number in (1, 2):
        name, task = f'episode/{number}', f'task-{number}'
        graph.task.publish(Task(id=task, kind='push'))
        graph.episode.publish(
            EpisodeEvent(event=EpisodeEvent.START, episode_id=name, task_id=task)
        )
        beside = graph.folder / f'episode_{number}.unfinished'
        graph.wait(beside.exists)
        graph.send_commands(20)
        graph.outcome.publish(
            Outcome(episode_id=name, outcome=Outcome.SUCCESS, reason='there', reward=1.0)
        )
        graph.episode.publish(EpisodeEvent(event=EpisodeEvent.END, episode_id=name))
        graph.wait((graph.folder / f'episode_{number}').exists)
    for number in (1, 2):
        path = graph.folder / f'episode_{number}'
        episode = episodes.load(path)
        assert (episode.id, episode.outcome) == (f'episode/{number}', EpisodeOutcome.SUCCESS)
        assert episode.task is not None
        assert episode.task.id == f'task-{number}'
        with BagReader(path) as bag:
            assert bag.metadata['outcome'] == 'success'
            assert bag.counts['/command'] == 20


def test_a_folder_that_is_gone_is_reported(graph: Graph) -> None:
    moved = graph.folder.with_name('moved')
    graph.folder.rename(moved)
    graph.folder.write_text('in the way')
    try:
        reply = graph.call(graph.start, RecorderStart.Request(name='nowhere'))
        assert not reply.success
        assert str(graph.folder) in reply.message
    finally:
        graph.folder.unlink()
        moved.rename(graph.folder)
    reply = graph.call(graph.start, RecorderStart.Request(name='here'))
    assert reply.success
    assert graph.call(graph.stop, RecorderStop.Request()).success


def test_the_channels_of_a_bag_say_what_the_graph_says(graph: Graph) -> None:
    deadline = QoSProfile(depth=7, deadline=Duration(seconds=1, nanoseconds=500_000_000))
    best_effort = QoSProfile(depth=3, reliability=ReliabilityPolicy.BEST_EFFORT)
    publishers = [graph.node.create_publisher(String, 'twice', q) for q in (deadline, best_effort)]
    graph.wait(lambda: all(publisher.get_subscription_count() for publisher in publishers))
    assert graph.call(graph.start, RecorderStart.Request(name='told')).success
    for number, publisher in enumerate(publishers):
        publisher.publish(String(data=str(number)))
    graph.send_commands(20)
    done = graph.call(graph.stop, RecorderStop.Request())
    with (graph.folder / 'told' / 'told_0.mcap').open('rb') as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        rows = list(reader.iter_decoded_messages())
        summary = reader.get_summary()
    assert len(rows) == done.messages
    channels = {channel.topic: channel for channel in summary.channels.values()}
    for topic in ('/command', '/camera/front/image/compressed', '/episode', '/twice'):
        info = graph.node.get_publishers_info_by_topic(topic)[0]
        assert channels[topic].metadata['topic_type_hash'] == str(info.topic_type_hash)
    profiles = yaml.safe_load(channels['/twice'].metadata['offered_qos_profiles'])
    assert sorted(p['reliability'] for p in profiles) == ['best_effort', 'reliable']
    (reliable,) = (p for p in profiles if p['reliability'] == 'reliable')
    assert reliable['deadline'] == {'sec': 1, 'nsec': 500_000_000}
    assert sorted(row[3].data for row in rows if row[1].topic == '/twice') == ['0', '1']
    commands = [row for row in rows if row[1].topic == '/command']
    assert [row[3].arm_epoch for row in commands] == list(range(20))
    for _, _, message, _ in commands:
        assert 0 < message.log_time - message.publish_time < 1_000_000_000
    numbers = [row[2].sequence for row in commands]
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    for publisher in publishers:
        graph.node.destroy_publisher(publisher)


def test_a_bag_goes_on_in_the_next_file_on_demand(graph: Graph) -> None:
    graph.task.publish(Task(id='t9', kind='push'))
    graph.send_commands(2)
    assert not graph.call(graph.split, RecorderSplit.Request()).success
    assert graph.call(graph.start, RecorderStart.Request(name='long')).success
    graph.send_commands(20)
    reply = graph.call(graph.split, RecorderSplit.Request())
    assert (reply.success, Path(reply.path).name) == (True, 'long_1.mcap')
    graph.send_commands(20, first=20)
    done = graph.call(graph.stop, RecorderStop.Request())
    assert (done.success, done.dropped) == (True, 0)
    with BagReader(graph.folder / 'long') as bag:
        assert [bag.decode(m).arm_epoch for m in bag.messages(['/command'])] == list(range(40))
        assert bag.metadata['lost_messages'] == '0'
    for number in (0, 1):
        with (graph.folder / 'long' / f'long_{number}.mcap').open('rb') as stream:
            reader = make_reader(stream, decoder_factories=[DecoderFactory()])
            (task,) = (row[3].id for row in reader.iter_decoded_messages(['/task']))
            assert task == 't9'


def test_what_is_dropped_can_be_plotted(graph: Graph) -> None:
    graph.wait(lambda: bool(graph.plots))
    names = graph.plots[-1].layout.dim[0].label.split()
    numbers = dict(zip(names, graph.plots[-1].data, strict=True))
    assert numbers['dropped_total'] == 0
    assert 'lost_total' in numbers
    assert numbers['topics'] >= len(graph.publishers)


def test_a_publisher_that_offers_less_than_those_before_is_recorded(graph: Graph) -> None:
    first = graph.node.create_publisher(String, 'growing', 10)
    graph.wait(lambda: first.get_subscription_count() > 0)
    second = graph.node.create_publisher(
        String, 'growing', QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
    )
    graph.wait(lambda: second.get_subscription_count() > 0)
    graph.send_commands(20)
    assert graph.call(graph.start, RecorderStart.Request(name='growing')).success
    first.publish(String(data='first'))
    second.publish(String(data='second'))
    graph.send_commands(20)
    assert graph.call(graph.stop, RecorderStop.Request()).success
    with BagReader(graph.folder / 'growing') as bag:
        texts = sorted(bag.decode(m).data for m in bag.messages(['/growing']))
    assert texts == ['first', 'second']


def test_a_signal_completes_the_bag(graph: Graph) -> None:
    assert graph.call(graph.start, RecorderStart.Request(name='last')).success
    graph.send_commands(10)
    graph.process.send_signal(signal.SIGTERM)
    assert graph.process.wait(10) == 0
    with BagReader(graph.folder / 'last') as bag:
        assert bag.counts['/command'] == 10


def test_kill_9_in_motion_costs_the_last_second_at_most(tmp_path: Path) -> None:
    with running(tmp_path / 'bags') as graph:
        assert graph.call(graph.start, RecorderStart.Request(name='killed')).success
        graph.send_commands(400)
        graph.process.kill()
        now_ns = time.time_ns()
        graph.process.wait(10)
    file = graph.folder / 'killed.unfinished' / 'killed' / 'killed_0.mcap'
    stamps = saved_stamps(file, '/command')
    assert len(stamps) > 100
    late_ns = max(b - a for a, b in pairwise(stamps))  # on a busy machine
    assert now_ns - stamps[-1] < 1_000_000_000 + late_ns


def test_a_full_disk_is_told_at_once_and_leaves_a_readable_bag(small_disk: Path) -> None:
    with running(small_disk / 'bags') as graph:
        statuses: list[DiagnosticStatus] = []
        graph.node.create_subscription(
            DiagnosticArray, '/diagnostics', lambda msg: statuses.extend(msg.status), 10
        )
        assert graph.call(graph.start, RecorderStart.Request(name='full')).success

        def told() -> bool:
            graph.image.publish(CompressedImage(format='jpeg', data=os.urandom(50_000)))
            return any(status.level == DiagnosticStatus.ERROR for status in statuses)

        graph.wait(told)
        (error,) = {s.message for s in statuses if s.level == DiagnosticStatus.ERROR}
        assert 'No space left on device' in error
        assert 'recording failed' in graph.log.read_text()
        reply = graph.call(graph.stop, RecorderStop.Request())
        assert (reply.success, reply.message) == (False, error)
        with BagReader(graph.folder / 'full') as bag:
            pictures = list(bag.messages(['/camera/front/image/compressed']))
            assert 'No space left' in bag.metadata['error']
        assert len(pictures) > 5
        shutil.rmtree(graph.folder / 'full')
        assert graph.call(graph.start, RecorderStart.Request(name='again')).success
        assert graph.call(graph.stop, RecorderStop.Request()).success


def test_recording_from_the_start_ends_with_an_error_when_the_disk_is_full(
    small_disk: Path,
) -> None:
    with running(small_disk / 'bags', start=True, name='full') as graph:

        def ended() -> bool:
            graph.image.publish(CompressedImage(format='jpeg', data=os.urandom(50_000)))
            return graph.process.poll() is not None

        graph.wait(ended)
        assert graph.process.returncode == 1
