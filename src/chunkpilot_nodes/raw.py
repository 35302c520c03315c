"""Topics of bags as ROS knows them: message classes by name, quality of service."""

from importlib import import_module
from typing import Any

from chunkpilot_core.bags.information import FOREVER_NS, TopicQos
from chunkpilot_core.errors import BagError
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def message_class(type_name: str) -> type[Any]:
    """
    Return the class of ``package/msg/Name``.

    :raises BagError: not installed here
    """
    package, _, name = type_name.partition('/msg/')
    try:
        if not (package.isidentifier() and name.isidentifier()):
            raise ImportError(type_name)
        found: type[Any] = getattr(import_module(f'{package}.msg'), name)
    except (ImportError, AttributeError) as error:
        raise BagError(f'type {type_name} is not installed here') from error
    return found


def profile(offered: TopicQos) -> QoSProfile:
    """Return the profile of a publisher that offers this."""
    limited = {
        name: Duration(nanoseconds=value)
        for name, value in (('deadline', offered.deadline_ns), ('lifespan', offered.lifespan_ns))
        if value < FOREVER_NS
    }
    latched, reliable = DurabilityPolicy.TRANSIENT_LOCAL, ReliabilityPolicy.RELIABLE
    return QoSProfile(
        history=HistoryPolicy.KEEP_ALL if offered.keep_all else HistoryPolicy.KEEP_LAST,
        depth=offered.depth,
        reliability=reliable if offered.reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=latched if offered.latched else DurabilityPolicy.VOLATILE,
        **limited,
    )
