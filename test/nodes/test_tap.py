"""The tap on real DDS: every message with its times, losses counted, topics followed anew."""

from collections.abc import Callable
import threading
import time

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot_nodes.tap import Received, Tap  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: E402
from rclpy.serialization import deserialize_message  # noqa: E402
from std_msgs.msg import Int32  # noqa: E402

pytestmark = pytest.mark.ros
BEST_EFFORT = ReliabilityPolicy.BEST_EFFORT


def wait(until: Callable[[], bool], duration_s: float = 20.0) -> None:
    end = time.monotonic() + duration_s
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_messages_come_with_the_times_of_sending_and_receipt(nodes: tuple[Node, Node]) -> None:
    sender, listener = nodes
    got: list[Received] = []
    tap = Tap(listener, got.append)
    tap.start()
    tap.follow('numbers', Int32, QoSProfile(depth=100))
    tap.publishers('numbers', 'sender', True)
    assert not list(listener.subscriptions)  # no executor takes from them
    publisher = sender.create_publisher(Int32, 'numbers', 100)
    wait(lambda: publisher.get_subscription_count() == 1)
    time.sleep(0.5)  # until the listener knows, too
    sent = []
    for i in range(50):
        sent.append(time.time_ns())
        publisher.publish(Int32(data=i))
    wait(lambda: len(got) == 50)
    assert [deserialize_message(m.cdr, m.message_class).data for m in got] == list(range(50))
    assert [m.sequence for m in got] == list(range(1, 51))
    assert tap.lost == 0
    for message, before_ns in zip(got, sent, strict=True):
        assert before_ns <= message.sent_ns <= message.received_ns <= time.time_ns()
    tap.close()
    wait(lambda: publisher.get_subscription_count() == 0)


def test_what_was_overwritten_before_it_was_taken_is_counted(nodes: tuple[Node, Node]) -> None:
    sender, listener = nodes
    got: list[Received] = []
    release = threading.Event()

    def deliver(message: Received) -> None:
        got.append(message)
        release.wait(20.0)

    tap = Tap(listener, deliver)
    tap.start()
    tap.follow('numbers', Int32, QoSProfile(depth=10, reliability=BEST_EFFORT))
    tap.publishers('numbers', 'sender', True)
    publisher = sender.create_publisher(Int32, 'numbers', QoSProfile(depth=200))
    wait(lambda: publisher.get_subscription_count() == 1)
    while not got:  # what is sent before both sides know of each other goes nowhere
        publisher.publish(Int32(data=0))
        time.sleep(0.05)
    for i in range(1, 101):  # the reader holds ten of them
        publisher.publish(Int32(data=i))
        time.sleep(0.002)
    time.sleep(0.3)
    release.set()
    wait(lambda: deserialize_message(got[-1].cdr, Int32).data == 100)
    assert tap.lost == got[-1].sequence - got[0].sequence + 1 - len(got)
    assert tap.lost >= 80
    tap.close()


def test_a_callback_that_raises_does_not_end_the_tap(nodes: tuple[Node, Node]) -> None:
    sender, listener = nodes
    got: list[Received] = []

    def deliver(message: Received) -> None:
        got.append(message)
        if len(got) == 1:
            raise ValueError('no')

    tap = Tap(listener, deliver)
    tap.start()
    tap.follow('numbers', Int32, QoSProfile(depth=10))
    publisher = sender.create_publisher(Int32, 'numbers', 10)
    wait(lambda: publisher.get_subscription_count() == 1)
    time.sleep(0.5)
    for i in range(3):
        publisher.publish(Int32(data=i))
    wait(lambda: len(got) == 3)
    tap.close()


def test_a_topic_is_followed_anew_with_another_quality_of_service(
    nodes: tuple[Node, Node],
) -> None:
    sender, listener = nodes
    got: list[Received] = []
    tap = Tap(listener, got.append)
    tap.start()
    tap.follow('numbers', Int32, QoSProfile(depth=10))
    publisher = sender.create_publisher(
        Int32, 'numbers', QoSProfile(depth=10, reliability=BEST_EFFORT)
    )
    time.sleep(0.5)
    assert publisher.get_subscription_count() == 0  # reliable does not match
    tap.follow('numbers', Int32, QoSProfile(depth=10, reliability=BEST_EFFORT))
    wait(lambda: publisher.get_subscription_count() == 1)
    while not got:
        publisher.publish(Int32(data=7))
        time.sleep(0.05)
    tap.close()
