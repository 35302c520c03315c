"""
Takes raw messages off many topics in a thread of its own, with the times at which they came.

An executor would not do: the events executor of the wheels ends when a callback asks for the
message info, the others take one message per wake-up, and both would stand still while a bag is
completed. Here one wait set serves all topics, and each wake-up takes all that there is.
"""

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
import threading
import time
from typing import Any, NamedTuple

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

_NO_EVENTS = SubscriptionEventCallbacks(use_default_callbacks=False)
_WAIT_NS = 100_000_000
_REST_S = 0.002
"""Rest after each wake-up: messages gather meanwhile, at high rates one wake-up takes many."""


class Received(NamedTuple):
    """A message as it came; times [ns] are 0 where the middleware does not tell."""

    topic: str
    message_class: type[Any]
    cdr: bytes
    received_ns: int
    sent_ns: int
    sequence: int
    """The publisher's number of it, 0 = not known."""


@dataclass(slots=True)
class _Source:
    subscription: Subscription
    publishers: Hashable
    counted: bool
    """Whether one publisher sends all, so that its numbers have no gaps."""
    sequence: int = 0


class Tap:
    """Follow topics; every message is delivered in the thread of the tap."""

    def __init__(self, node: Node, deliver: Callable[[Received], None]) -> None:
        """
        Start the thread.

        :param deliver: called with each message; what it raises is logged and counted
        """
        self.lost = 0
        """Messages that were sent, but never came."""
        self._node = node
        self._deliver = deliver
        self._sources: dict[str, _Source] = {}
        self._retired: list[Subscription] = []
        self._changed = True
        self._rounds = 0
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name='tap', daemon=True)

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def follow(self, topic: str, message_class: type[Any], qos: QoSProfile) -> None:
        """Subscribe, or once more with another quality of service."""
        subscription = self._node.create_subscription(message_class, topic, _never, qos, raw=True)
        # What the node does not list, its executor does not take from.
        self._node._subscriptions.remove(subscription)
        with self._lock:
            known = self._sources.get(topic)
            if known is not None:
                self._retired.append(known.subscription)
            self._sources[topic] = _Source(subscription, None, False)
            self._changed = True

    def publishers(self, topic: str, known: Hashable, single: bool) -> None:
        """Tell who publishes a topic: the numbers of another publisher begin anew."""
        with self._lock:
            source = self._sources[topic]
            if source.publishers != known:
                source.publishers, source.counted, source.sequence = known, single, 0

    def catch_up(self, timeout_s: float = 1.0) -> None:
        """Wait until everything that has come by now is delivered."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        enough = self._rounds + 2  # the round under way may be past a topic
        end = time.monotonic() + timeout_s
        while self._rounds < enough and time.monotonic() < end:
            time.sleep(_REST_S)

    def close(self) -> None:
        """End the thread and the subscriptions."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join(5.0)
        with self._lock:
            self._retired += [source.subscription for source in self._sources.values()]
            self._sources.clear()
            self._destroy_retired()

    def _run(self) -> None:
        while not self._closing and self._node.context.ok():
            with self._lock, ExitStack() as held:
                self._changed = False
                self._destroy_retired()
                sources = list(self._sources.items())
                for _, source in sources:  # not destroyed by anyone while it is waited for
                    held.enter_context(source.subscription.handle)
                kept = held.pop_all()
            with kept:
                self._take_until_changed(sources)

    def _take_until_changed(self, sources: list[tuple[str, _Source]]) -> None:
        with self._node.context.handle:
            wait_set = _rclpy.WaitSet(len(sources), 0, 0, 0, 0, 0, self._node.context.handle)
        while not (self._changed or self._closing) and self._node.context.ok():
            self._rounds += 1
            if not sources:
                time.sleep(_WAIT_NS / 1e9)
                continue
            wait_set.clear_entities()
            for _, source in sources:
                wait_set.add_subscription(source.subscription.handle)
            wait_set.wait(_WAIT_NS)
            ready = set(wait_set.get_ready_entities('subscription'))
            for topic, source in sources:
                if source.subscription.handle.pointer in ready:
                    self._take_all(topic, source)
            if ready:
                time.sleep(_REST_S)

    def _take_all(self, topic: str, source: _Source) -> None:
        take, message_class = source.subscription.handle.take_message, source.subscription.msg_type
        while (taken := take(message_class, True)) is not None:
            cdr, info = taken
            sequence = info.get('publication_sequence_number') or 0
            if source.counted and sequence:
                if source.sequence:
                    self.lost += max(sequence - source.sequence - 1, 0)
                source.sequence = sequence
            received = Received(
                topic,
                message_class,
                cdr,
                info.get('received_timestamp') or 0,
                info.get('source_timestamp') or 0,
                sequence,
            )
            try:
                self._deliver(received)
            except Exception as error:
                self._node.get_logger().error(
                    f'{topic}: {type(error).__name__}: {error}', throttle_duration_sec=1.0
                )

    def _destroy_retired(self) -> None:
        for subscription in self._retired:
            self._node._subscriptions.append(subscription)
            self._node.destroy_subscription(subscription)
        self._retired.clear()


def _never(_: Any) -> None:
    """Stand in for a callback; executors do not see the subscription."""
