"""
Hears a topic whose publishers may keep their last message for whoever comes late, or may not.

DDS matches no subscriber that wants what was kept (transient local) with a publisher that keeps
nothing (volatile), and hands nothing that was kept to one that does not want it. So there are two
subscribers; what both of them hear counts once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from chunkpilot_nodes import convert, qos
from chunkpilot_nodes.spin import SupervisedNode
from rclpy.event_handler import SubscriptionEventCallbacks


class _Once:
    """Hands each message on once, whichever of two subscribers has it first."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self._take = take
        self._newest_ns = -1  # by stamp
        self._early: deque[Any] = deque(maxlen=qos.RELIABLE_10.depth)  # may come live, too

    def live(self, msg: Any) -> None:
        """Take a message that was just sent."""
        if msg in self._early:
            self._early.remove(msg)
            return
        self._early.clear()
        self._hand_on(msg)

    def kept(self, msg: Any) -> None:
        """Take a message that may have been kept; only what is news by its stamp counts."""
        if convert.to_ns(msg.header.stamp) > self._newest_ns:
            self._early.append(msg)
            self._hand_on(msg)

    def _hand_on(self, msg: Any) -> None:
        self._newest_ns = convert.to_ns(msg.header.stamp)
        self._take(msg)


def subscribe(node: SupervisedNode, kind: type, topic: str, take: Callable[[Any], None]) -> None:
    """
    Hear a topic from every publisher that is reliable, and at once what was kept.

    :param kind: of message, with a header
    """
    once = _Once(take)
    quiet = SubscriptionEventCallbacks(use_default_callbacks=False)  # the other one hears them
    node.create_subscription(kind, topic, once.kept, qos.KEPT, event_callbacks=quiet)
    node.create_subscription(kind, topic, once.live, qos.RELIABLE_10)
