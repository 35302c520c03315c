"""A recorded policy as a process: it answers whoever asks, and says what was left over."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

from chunkpilot_core import spaces, types
from chunkpilot_core.bags.writer import BagWriter
import numpy as np
import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import ActionChunk, ChunkRequest, EpisodeEvent, Observation  # noqa: E402
from chunkpilot_nodes import convert, qos  # noqa: E402
import domain_coordinator  # noqa: E402
from rclpy.serialization import serialize_message  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]

SPACE = spaces.ee_delta_space()
SPEC = types.PolicySpec('mlp', 'recorded', 3, SPACE, 16, 0.04)
START_NS = 5_000 * types.NS_PER_S
ANSWERS = 4


def recorded_chunk(number: int, stamp_ns: int) -> types.ActionChunk:
    """Return an answer whose first value is its number."""
    actions = np.full((16, SPACE.size), 0.01 * number, np.float32)
    return types.ActionChunk(
        types.Id(2, number), types.Id(1, number), 7, 'then', types.Id(3, number), stamp_ns,
        stamp_ns, 0.04, actions, SPACE.hash, 'mlp', 3, stamp_ns, stamp_ns,
    )  # fmt: skip


def event(kind: int, name: str, stamp_ns: int = 0) -> EpisodeEvent:
    msg = EpisodeEvent(event=kind, episode_id=name, task_kind='push', seed=5)
    msg.header.stamp = convert.to_time(stamp_ns)
    return msg


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    info = convert.policy_info_to_msg(
        SPEC, session=1, stamp_ns=START_NS, state='ready', warm_inference_s=0.01
    )
    messages: list[tuple[str, int, Any]] = [
        ('/policy/info', START_NS, info),
        ('/episode', START_NS, event(EpisodeEvent.START, 'then-001', START_NS)),
    ]
    for number in range(1, ANSWERS + 1):
        at_ns = START_NS + number * types.NS_PER_S
        asked = types.ChunkRequest(types.Id(1, number), at_ns, 7, 'then', 'horizon', at_ns)
        messages.append(('/chunk_request', at_ns, convert.request_to_msg(asked)))
        chunk = recorded_chunk(number, at_ns + 10_000_000)
        messages.append(('/chunk', at_ns + 10_000_000, convert.chunk_to_msg(chunk)))
    end_ns = START_NS + 9 * types.NS_PER_S
    messages.append(('/episode', end_ns, event(EpisodeEvent.END, 'then-001', end_ns)))
    with BagWriter(tmp_path / 'bag') as writer:
        for topic, kind in {topic: type(msg).__name__ for topic, _, msg in messages}.items():
            writer.add_topic(topic, f'chunkpilot/msg/{kind}')
        for topic, stamp_ns, msg in messages:
            writer.write(topic, stamp_ns, bytes(serialize_message(msg)))
    return tmp_path / 'bag'


class Asker:
    """The live side of the graph."""

    def __init__(self, domain: int, bag: Path) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('asker', context=self.context)
        self.executor = rclpy.executors.SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.chunks: list[ActionChunk] = []
        self.seq = 0
        make = self.node.create_publisher
        self.observations = make(Observation, 'observation', qos.RELIABLE_10)
        self.requests = make(ChunkRequest, 'chunk_request', qos.RELIABLE_10)
        self.episodes = make(EpisodeEvent, 'episode', qos.LATCHED)
        self.node.create_subscription(ActionChunk, 'chunk', self.chunks.append, qos.RELIABLE_10)
        words = ['--ros-args', '-p', f'bag:={bag}', '-p', 'max_observation_age_s:=5.0']
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'chunkpilot_nodes.policy_replay_node', *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, 'ROS_DOMAIN_ID': str(domain)},
        )
        everyone = (self.observations, self.requests, self.episodes)
        self.wait(lambda: all(one.get_subscription_count() for one in everyone))
        self.wait(lambda: self.node.count_publishers('chunk') > 0)
        self.spin(0.5)  # matched in the other direction, too

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def wait(self, condition: Any, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f'not within {seconds} s'
            assert self.process.poll() is None, self.process.stdout.read()
            self.executor.spin_once(timeout_sec=0.02)

    def episode(self, name: str, requests: int) -> list[float]:
        """Ask so often, one after the other; returns the first value of each answer."""
        self.chunks.clear()
        self.episodes.publish(event(EpisodeEvent.START, name))
        self.spin(0.3)
        for count in range(1, requests + 1):
            self.seq += 1
            now_ns = self.node.get_clock().now().nanoseconds
            seen = types.Observation(
                types.Id(5, self.seq), now_ns, now_ns, ('x',), np.zeros(1, np.float32), task_id='t'
            )
            self.observations.publish(convert.observation_to_msg(seen))
            wanted = types.ChunkRequest(types.Id(6, self.seq), now_ns, 77, 't', 'start', now_ns)
            self.requests.publish(convert.request_to_msg(wanted))
            if count <= ANSWERS:
                self.wait(lambda count=count: len(self.chunks) == count)
            else:
                self.spin(0.3)
        self.episodes.publish(event(EpisodeEvent.END, name))
        self.spin(0.3)
        return [round(float(convert.chunk_from_msg(one).actions[0, 0]), 4) for one in self.chunks]

    def end(self) -> str:
        """End the node and return what it printed."""
        self.process.send_signal(signal.SIGINT)
        return str(self.process.communicate(timeout=20)[0])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def asker(bag: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    with domain_coordinator.domain_id() as domain:
        found = Asker(domain, bag)
        yield found
        found.close()


def test_after_each_episode_it_says_how_many_recorded_answers_were_used(asker: Asker) -> None:
    assert asker.episode('live-001', 3) == [0.01, 0.02, 0.03]
    assert asker.episode('live-002', ANSWERS + 2) == [0.01, 0.02, 0.03, 0.04]
    said = asker.end()
    told = [line.partition(']: ')[2] for line in said.splitlines() if ': used ' in line]
    assert told == [
        'live-001: used 3 of 4 recorded answers, 1 left over, 0 requests not answered',
        'live-002: used 4 of 4 recorded answers, 0 left over, 2 requests not answered',
    ], said
