"""recorder_node as a real process: services, one bag per episode, errors that are told."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import Command, EpisodeEvent, Outcome, Task  # noqa: E402
from chunkpilot.srv import RecorderStart, RecorderStop  # noqa: E402
from chunkpilot_core.bags import episodes  # noqa: E402
from chunkpilot_core.bags.definitions import Definitions  # noqa: E402
from chunkpilot_core.bags.reader import BagReader  # noqa: E402
from chunkpilot_core.types import EpisodeOutcome  # noqa: E402
from chunkpilot_nodes import qos  # noqa: E402
import domain_coordinator  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402

pytestmark = pytest.mark.ros


class Graph:
    """A recorder process in a domain of its own, and who publishes there."""

    def __init__(self, domain: int, folder: Path) -> None:
        self.folder = folder
        self.log = folder.parent / 'recorder.log'
        words = ['-p', f'directory:={folder}', '-p', 'stop_after_s:=0.2']
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


@pytest.fixture(scope='module')
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    with ExitStack() as stack:
        domain = stack.enter_context(domain_coordinator.domain_id())
        found = Graph(domain, tmp_path_factory.mktemp('recorder') / 'bags')
        try:
            ready = [publisher.get_subscription_count for publisher in found.publishers]
            found.wait(lambda: all(count() for count in ready) and found.stop.service_is_ready())
            yield found
            found.process.send_signal(signal.SIGTERM)
            assert found.process.wait(10) == 0
        finally:
            found.close()


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


def test_a_signal_completes_the_bag(graph: Graph) -> None:
    assert graph.call(graph.start, RecorderStart.Request(name='last')).success
    graph.send_commands(10)
    graph.process.send_signal(signal.SIGTERM)
    assert graph.process.wait(10) == 0
    with BagReader(graph.folder / 'last') as bag:
        assert bag.counts['/command'] == 10
