"""What the files of a bag offer to its reader, and the limits that hold for all of them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
import heapq
from pathlib import Path
from typing import Protocol

from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.errors import BagError

MAX_RECORD_BYTES = 2**28
"""Of one message, and of one chunk after decompression; recorders write a hundredth of it."""
MAX_OVERLAP_BYTES = 2**30
"""Of chunks that lie over one another in time and have to be held at once."""
MAX_STAMP_NS = 2**63 - 1

Row = tuple[int, int, bytes, int, int]
"""Time of receipt [ns], channel, serialised message, time of sending [ns], sequence."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One topic as one file knows it."""

    id: int
    topic: str
    definition: Definition
    serialization: str = 'cdr'
    profiles: str = ''
    count: int = 0


class StorageFile(Protocol):
    """One file of a bag."""

    path: Path
    channels: list[Channel]
    start_ns: int
    end_ns: int
    count: int

    def messages(
        self,
        channels: Collection[int],
        start_ns: int | None = None,
        stop_ns: int | None = None,
    ) -> Iterator[Row]:
        """Iterate over the messages of some channels in [start, stop) in order of time."""

    def as_written(self, channels: Collection[int]) -> Iterator[Row]:
        """Iterate over the messages of some channels as they stand in the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows in order of time that are opened when their time has come."""

    start_ns: int
    rows: Callable[[], Iterator[Row]]
    size: int = 0


def in_time_order(sources: Sequence[Source], where: Path) -> Iterator[Row]:
    """
    Merge sources by time; those that lie one after the other are opened one after the other.

    Of two rows at the same time that of the earlier source comes first.

    :raises BagError: a source has a row from before its start, or too many lie over one another
    """
    waiting = sorted(range(len(sources)), key=lambda i: (sources[i].start_ns, i), reverse=True)
    active: list[tuple[int, int, Row, Iterator[Row]]] = []
    held = 0
    while waiting or active:
        while waiting and (not active or sources[waiting[-1]].start_ns <= active[0][0]):
            number = waiting.pop()
            source = sources[number]
            rows = source.rows()
            first = next(rows, None)
            if first is None:
                continue
            if first[0] < source.start_ns:
                raise BagError(
                    f'{where}: damaged: its index says that nothing is older than '
                    f'{source.start_ns} ns, a message of {first[0]} ns is'
                )
            held += source.size
            if held > MAX_OVERLAP_BYTES:
                raise BagError(
                    f'{where}: {held} bytes of chunks lie over one another in time, at most '
                    f'{MAX_OVERLAP_BYTES} can be put in order'
                )
            heapq.heappush(active, (first[0], number, first, rows))
        if not active:
            return
        _, number, row, rows = active[0]
        yield row
        following = next(rows, None)
        if following is None:
            heapq.heappop(active)
            held -= sources[number].size
        else:
            heapq.heapreplace(active, (following[0], number, following, rows))
