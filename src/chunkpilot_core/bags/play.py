"""
What of a bag is sent when; reads no clock and sends nothing.

Every message is due at an absolute time, so that what is sent late makes nothing after it late.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
import struct

from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.information import FOREVER_NS, TopicQos
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.selection import remaps, Selection
from chunkpilot_core.bags.topics import Topic
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import NS_PER_S

CLOCK = '/clock'
MOVING = ('*/commands', '*/joint_trajectory', '*/cmd_vel', '*/cmd_vel_*', '*/servo_node/*')
"""Topics that drivers of robots obey: played only when they are named, never by accident."""
END_OF_TIME_NS = 2**31 * NS_PER_S
"""Of builtin_interfaces/Time."""
_CLOCK_MESSAGE = struct.Struct('<BBBBiI')


@dataclass(frozen=True, slots=True)
class Due:
    """A message and its time on the clock of the bag."""

    bag_ns: int
    topic: str
    cdr: bytes


class Schedule:
    """Which messages of a bag are sent, under which names, in which order."""

    def __init__(
        self,
        bag: BagReader,
        selection: Selection,
        renamed: tuple[str, ...] = (),
        clock_hz: float = 0.0,
        rate: float = 1.0,
    ) -> None:
        """
        Choose.

        :param renamed: words ``/old:=/new``
        :param clock_hz: of ``/clock`` [1/s of real time], 0 = none
        :raises BagError: nothing is left, or two types under one name
        :raises UnknownNameError: a topic that the bag lacks
        """
        self._bag = bag
        self.start_ns, self.end_ns = selection.range_ns(bag)
        self.clock_step_ns = round(NS_PER_S / clock_hz * rate) if clock_hz else 0
        self.left_out: list[str] = []
        """Topics that robots obey and nobody named."""
        self.topics: dict[str, Topic] = {}
        """By the name in the bag."""
        self._names = dict(remaps(renamed, bag))
        for name in selection.names(bag):
            if name == CLOCK and clock_hz:
                continue  # there is one clock
            if name not in selection.topics and any(fnmatchcase(name, m) for m in MOVING):
                self.left_out.append(name)
            else:
                self.topics[name] = bag.details[name]
        self._check()

    def _check(self) -> None:
        if self.end_ns > END_OF_TIME_NS:
            raise BagError(
                f'{self._bag.path}: a message of {(self.end_ns - 1) / NS_PER_S:.0f} s, times of '
                f'ROS end at {END_OF_TIME_NS // NS_PER_S} s: play a part of it by its duration'
            )
        if not self.topics:
            raise BagError(f'{self._bag.path}: no topic of it is to be played')
        types: dict[str, str] = {}
        for name, topic in self.topics.items():
            sent = self.sent(name)
            if types.setdefault(sent, topic.type_name) != topic.type_name:
                raise BagError(f'{sent} would be {types[sent]} and {topic.type_name}')

    def sent(self, name: str) -> str:
        """Return the name under which a topic is sent."""
        return self._names.get(name, name)

    def leave_out(self, name: str) -> None:
        """
        Take a topic out.

        :raises BagError: nothing is left
        """
        del self.topics[name]
        self._check()

    def messages(self) -> Iterator[Due]:
        """
        Iterate over one pass: what was latched before its start, then everything in order.

        :raises BagError: the bag is damaged
        """
        tick_ns = self.start_ns
        yield from self._clock(tick_ns)
        yield from self._latched()
        for message in self._bag.messages(list(self.topics), self.start_ns, self.end_ns):
            while self.clock_step_ns and message.stamp_ns >= tick_ns + self.clock_step_ns:
                tick_ns += self.clock_step_ns
                yield from self._clock(tick_ns)
            yield Due(message.stamp_ns, self.sent(message.topic), message.cdr)

    def _clock(self, bag_ns: int) -> Iterator[Due]:
        if self.clock_step_ns:
            yield Due(bag_ns, CLOCK, clock_message(bag_ns))

    def _latched(self) -> Iterator[Due]:
        """Iterate over what a late subscriber would have got at the start."""
        if self.start_ns <= self._bag.start_ns:
            return
        for message in latched(self._bag, list(self.topics), self.start_ns):
            yield Due(self.start_ns, self.sent(message[0]), message[1])


class Pace:
    """Which time of the steady clock belongs to which time of the bag."""

    def __init__(self, rate: float, bag_ns: int) -> None:
        self._rate = rate
        self._bag_ns = bag_ns
        self._steady_ns = 0
        self._paused_ns: int | None = None

    @property
    def paused(self) -> bool:
        """Whether time stands."""
        return self._paused_ns is not None

    def start(self, now_ns: int, bag_ns: int) -> None:
        """Let ``bag_ns`` be now."""
        self._bag_ns, self._steady_ns = bag_ns, now_ns
        if self.paused:
            self._paused_ns = now_ns

    def due_ns(self, bag_ns: int) -> int:
        """Return when a time of the bag comes; while paused it moves away."""
        return self._steady_ns + round((bag_ns - self._bag_ns) / self._rate)

    def bag_ns(self, now_ns: int) -> int:
        """Return the time of the bag."""
        now_ns = now_ns if self._paused_ns is None else self._paused_ns
        return self._bag_ns + round((now_ns - self._steady_ns) * self._rate)

    def pause(self, now_ns: int) -> None:
        """Stop time; a second time changes nothing."""
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        """Let time go on where it stood."""
        if self._paused_ns is not None:
            self._steady_ns += now_ns - self._paused_ns
            self._paused_ns = None


def latched(bag: BagReader, topics: list[str], before_ns: int) -> Iterator[tuple[str, bytes]]:
    """Iterate over the last messages of latched topics before a time: topic and bytes."""
    details = bag.details
    names = [name for name in topics if details[name].latched]
    last: dict[str, list[bytes]] = {name: [] for name in names}
    if names:
        for message in bag.messages(names, None, before_ns):
            kept = last[message.topic]
            kept.append(message.cdr)
            del kept[: -offered(details[message.topic]).depth]
    for name, kept in last.items():
        for cdr in kept:
            yield name, cdr


def offered(topic: Topic) -> TopicQos:
    """Return one quality of service for a topic that may have had several publishers."""
    profiles = topic.qos
    if not profiles:
        return TopicQos()
    every_latched = topic.latched
    depths = [max(qos.depth, 1) for qos in profiles]
    same = len({(qos.deadline_ns, qos.lifespan_ns) for qos in profiles}) == 1
    return TopicQos(
        all(qos.reliable for qos in profiles),
        every_latched,
        min(sum(depths) if every_latched else max(depths), 10_000),
        any(qos.keep_all for qos in profiles),
        profiles[0].deadline_ns if same else FOREVER_NS,
        profiles[0].lifespan_ns if same else FOREVER_NS,
    )


def check_type(topic: Topic, known: Definitions) -> None:
    """
    Compare a topic's type with the installed one: other fields would be garbage to subscribers.

    :raises BagError: not installed, or another
    """
    known.load(topic.type_name)
    here = known.store.hash_rihs01(topic.type_name)
    there = topic.definition.hash
    if not there and topic.definition.text:
        there = schemas.decoder(topic.definition).hash
    if there and there != here:
        raise BagError(
            f'{topic.name}: {topic.type_name} was recorded as {there}, installed is {here}: its '
            'bytes would be garbage'
        )


def clock_message(stamp_ns: int) -> bytes:
    """Return a rosgraph_msgs/Clock as bytes."""
    return _CLOCK_MESSAGE.pack(0, 1, 0, 0, *divmod(stamp_ns, NS_PER_S))


def summary(sent: Mapping[str, int], duration_s: float, late_s: float) -> dict[str, object]:
    """Return what was played, for people and machines."""
    return {
        'messages': sum(sent.values()),
        'duration_s': round(duration_s, 3),
        'worst_lateness_s': round(late_s, 4),
        'topics': dict(sorted(sent.items())),
    }
