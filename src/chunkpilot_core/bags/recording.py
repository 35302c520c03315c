"""
One bag while it is recorded: what was announced, which latched messages are in force, its files.

The latched messages in force are written again at the start of each further file, so that each of
them stands alone. When that was stands in the custom data (REPEATED).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chunkpilot_core.bags.information import ERROR, FOREVER_NS, REPEATED
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError

_MAX_LATCHED = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """When a bag goes on in the next file; 0 = never."""

    max_bytes: int = 0
    max_ns: int = 0


class Message(NamedTuple):
    """A message as it came: times of receipt and sending, and the publisher's number of it."""

    stamp_ns: int
    cdr: bytes
    published_ns: int
    sequence: int


@dataclass(slots=True)
class Topic:
    """A topic as the graph has it; ``last`` are the latched messages in force."""

    type_name: str
    qos: tuple[TopicQos, ...]
    digest: str
    last: deque[Message] | None = None


class Recording:
    """Used by one thread after another: who starts it, who writes, who stops it."""

    def __init__(self, writer: BagWriter, limits: Limits, stamp_ns: int) -> None:
        """
        Take an empty bag.

        :param stamp_ns: now
        """
        self.writer = writer
        self._limits = limits
        self._began_ns = self._newest_ns = stamp_ns
        self._has_news = False  # beside repeated messages
        self._announced: set[str] = set()
        self._latched: dict[str, deque[Message]] = {}
        self._repeated_ns: list[int] = []

    def begin(self, topics: Mapping[str, Topic]) -> None:
        """Announce what is known, and write the latched messages in force as if received now."""
        for topic, entry in topics.items():
            self._announce(topic, entry)
            if topic in self._latched:
                self._latched[topic].extend(entry.last or ())
        self._repeat_latched(self._began_ns)

    def write(self, topic: str, entry: Topic, message: Message) -> None:
        """Write a message, in the next file when this one is full."""
        if self._is_full(message):
            self._split(message.stamp_ns)
        if topic not in self._announced:
            self._announce(topic, entry)
        self.writer.write(topic, *message)
        self._newest_ns, self._has_news = max(self._newest_ns, message.stamp_ns), True
        latched = self._latched.get(topic)
        if latched is not None:
            latched.append(message)

    def split(self) -> None:
        """Go on in the next file."""
        self._split(self._newest_ns + 1)

    def custom(self, metadata: Mapping[str, str], dropped: int) -> dict[str, str]:
        """Return the custom data of the bag."""
        custom = {**metadata, 'dropped_messages': str(dropped)}
        if self._repeated_ns:
            custom[REPEATED] = ' '.join(map(str, self._repeated_ns))
        return custom

    def salvage(self, error: str, metadata: Mapping[str, str], dropped: int) -> str:
        """Make a bag of what was written; returns the error and what became of the bag."""
        try:
            kept = self.writer.salvage({**self.custom(metadata, dropped), ERROR: error})
            return f'{error}; {self.writer.messages} messages from before are in {kept}'
        except BagError:
            self.writer.abort()
            return f'{error}; the bag stays unfinished'

    def _is_full(self, message: Message) -> bool:
        if not self._has_news:
            return False
        limits, size = self._limits, self.writer.file_bytes + len(message.cdr)
        too_long = 0 < limits.max_ns <= message.stamp_ns - self._began_ns
        return too_long or 0 < limits.max_bytes < size

    def _split(self, stamp_ns: int) -> None:
        self.writer.split()
        self._repeat_latched(stamp_ns)
        self._repeated_ns.append(stamp_ns)
        self._began_ns, self._has_news = stamp_ns, False

    def _repeat_latched(self, stamp_ns: int) -> None:
        """When and by which number they were sent stays."""
        for topic, messages in self._latched.items():
            for message in messages:
                self.writer.write(topic, stamp_ns, *message[1:])

    def _announce(self, topic: str, entry: Topic) -> None:
        definition = Definition(entry.type_name, hash=entry.digest)
        self.writer.add_topic(topic, entry.type_name, entry.qos, definition)
        self._announced.add(topic)
        if entry.last is not None:
            self._latched[topic] = deque(maxlen=entry.last.maxlen)


def in_force(profiles: tuple[TopicQos, ...]) -> int:
    """
    Return how many messages of a topic may be in force.

    Several publishers have one topic for /tf_static, and who sent a message is not known: of a
    few more, the last of each is among them.
    """
    lasting = [qos for qos in profiles if qos.latched and qos.lifespan_ns >= FOREVER_NS]
    latched = [max(qos.depth, 1) for qos in lasting]  # those of /rosout expire
    many = 1 if len(latched) < 2 else 4
    return min(many * sum(latched), _MAX_LATCHED)
