"""What a bag tells of the guard: its verdicts, what they were given, and the parameters."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
import struct
from typing import Any

from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import Input, NS_PER_S
from chunkpilot_nodes import qos
from chunkpilot_nodes.guard_inputs import TOPICS

VERDICT = 'chunkpilot/msg/SafetyVerdict'
REQUEST = 'request'
_STAMP = {b'\x00\x01': struct.Struct('<iI'), b'\x00\x00': struct.Struct('>iI')}


@dataclass(slots=True)
class Taken:
    """A message that the guard took, None where the bag lacks it."""

    entry: Input
    message: Any


class GuardBag:
    """One bag; messages are decoded when they are asked for."""

    def __init__(self, bag: BagReader) -> None:
        """
        Read which messages there are.

        :raises BagError: the bag has no verdicts, or none that can be decided once more
        """
        self._bag = bag
        verdicts = [name for name, kind in bag.topics.items() if kind == VERDICT]
        if len(verdicts) != 1:
            found = ', '.join(verdicts) or 'none'
            raise BagError(f'{bag.path}: topics of guards: {found}; exactly one is needed')
        self.verdict_topic = verdicts[0]
        self._namespace = verdicts[0].removesuffix('verdict')
        text = bag.details[self.verdict_topic].definition.text
        if text and 'input_stamps' not in text:
            raise BagError(
                f'{bag.path}: recorded before verdicts told what the guard had taken: '
                'this bag can be explained, not decided once more'
            )
        self.parameters = self._read_parameters()
        self._left: dict[str, dict[int, deque[Message]]] = {}
        self._index()

    def _read_parameters(self) -> dict[int, Any]:
        topic = f'{self._namespace}guard/parameters'
        if not self._bag.counts.get(topic):
            raise BagError(
                f'{self._bag.path}: no message of {topic}, so nobody knows which limits were in '
                'force; record it, too'
            )
        found = [self._bag.decode(m) for m in self._bag.messages([topic])]
        return {int(message.session): message for message in found}

    def _index(self) -> None:
        names = {f'{self._namespace}{topic}': topic for topic in TOPICS}
        names[f'{self._namespace}guard/events'] = REQUEST
        wanted = [name for name in names if name in self._bag.topics]
        for message in self._bag.messages(wanted):
            by_stamp = self._left.setdefault(names[message.topic], defaultdict(deque))
            by_stamp[_header_ns(message)].append(message)

    def verdicts(self) -> Iterator[Any]:
        """Iterate over verdicts in the order in which they were recorded."""
        for message in self._bag.messages([self.verdict_topic]):
            yield self._bag.decode(message)

    def take(self, entry: Input) -> Taken:
        """Return a message that a verdict names; each is handed out once, but for latched ones."""
        waiting = self._left.get(entry.topic, {}).get(entry.stamp_ns)
        latched = entry.topic in TOPICS and TOPICS[entry.topic][1] is qos.LATCHED
        while waiting:
            again = latched and len(waiting) == 1  # a guard that was restarted hears it, too
            message = self._bag.decode(waiting[0] if again else waiting.popleft())
            if entry.topic != REQUEST or message.kind == REQUEST:
                return Taken(entry, message)
        return Taken(entry, None)

    def known_before(self, stamp_ns: int) -> Iterator[Taken]:
        """Iterate over latched messages that are older than a time; they may be taken again."""
        for topic, (_, profile) in TOPICS.items():
            if profile is qos.LATCHED:
                for sent_ns, waiting in self._left.get(topic, {}).items():
                    if sent_ns < stamp_ns:
                        entry = Input(topic, sent_ns, stamp_ns)
                        yield from (Taken(entry, self._bag.decode(m)) for m in waiting)

    @property
    def path(self) -> Path:
        """Where the bag is."""
        return self._bag.path


def _header_ns(message: Message) -> int:
    """Return the stamp of a message that begins with a header, without decoding it."""
    layout = _STAMP.get(message.cdr[:2])
    if layout is None or len(message.cdr) < 12:
        raise BagError(f'message of {message.topic} at {message.stamp_ns}: no header in it')
    sec, nanosec = layout.unpack_from(message.cdr, 4)
    return int(sec) * NS_PER_S + int(nanosec)
