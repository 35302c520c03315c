"""Clocks: in which order messages were written, and which stamps they carry."""

from collections.abc import Iterator
from dataclasses import dataclass, field
import struct

from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.findings import Finding
from chunkpilot_core.bags.play import CLOCK
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import NS_PER_S
import numpy as np
from numpy.typing import NDArray
from rosbags.interfaces import Nodetype

BACK_S = 0.05
"""What the stamps of a topic may go back: threads of a publisher that overtake one another."""
JUMP_S = 1.0
"""What the time between stamp and receipt may change, and messages may be out of order."""
_WINDOW = 50
_FEWEST = 3
"""Messages before and behind a jump: the least of what they waited tells clocks from delays."""
_STARTS_AGAIN = 2
"""How often the numbers of one sender may begin again; several senders have mixed ones."""
_REGULAR_COUNT = 20
_DIAGNOSTICS = 'diagnostic_msgs/msg/DiagnosticArray'


@dataclass(slots=True)
class _Order:
    """In which order the messages of a topic were written; places are counted over all."""

    first_place: int = 0
    last_place: int = 0
    count: int = 0
    newest_ns: int = 0
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """Place, time and by how much it is before its predecessor [ns]."""


@dataclass(slots=True)
class _Stamps:
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    sequence: int = 0
    starts: int = 0


class ClockCheck:
    """Takes every message; tells steps and jumps of the recorder's clock and of senders'."""

    def __init__(self, bag: BagReader) -> None:
        self._bag = bag
        self._order = {name: _Order() for name in bag.topics}
        latched = {name for name, topic in bag.details.items() if topic.latched}
        # latched messages are written again at a bag's start, whatever their stamps
        self._stamps = {
            name: _Stamps()
            for name in bag.topics
            if name not in latched and (name == CLOCK or _stamped(bag, name))
        }
        self._place = self._newest_ns = self._late = self._latest_ns = 0

    def add(self, message: Message) -> None:
        """Take a message, in the order in which they were written."""
        self._place += 1
        now_ns, order = message.stamp_ns, self._order[message.topic]
        back_ns = self._newest_ns - now_ns
        self._newest_ns = max(self._newest_ns, now_ns)
        if back_ns > JUMP_S * NS_PER_S:
            self._late += 1
            self._latest_ns = max(self._latest_ns, back_ns)
        order.first_place = order.first_place or self._place
        order.last_place, order.count = self._place, order.count + 1
        back_ns = order.newest_ns - now_ns
        if back_ns > JUMP_S * NS_PER_S:
            order.steps.append((self._place, now_ns, back_ns))
            order.newest_ns = now_ns
        order.newest_ns = max(order.newest_ns, now_ns)
        stamps = self._stamps.get(message.topic)
        sent_ns = _stamp_ns(message.cdr) if stamps is not None else None
        if stamps is None or not sent_ns:
            return
        if message.sequence:
            stamps.starts += message.sequence <= stamps.sequence
            stamps.sequence = message.sequence
        stamps.sent.append(sent_ns)
        stamps.received.append(now_ns)

    def findings(self) -> Iterator[Finding]:
        """Iterate over what was found: each kind once per topic, with how often it was."""
        yield from self._recorder()
        for name, stamps in self._stamps.items():
            if stamps.starts > _STARTS_AGAIN or not stamps.sent:
                continue  # of several senders each may have a clock of its own
            sent = np.array(stamps.sent, np.int64)
            received = np.array(stamps.received, np.int64)
            yield from self._senders(name, sent, received)

    def _recorder(self) -> Iterator[Finding]:
        """
        Tell a clock that went back: all topics did from one moment on.

        Messages of different topics may be written in any order: a busy recorder takes them one
        topic after the other.
        """
        steps = {name: order.steps for name, order in self._order.items() if order.steps}
        if steps:
            place, at_ns, _ = min(found[0] for found in steps.values())
            across = [o for o in self._order.values() if o.first_place < place <= o.last_place]
            often = [order for order in across if order.count >= _REGULAR_COUNT] or across
            if 2 * sum(bool(order.steps) for order in often) > len(often):
                back_s = max(step[2] for found in steps.values() for step in found) / NS_PER_S
                count = max(len(found) for found in steps.values())
                text = f"the recorder's clock went back by {back_s:.3f} s"
                yield self._told(text, '', at_ns, count)
                return
        if self._late:
            text = (
                f'{self._late} messages stand behind newer ones, by up to '
                f'{self._latest_ns / NS_PER_S:.3f} s: the recorder was busy'
            )
            yield Finding('order', text, count=self._late, problem=False)

    def _senders(
        self, name: str, sent: NDArray[np.int64], received: NDArray[np.int64]
    ) -> Iterator[Finding]:
        """Compare the stamps (N,) of a topic with one another and with their receipt (N,)."""
        back = np.flatnonzero(np.diff(sent) < -BACK_S * NS_PER_S) + 1
        if len(back):
            back_s = float((sent[back - 1] - sent[back]).max()) / NS_PER_S
            text = f'stamps go back by {back_s:.3f} s'
            yield self._told(text, name, int(received[back[0]]), len(back))
        if name == CLOCK:
            return
        lag, limit_ns = received - sent, JUMP_S * NS_PER_S
        jumps = [
            (int(index), _jump_ns(lag, int(index)))
            for index in np.setdiff1d(np.flatnonzero(np.abs(np.diff(lag)) > limit_ns) + 1, back)
        ]
        jumps = [jump for jump in jumps if abs(jump[1]) > limit_ns]
        if jumps:
            largest = max((by_ns for _, by_ns in jumps), key=abs)
            text = f'stamps jump by {-largest / NS_PER_S:.3f} s against the time of receipt'
            yield self._told(text, name, int(received[jumps[0][0]]), len(jumps))
        off_s = float(lag.min()) / NS_PER_S
        if abs(off_s) > 3600 or off_s < -JUMP_S:
            text = f"stamps and the recorder's clock are {off_s:.1f} s apart"
            yield Finding('clock', text, name, problem=False)

    def _told(self, text: str, topic: str, stamp_ns: int, count: int) -> Finding:
        if count > 1:
            text = text.replace(' by ', ' by up to ', 1) + f', {count} times'
        return Finding('clock', text, topic, (stamp_ns - self._bag.start_ns) / NS_PER_S, count)


def _jump_ns(lag: NDArray[np.int64], index: int) -> int:
    """Return how much less or more messages took from one on; 0 for some that were late."""
    before, after = lag[max(index - _WINDOW, 0) : index], lag[index : index + _WINDOW]
    if min(len(before), len(after)) < _FEWEST:
        return 0
    return int(after.min() - before.min())


def _stamped(bag: BagReader, topic: str) -> bool:
    """Return whether messages begin with a std_msgs/Header of one sender's clock."""
    if bag.topics[topic] == _DIAGNOSTICS or len(bag.details[topic].qos) > 1:
        return False  # of several senders each may have a clock of its own
    definition = bag.details[topic].definition
    try:
        store = schemas.decoder(definition).store
    except BagError:
        return False
    _, (kind, detail) = store.fielddefs[definition.type_name][1][0]
    return bool(kind == Nodetype.NAME and detail == 'std_msgs/msg/Header')


def _stamp_ns(cdr: bytes) -> int | None:
    """Return the time at the start of a message, None where it is too short for one."""
    if len(cdr) < 12:
        return None
    order = '<' if cdr[1] & 1 else '>'
    seconds, nanoseconds = struct.unpack_from(f'{order}iI', cdr, 4)
    return int(seconds) * NS_PER_S + int(nanoseconds)
