"""player_node as a real process: bytes, times, latched topics, clock, pause, errors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.writer import BagWriter, TopicQos
import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot_nodes import qos  # noqa: E402
import domain_coordinator  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.serialization import serialize_message  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from std_msgs.msg import Float64MultiArray, String  # noqa: E402
from std_srvs.srv import Trigger  # noqa: E402

pytestmark = pytest.mark.ros
S, STRING = 1_000_000_000, 'std_msgs/msg/String'
START_NS = 5_000 * S


def text(value: str) -> bytes:
    return bytes(serialize_message(String(data=value)))


@pytest.fixture(scope='module')
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bag of 2 s: 20 texts, a latched state, robot commands, a type not installed so."""
    path = tmp_path_factory.mktemp('player') / 'bag'
    with BagWriter(path) as writer:
        writer.add_topic('/text', STRING, TopicQos(depth=50))
        writer.add_topic('/state', STRING, TopicQos(latched=True, depth=1))
        writer.add_topic('/arm_controller/commands', 'std_msgs/msg/Float64MultiArray')
        other = Definition(STRING, 'ros2msg', 'int32 x', 'RIHS01_' + '0' * 64)
        writer.add_topic('/other', STRING, None, other)
        writer.write('/state', START_NS, text('armed'))
        for i in range(20):
            at_ns = START_NS + i * S // 10
            writer.write('/text', at_ns, text(f'{i}'))
            writer.write('/arm_controller/commands', at_ns, bytes(serialize_message(FLOATS)))
            writer.write('/other', at_ns, text('garbage'))
    return path


FLOATS = Float64MultiArray(data=[1.0])


