"""Several bags as one, in the order of time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge as in_order
from pathlib import Path
import re

from chunkpilot_core.bags import copy
from chunkpilot_core.bags.copy import plain, Progress, Written
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.errors import BagError

RANGES = 'merged_ranges_ns'
"""Custom data: first and last time of each merged bag as ``first:last``, with spaces between."""
_MAX_RANGES = 10_000
Range = tuple[int, int]


def merge(
    paths: Sequence[Path], out: Path, progress: Progress = plain, align: bool = False
) -> Written:
    """
    Write one bag with all messages of several.

    :param align: let all start when the first one does: for recordings of clocks that disagree
    :raises BagError: one can't be read, they contradict one another, or the disk is full
    """
    if len(paths) < 2:
        raise BagError(f'{len(paths)} bag: merging takes at least two')
    with ExitStack() as stack:
        bags = [stack.enter_context(BagReader(path)) for path in paths]
        topics = copy.joined(bags)
        first_ns = min((bag.start_ns for bag in bags if bag.start_ns), default=0)
        shifts = [first_ns - bag.start_ns if align else 0 for bag in bags]
        streams = [_shifted(bag, by) for bag, by in zip(bags, shifts, strict=True)]
        messages = in_order(*streams, key=lambda message: message.stamp_ns)
        return copy.write(out, topics, messages, _metadata(bags, shifts), progress)


def _shifted(bag: BagReader, by_ns: int) -> Iterator[Message]:
    for message in bag.messages():
        if not by_ns:
            yield message
            continue
        sent_ns = message.published_ns
        sent_ns = None if sent_ns is None else max(sent_ns + by_ns, 0)
        yield replace(message, stamp_ns=message.stamp_ns + by_ns, published_ns=sent_ns)


def ranges(metadata: Mapping[str, str]) -> tuple[Range, ...]:
    """
    Return the first and last times [ns] of the bags that one was merged of; none for another.

    :raises BagError: what stands there is no such list
    """
    words = metadata.get(RANGES, '').split(' ', _MAX_RANGES)
    found = [re.fullmatch(r'(\d{1,19}):(\d{1,19})', word, re.ASCII) for word in words if word]
    pairs = [(int(match[1]), int(match[2])) for match in found if match]
    if len(pairs) != len(found):
        raise BagError(f'{RANGES}: {metadata[RANGES][:50]!r}, must be first:last first:last ...')
    return tuple(pairs)


def across(ranges: Sequence[Range], start_ns: int, end_ns: int) -> bool:
    """Return whether a time reaches from one merged bag into another: none contains it."""
    return bool(ranges) and not any(first <= start_ns <= end_ns <= last for first, last in ranges)


def _metadata(bags: Sequence[BagReader], shifts: Sequence[int]) -> dict[str, str]:
    """Return what all agree on, the rest under the names of the bags, and where they meet."""
    found = {'merged_from': ' '.join(bag.path.name for bag in bags)}
    spans = [
        (first + by_ns, last + by_ns)
        for bag, by_ns in zip(bags, shifts, strict=True)
        for first, last in ranges(bag.metadata) or [(bag.start_ns, bag.end_ns)]
    ]
    found[RANGES] = ' '.join(f'{first}:{last}' for first, last in spans[:_MAX_RANGES])
    for key in sorted({key for bag in bags for key in bag.metadata} - {RANGES}):
        values = [bag.metadata.get(key) for bag in bags]
        if key == 'dropped_messages':
            found[key] = str(sum(int(value) for value in values if value and value.isdecimal()))
        elif len(set(values)) == 1:
            found[key] = str(values[0])
        else:
            for bag, value in zip(bags, values, strict=True):
                if value is not None:
                    found[f'{bag.path.name}.{key}'] = value
    return found
