"""Finds the topics to record, and what their publishers offer, for as long as the graph lives."""

from collections.abc import Sequence
from dataclasses import dataclass
import re

from chunkpilot_core.bags.recorder import Recorder
from chunkpilot_core.bags.writer import TopicQos
from chunkpilot_core.errors import BagError
from chunkpilot_nodes import raw
from chunkpilot_nodes.tap import Tap
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)
from rclpy.topic_endpoint_info import TopicEndpointInfo

_DEPTH, _BIG_DEPTH = 2000, 100  # of what waits in DDS while the recorder does not get the CPU
_BIG = re.compile(r'Image|PointCloud')
_HASH = re.compile(r'RIHS01_[0-9a-f]{64}')


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics are recorded; none named and no pattern = all."""

    topics: Sequence[str] = ()
    regex: str = ''
    exclude: Sequence[str] = ()
    exclude_regex: str = ''

    def __post_init__(self) -> None:
        for pattern in (self.regex, self.exclude_regex):
            try:
                re.compile(pattern)
            except re.error as error:
                raise BagError(f'{pattern!r} is no regular expression: {error}') from error

    def __contains__(self, topic: str) -> bool:
        if topic in self.topics:
            return True
        if topic in self.exclude or (self.exclude_regex and re.search(self.exclude_regex, topic)):
            return False
        if self.regex and re.search(self.regex, topic):
            return True
        return not self.topics and not self.regex and '/_' not in topic


class Discovery:
    """Announces topics to the recorder and has the tap follow them."""

    def __init__(self, node: Node, selection: Selection, recorder: Recorder, tap: Tap) -> None:
        self.selection = selection
        self.refused: dict[str, str] = {}
        """Topics that can't be recorded, and why."""
        self._node, self._recorder, self._tap = node, recorder, tap
        self._counts: dict[str, int] = {}
        self._followed: dict[str, tuple[bool, bool]] = {}

    @property
    def followed(self) -> frozenset[str]:
        """Topics that are subscribed to."""
        return frozenset(self._followed)

    def look(self) -> None:
        """Follow topics that are new, and look again at those whose publishers changed."""
        for topic, types in self._node.get_topic_names_and_types():
            if topic not in self.selection or topic in self.refused:
                continue
            count = self._node.count_publishers(topic)
            if count == self._counts.get(topic, 0):
                continue
            publishers = self._node.get_publishers_info_by_topic(topic)
            if len(publishers) == count:  # the graph changes while it is asked
                self._counts[topic] = count
            if publishers:
                self._update(topic, types, publishers)

    def _update(self, topic: str, types: list[str], publishers: list[TopicEndpointInfo]) -> None:
        offered = tuple(_offered(info.qos_profile) for info in publishers)
        reliable = all(qos.reliable for qos in offered)
        latched = all(qos.latched for qos in offered)
        try:
            if len(types) != 1:
                raise BagError(f'{topic} has {len(types)} types: {", ".join(types)}')
            message_class = raw.message_class(types[0])
            digest = str(publishers[0].topic_type_hash)
            digest = digest if _HASH.fullmatch(digest) else ''
            here = self._recorder.definitions.describe(types[0])[1]
            if digest and digest != here and topic not in self._followed:
                self._node.get_logger().error(
                    f'{topic}: its publisher has another {types[0]} than this machine: its '
                    'messages are recorded, with a definition that does not fit'
                )
            self._recorder.add_topic(topic, types[0], offered, digest)
        except BagError as error:
            self.refused[topic] = str(error)
            self._node.get_logger().error(f'{topic} is not recorded: {error}')
            return
        if self._followed.get(topic) != (reliable, latched):
            self._tap.follow(topic, message_class, _wanted(types[0], reliable, latched))
            self._followed[topic] = reliable, latched
        gids = frozenset(tuple(info.endpoint_gid) for info in publishers)
        self._tap.publishers(topic, gids, len(publishers) == 1)


def _offered(qos: QoSProfile) -> TopicQos:
    return TopicQos(
        reliable=qos.reliability != ReliabilityPolicy.BEST_EFFORT,
        latched=qos.durability == DurabilityPolicy.TRANSIENT_LOCAL,
        depth=qos.depth,
        keep_all=qos.history == HistoryPolicy.KEEP_ALL,
        deadline_ns=qos.deadline.nanoseconds,
        lifespan_ns=qos.lifespan.nanoseconds,
        manual_liveliness=qos.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC,
        lease_ns=qos.liveliness_lease_duration.nanoseconds,
    )


def _wanted(type_name: str, reliable: bool, latched: bool) -> QoSProfile:
    """Return what matches every publisher of a topic."""
    return QoSProfile(
        depth=_BIG_DEPTH if _BIG.search(type_name) else _DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