class Listener:
    """Who hears what is played, in a domain of its own."""

    def __init__(self, domain: int) -> None:
        self.environment = {
            **os.environ,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        }
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('listener', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.heard: list[tuple[float, str, str]] = []
        self.clock: list[int] = []
        self.processes: list[subprocess.Popen[str]] = []
        for topic, kind in (
            ('/text', String), ('/robot/text', String), ('/other', String),
            ('/arm_controller/commands', Float64MultiArray),
        ):  # fmt: skip
            self.node.create_subscription(kind, topic, self._hear(topic), 100)
        self.node.create_subscription(Clock, '/clock', self._on_clock, qos.CLOCK)

    def _on_clock(self, msg: Clock) -> None:
        self.clock.append(msg.clock.sec * S + msg.clock.nanosec)

    def _hear(self, topic: str) -> Callable[[object], None]:
        return lambda m: self.heard.append((time.monotonic(), topic, str(getattr(m, 'data', ''))))

    def texts(self, topic: str = '/text') -> list[str]:
        return [value for _, name, value in self.heard if name == topic]

    def play(self, bag: Path, *parameters: str) -> subprocess.Popen[str]:
        self.heard.clear()
        self.clock.clear()
        words = [w for p in (f'bag:={bag}', *parameters) for w in ('-p', p)]
        process = subprocess.Popen(
            [sys.executable, '-m', 'chunkpilot_nodes.player_node', '--ros-args', *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        self.processes.append(process)
        return process

    def until(self, done: Callable[[], object], duration_s: float = 60.0) -> None:
        end = time.monotonic() + duration_s
        while not done():
            assert time.monotonic() < end, self.heard
            self.executor.spin_once(timeout_sec=0.02)

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        self.until(lambda: process.poll() is not None)
        out, _ = process.communicate()
        return process.returncode, out

    def call(self, name: str) -> None:
        client = self.node.create_client(Trigger, name)
        self.until(client.service_is_ready)
        future = client.call_async(Trigger.Request())
        self.until(future.done)
        assert future.result().success
        self.node.destroy_client(client)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture(scope='module')
def listener() -> Iterator[Listener]:
    with ExitStack() as stack:
        found = Listener(stack.enter_context(domain_coordinator.domain_id()))
        stack.callback(found.close)
        yield found


def test_bytes_arrive_at_their_times(listener: Listener, bag: Path, tmp_path: Path) -> None:
    report = tmp_path / 'report.json'
    code, out = listener.ended(
        listener.play(bag, 'clock_hz:=50.0', f'report:={report}', 'delay_s:=6.0')
    )
    assert code == 0, out
    assert listener.texts() == [str(i) for i in range(20)]
    times = [at for at, topic, _ in listener.heard if topic == '/text']
    assert times[-1] - times[0] == pytest.approx(1.9, abs=0.5)  # a loaded machine
    assert not listener.texts('/arm_controller/commands')
    assert not listener.texts('/other')
    assert '/arm_controller/commands moves robots' in out
    assert '/other is not played' in out
    assert 'would be garbage' in out
    assert listener.clock == sorted(listener.clock)
    assert START_NS <= listener.clock[0] < listener.clock[-1] <= START_NS + 1_900_000_000
    told = json.loads(report.read_text())
    assert told['topics']['/text'] == 20
    assert told['topics']['/state'] == 1


def test_paused_from_an_offset_under_another_name(listener: Listener, bag: Path) -> None:
    process = listener.play(
        bag, 'paused:=true', 'start_s:=1.0', 'rate:=4.0', 'delay_s:=0.0', 'stay:=true',
        'topics:=["/text", "/state"]', 'remaps:=["/text:=/robot/text"]',
    )  # fmt: skip
    states: list[str] = []
    late = listener.node.create_subscription(
        String, '/state', lambda m: states.append(m.data), qos.LATCHED
    )
    listener.until(lambda: listener.node.count_publishers('/robot/text'))
    end = time.monotonic() + 0.5
    listener.until(lambda: time.monotonic() > end)
    assert not listener.texts('/robot/text')
    listener.call('player/resume')
    listener.until(lambda: len(listener.texts('/robot/text')) == 10)
    assert listener.texts('/robot/text') == [str(i) for i in range(10, 20)]
    listener.until(lambda: states == ['armed'])  # what was latched before the offset
    assert not listener.texts()
    listener.node.destroy_subscription(late)
    process.send_signal(signal.SIGINT)
    code, out = listener.ended(process)
    assert code == 0, out


def test_a_loop_starts_over(listener: Listener, bag: Path) -> None:
    process = listener.play(
        bag, 'loop:=true', 'rate:=10.0', 'topics:=["/text"]', 'clock_hz:=100.0'
    )
    listener.until(lambda: listener.texts().count('7') >= 3)
    process.send_signal(signal.SIGTERM)
    code, out = listener.ended(process)
    assert code == 0, out
    assert any(b < a for a, b in zip(listener.clock, listener.clock[1:], strict=False))


@pytest.mark.parametrize(
    ('parameters', 'error'),
    [
        (('bag:=/nowhere',), '/nowhere: no such bag'),
        (('topics:=["/tixt"]',), "Did you mean '/text'"),
        (('topics:=["/other"]',), 'would be garbage'),
        (('rate:=0.0',), 'rate'),
    ],
)
def test_what_is_wrong_is_told(
    listener: Listener, bag: Path, parameters: tuple[str, ...], error: str
) -> None:
    code, out = listener.ended(listener.play(bag, *parameters))
    assert code == 1
    assert error in out


def test_a_bag_that_breaks_off_is_an_error(listener: Listener, bag: Path, tmp_path: Path) -> None:
    broken = tmp_path / 'broken'
    broken.mkdir()
    for file in bag.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    file = next(broken.glob('*.mcap'))
    data = bytearray(file.read_bytes())
    data[data.index(b'zstd') + 60] ^= 0xFF
    file.write_bytes(data)
    code, out = listener.ended(listener.play(broken, 'topics:=["/text"]', 'delay_s:=0.0'))
    assert code == 1
    assert 'playing failed' in out
    assert file.name in out


def test_the_command_line(listener: Listener, bag: Path) -> None:
    listener.heard.clear()
    words = ['bag', 'play', str(bag), '--rate', '5', '--topics', '/text', '--delay', '6', '--json']
    process = subprocess.Popen(
        [sys.executable, '-m', 'chunkpilot_core.cli', *words],
        stdout=subprocess.PIPE,
        text=True,
        env=listener.environment,
    )
    listener.processes.append(process)
    code, out = listener.ended(process)
    assert code == 0
    assert listener.texts() == [str(i) for i in range(20)]
    told = json.loads(out[out.index('{') :])
    assert (told['messages'], told['passes']) == (20, 1)
