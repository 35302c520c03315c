"""Which topics and what time of a bag are meant."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
import math
import re

from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import NS_PER_S

_NAME = re.compile(r'(/[A-Za-z_][A-Za-z0-9_]*)+')


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by name or pattern (``/camera/*``), and a range of time from the bag's start."""

    topics: tuple[str, ...] = ()
    """Empty = all."""
    exclude: tuple[str, ...] = ()
    start_s: float = 0.0
    end_s: float = math.inf

    def names(self, bag: BagReader) -> list[str]:
        """
        Return the topics of a bag that are meant.

        :raises UnknownNameError: a name or pattern that fits none
        """
        chosen = _matching(bag, self.topics) if self.topics else set(bag.topics)
        return sorted(chosen - _matching(bag, self.exclude))

    def range_ns(self, bag: BagReader) -> tuple[int, int]:
        """
        Return begin and end; the end does not belong to it.

        :raises BagError: nothing of the bag is in it
        """
        if not 0.0 <= self.start_s < self.end_s:
            raise BagError(f'from {self.start_s:g} to {self.end_s:g} s: allowed is 0 <= from < to')
        duration_s = (bag.end_ns - bag.start_ns) / NS_PER_S
        if self.start_s > duration_s:
            raise BagError(
                f'{bag.path}: {self.start_s:g} s is after its end, it lasts {duration_s:.3f} s'
            )
        end_ns = bag.end_ns + 1
        if self.end_s < duration_s:
            end_ns = bag.start_ns + round(self.end_s * NS_PER_S)
        return bag.start_ns + round(self.start_s * NS_PER_S), end_ns


def _matching(bag: BagReader, patterns: Collection[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        names = {name for name in bag.topics if fnmatchcase(name, pattern)}
        if not names:
            raise UnknownNameError(f'topic in {bag.path}', pattern, bag.topics)
        found |= names
    return found


def remaps(words: Sequence[str], bag: BagReader) -> Mapping[str, str]:
    """
    Read ``/old:=/new`` words.

    :raises BagError: a word of another form, or a name that can't be a topic
    :raises UnknownNameError: the bag has no such topic
    """
    renamed: dict[str, str] = {}
    for word in words:
        old, separator, new = word.partition(':=')
        if not separator or not _NAME.fullmatch(new):
            raise BagError(f'{word!r}: remaps have the form /old:=/new')
        if old not in bag.topics:
            raise UnknownNameError(f'topic in {bag.path}', old, bag.topics)
        renamed[old] = new
    return renamed
