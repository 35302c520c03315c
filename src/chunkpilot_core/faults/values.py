"""Faults of content: frozen, not finite, jumped, scaled, noisy, in the wrong order."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.faults import fields
from chunkpilot_core.faults.base import Fault, Memory, Stamped
from chunkpilot_core.types import F64
import numpy as np


@dataclass(frozen=True)
class FieldFault(Fault):
    """Changes fields of messages."""

    field: tuple[str, ...] = option(
        (), 'paths like position or groups[0].values; none = the numbers that matter'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.field:
            fields.check(path)

    def paths(self, message: Any) -> tuple[str, ...]:
        """
        Return the fields that are hit.

        :raises InvalidDataError: none is named, and the message has none of those that matter
        """
        found = self.field or fields.present(message, fields.VALUES)[:1]
        if not found:
            known = ', '.join(fields.names(message))
            raise InvalidDataError(
                f'{self.kind} needs a field of {type(message).__name__}: {known}'
            )
        return found


@dataclass(frozen=True)
class NumberFault(FieldFault):
    """Changes numbers."""

    index: tuple[int, ...] = option(
        (), 'places in the flattened numbers, as in row * A + column; none = all', min=0
    )

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        message = item.message
        for path in self.paths(message):

            def change(value: Any) -> Any:
                return fields.numbers(value, lambda some: self.change(some, random), self.index)

            message = fields.edit(message, path, change)
        return (Stamped(item.due_ns, message),)

    @abstractmethod
    def change(self, values: F64, random: np.random.Generator) -> F64:
        """Return other numbers (n,)."""


@dataclass(frozen=True)
class Nan(NumberFault):
    """Numbers become NaN."""

    kind: ClassVar[str] = 'nan'

    def change(self, values: F64, random: np.random.Generator) -> F64:
        """See :meth:`NumberFault.change`."""
        return np.full(values.shape, np.nan)


@dataclass(frozen=True)
class Inf(NumberFault):
    """Numbers become infinite."""

    kind: ClassVar[str] = 'inf'

    negative: bool = option(False, 'minus infinity')

    def change(self, values: F64, random: np.random.Generator) -> F64:
        """See :meth:`NumberFault.change`."""
        return np.full(values.shape, -np.inf if self.negative else np.inf)


@dataclass(frozen=True)
class Jump(NumberFault):
    """A step is added to numbers."""

    kind: ClassVar[str] = 'jump'

    offset: float = option(0.1, 'what is added')

    def change(self, values: F64, random: np.random.Generator) -> F64:
        """See :meth:`NumberFault.change`."""
        return values + self.offset


@dataclass(frozen=True)
class Scale(NumberFault):
    """Numbers are multiplied."""

    kind: ClassVar[str] = 'scale'

    factor: float = option(2.0, 'by this')

    def change(self, values: F64, random: np.random.Generator) -> F64:
        """See :meth:`NumberFault.change`."""
        with np.errstate(invalid='ignore', over='ignore'):
            return values * self.factor


@dataclass(frozen=True)
class Noise(NumberFault):
    """Normal noise is added to numbers."""

    kind: ClassVar[str] = 'noise'

    sigma: float = option(0.01, 'standard deviation', min=0.0, max=1e6)

    def change(self, values: F64, random: np.random.Generator) -> F64:
        """See :meth:`NumberFault.change`."""
        return values + random.normal(0.0, self.sigma, values.shape)


@dataclass(frozen=True)
class Freeze(FieldFault):
    """Content stays as it was when the fault began; stamps and ids go on."""

    kind: ClassVar[str] = 'freeze'

    def paths(self, message: Any) -> tuple[str, ...]:
        """Return the fields that are hit: velocities stand with their positions."""
        more = fields.present(message, ('velocity', 'velocities'))
        return self.field or (*super().paths(message), *more)

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        message = item.message
        for path in self.paths(message):

            def keep(value: Any, path: str = path) -> Any:
                return memory.setdefault(path, value)

            message = fields.edit(message, path, keep)
        return (Stamped(item.due_ns, message),)


@dataclass(frozen=True)
class Permute(FieldFault):
    """Entries change places, in every named field alike."""

    kind: ClassVar[str] = 'permute'

    order: tuple[int, ...] = option(
        (), 'entry i is the old one at order[i]; none = drawn once', min=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.order) != list(range(len(self.order))):
            raise ConfigError(f'order: {list(self.order)} does not name each place once')

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""

        def change(value: Any) -> Any:
            size = len(value)
            if self.order and len(self.order) != size:
                raise InvalidDataError(f'order of {len(self.order)}, the field has {size} entries')
            order = self.order or memory.setdefault(str(size), random.permutation(size).tolist())
            if isinstance(value, np.ndarray):
                return value[list(order)]
            items = [value[i] for i in order]
            return type(value)(value.typecode, items) if hasattr(value, 'typecode') else items

        message = item.message
        for path in self.paths(message):
            message = fields.edit(message, path, change)
        return (Stamped(item.due_ns, message),)


@dataclass(frozen=True)
class ClockJump(FieldFault):
    """Stamps jump."""

    kind: ClassVar[str] = 'clock_jump'

    jump_s: float = option(-10.0, 'how far, negative = back', unit='s', min=-1e6, max=1e6)

    def paths(self, message: Any) -> tuple[str, ...]:
        """Return the fields that are hit: the stamp of the header, or of /clock."""
        return self.field or fields.present(message, ('header.stamp', 'stamp_ns', 'clock'))[:1]

    def apply(
        self, item: Stamped, memory: Memory, random: np.random.Generator
    ) -> Iterable[Stamped]:
        """See :meth:`Fault.apply`."""
        message = item.message
        for path in self.paths(message):
            message = fields.edit(message, path, self._shift)
        return (Stamped(item.due_ns, message),)

    def _shift(self, stamp: Any) -> Any:
        jump_ns = round(self.jump_s * 1e9)
        if isinstance(stamp, int):
            return max(stamp + jump_ns, 0)
        if not {'sec', 'nanosec'} <= set(fields.names(stamp)):
            raise InvalidDataError(f'{type(stamp).__name__} is no stamp')
        total = max(stamp.sec * 10**9 + stamp.nanosec + jump_ns, 0)
        sec, nanosec = divmod(total, 10**9)
        sec = min(sec, 2**31 - 1)
        return fields.edit(fields.edit(stamp, 'sec', lambda _: sec), 'nanosec', lambda _: nanosec)
