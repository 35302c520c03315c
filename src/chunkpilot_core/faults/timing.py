"""Faults of transport: late, lost, twice, in the wrong order, in bursts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.faults.base import Fault, Memory, Stamped
from chunkpilot_core.types import nanoseconds
import numpy as np


@dataclass(frozen=True)
class Delay(Fault):
    """Messages leave later, and with jitter also out of order; their stamps stay."""

    kind: ClassVar[str] = 'delay'

    delay_s: float = option(0.1, 'of every message', unit='s', min=0.0, max=3600.0)
    jitter_s: float = option(0.0, 'at most this much more, drawn', unit='s', min=0.0, max=3600.0)

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        late_s = self.delay_s + self.jitter_s * random.random()
        return (Stamped(item.due_ns + nanoseconds(late_s), item.message),)


@dataclass(frozen=True)
class Drop(Fault):
    """Messages are lost."""

    kind: ClassVar[str] = 'drop'

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        return ()


@dataclass(frozen=True)
class Duplicate(Fault):
    """Messages leave more than once."""

    kind: ClassVar[str] = 'duplicate'

    copies: int = option(1, 'more than there were', min=1, max=1000)
    after_s: float = option(0.0, 'between two of them', unit='s', min=0.0, max=3600.0)

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        gap_ns = nanoseconds(self.after_s)
        return [
            Stamped(item.due_ns + count * gap_ns, item.message) for count in range(self.copies + 1)
        ]


@dataclass(frozen=True)
class Reorder(Fault):
    """A message leaves after the next one, with which it goes."""

    kind: ClassVar[str] = 'reorder'

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        if 'held' in memory:
            return self.spare(item, memory)
        memory['held'] = item.message
        return ()

    def spare(self, item: Stamped, memory: Memory) -> Iterable[Stamped]:
        """See :meth:`Fault.spare`."""
        if 'held' not in memory:
            return (item,)
        return (item, Stamped(item.due_ns, memory.pop('held')))


@dataclass(frozen=True)
class Burst(Fault):
    """Messages wait for the end of a period and then leave all at once."""

    kind: ClassVar[str] = 'burst'

    period_s: float = option(0.1, 'between two bursts', unit='s', min=0.001, max=3600.0)

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        period_ns = nanoseconds(self.period_s)
        return (Stamped(-(-item.due_ns // period_ns) * period_ns, item.message),)
