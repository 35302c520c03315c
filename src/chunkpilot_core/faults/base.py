"""What every fault is: a small frozen dataclass that turns one message of a stream into others."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
import math
from typing import Any, ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
import numpy as np

Memory = dict[str, Any]
"""What one fault of one stream remembers; faults themselves are values and never change."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A message and when it leaves [ns, the clock of the caller]."""

    due_ns: int
    message: Any


@dataclass(frozen=True)
class Fault(ABC):
    """When it is in force; what it does is :meth:`apply`."""

    kind: ClassVar[str]

    start_s: float = option(0.0, 'since the plan began', unit='s', min=0.0)
    end_s: float = option(math.inf, 'since the plan began', unit='s', min=0.0)
    probability: float = option(1.0, 'share of the messages that it hits', min=0.0, max=1.0)

    def __post_init__(self) -> None:
        if not self.end_s > self.start_s:  # what never happens proves nothing
            raise ConfigError(f'end_s: {self.end_s} must be after start_s, {self.start_s}')

    def active(self, elapsed_s: float) -> bool:
        """Whether it is in force."""
        return self.start_s <= elapsed_s < self.end_s

    @abstractmethod
    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """Return what leaves instead of ``item``; its message is not changed in place."""

    def spare(self, item: Stamped, memory: Memory) -> Iterable[Stamped]:
        """Return what leaves when the fault does not hit ``item``."""
        return (item,)
