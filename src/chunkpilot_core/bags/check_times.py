"""Gaps: when messages came, and when regular ones did not."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from chunkpilot_core.bags.findings import Finding
from chunkpilot_core.bags.merge import across, Range
from chunkpilot_core.bags.play import MOVING
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.types import NS_PER_S
import numpy as np
from numpy.typing import NDArray

REGULAR_COUNT = 20
REGULAR_RATIO = 3.0
"""A topic is regular when 9 of 10 periods are shorter than so many medians."""
GAP_MEDIANS = 10.0


class TimeCheck:
    """Takes every message; tells gaps."""

    def __init__(self, bag: BagReader, gap_s: float, ranges: Sequence[Range] = ()) -> None:
        """
        Take a bag.

        :param gap_s: silence of a regular topic that is told
        :param ranges: times [ns] of the bags that it was merged of
        """
        self._bag = bag
        self._gap_s = gap_s
        self._ranges = ranges
        self._received: dict[str, list[int]] = {name: [] for name in bag.topics}
        self._latched = {name for name, topic in bag.details.items() if topic.latched}
        self._commands = {name for name, kind in bag.topics.items() if _commands(name, kind)}
        """Silent while nobody acts, which is no fault."""

    def add(self, message: Message) -> None:
        """Take a message."""
        self._received[message.topic].append(message.stamp_ns)

    def findings(self) -> Iterator[Finding]:
        """Iterate over what was found."""
        regular = {name: found for name in self._received if (found := self._regular(name))}
        spans = [stamps for name, (stamps, _) in regular.items() if name not in self._commands]
        first = min((int(stamps[0]) for stamps in spans), default=0)
        last = max((int(stamps[-1]) for stamps in spans), default=0)
        for name, (stamps, median) in regular.items():
            yield from self._gaps(name, stamps, median, first, last)

    def _regular(self, name: str) -> tuple[NDArray[np.int64], float] | None:
        """Return when the messages of a regular topic came, and its period [s]."""
        received = self._received[name]
        if name in self._latched or len(received) < REGULAR_COUNT:
            return None
        stamps = np.sort(np.array(received, np.int64))
        periods = np.diff(stamps) / NS_PER_S
        median = float(np.median(periods))
        if float(np.quantile(periods, 0.9)) > REGULAR_RATIO * median:
            return None
        return stamps, median

    def _gaps(
        self, name: str, stamps: NDArray[np.int64], median: float, first: int, last: int
    ) -> Iterator[Finding]:
        """Compare a regular topic with itself, and with the others where they begin and end."""
        limit_s = max(self._gap_s, GAP_MEDIANS * median)
        periods = np.diff(stamps) / NS_PER_S
        for index in np.flatnonzero(periods > limit_s)[:100]:
            if across(self._ranges, int(stamps[index]), int(stamps[index + 1])):
                continue  # between one bag and the next
            text = f'nothing for {periods[index]:.3f} s, usual are {median:.4f} s'
            problem = name not in self._commands
            yield self._finding(text, name, int(stamps[index]), problem)
        if name in self._commands:
            return
        # a topic of a bag that was merged with others begins and ends with its own bag
        first = max([first, *(start for start, _ in self._ranges if start <= stamps[0])])
        last = min([last, *(end for _, end in self._ranges if end >= stamps[-1])])
        late_s = (int(stamps[0]) - first) / NS_PER_S
        if late_s > limit_s:
            yield self._finding(f'begins {late_s:.3f} s after others', name, int(stamps[0]))
        early_s = (last - int(stamps[-1])) / NS_PER_S
        if early_s > limit_s:
            yield self._finding(f'ends {early_s:.3f} s before others', name, int(stamps[-1]))

    def _finding(self, text: str, topic: str, stamp_ns: int, problem: bool = True) -> Finding:
        at_s = (stamp_ns - self._bag.start_ns) / NS_PER_S
        return Finding('gap', text, topic, at_s, problem=problem)


def _commands(topic: str, type_name: str) -> bool:
    return type_name == 'chunkpilot/msg/Command' or any(fnmatchcase(topic, m) for m in MOVING)
