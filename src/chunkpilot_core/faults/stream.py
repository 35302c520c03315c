"""One stream of messages with its faults, driven by the clock of its caller."""

from collections.abc import Sequence
import heapq
from typing import Any

from chunkpilot_core.faults.base import Fault, Memory, Stamped
from chunkpilot_core.types import seconds
import numpy as np


class Stream:
    """
    Takes messages and gives those that are due; the same seed and inputs give the same outputs.

    Without a fault in force messages leave at once, as the same objects.
    """

    def __init__(self, faults: Sequence[Fault], seed: int = 0) -> None:
        """
        Begin empty; before :meth:`begin` no fault is in force.

        :param faults: applied in this order, each to what the one before gives
        """
        self._faults = tuple(faults)
        self._memories: list[Memory] = [{} for _ in self._faults]
        self._random = np.random.default_rng(seed)
        self._waiting: list[tuple[int, int, Any]] = []
        self._count = 0
        self._began_ns: int | None = None
        self.hit = 0
        """Messages that a fault was applied to."""
        self.applied = [0] * len(self._faults)
        """How often each fault was."""

    @property
    def waiting(self) -> int:
        """How many messages have not left yet."""
        return len(self._waiting)

    def begin(self, now_ns: int) -> None:
        """Let the time of the faults begin."""
        self._began_ns = now_ns

    def in_force(self, now_ns: int) -> bool:
        """Whether any fault is in force, or holds something back."""
        return bool(self._waiting) or any(
            memory or self._active(fault, now_ns)
            for fault, memory in zip(self._faults, self._memories, strict=True)
        )

    def push(self, message: Any, now_ns: int) -> None:
        """
        Take a message.

        :raises InvalidDataError: a fault does not fit the message
        """
        items = [Stamped(now_ns, message)]
        hit = False
        for number, (fault, memory) in enumerate(zip(self._faults, self._memories, strict=True)):
            active, before, items = self._active(fault, now_ns), items, []
            for item in before:
                if active and (
                    fault.probability >= 1.0 or self._random.random() < fault.probability
                ):
                    items.extend(fault.apply(item, memory, self._random))
                    self.applied[number] += 1
                    hit = True
                else:
                    items.extend(fault.spare(item, memory))
            if not active:
                memory.clear()
        for item in items:
            self._count += 1
            heapq.heappush(self._waiting, (item.due_ns, self._count, item.message))
        self.hit += hit

    def due(self, now_ns: int) -> list[Any]:
        """Return the messages that leave now, and forget them."""
        found = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            found.append(heapq.heappop(self._waiting)[2])
        return found

    def _active(self, fault: Fault, now_ns: int) -> bool:
        return self._began_ns is not None and fault.active(seconds(now_ns - self._began_ns))
