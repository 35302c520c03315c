"""The action space of imported data: what the mapping says, and bounds of the data."""

from collections.abc import Iterable

from chunkpilot_core import spaces
from chunkpilot_core.bags.imports.mapping import Action, Mapping
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    F64,
    Kind,
    Reference,
    Rotation,
)
import numpy as np

WIDER = 0.05  # of the range in the data, on both sides: the bound is not in the data
FASTER = 1.5  # limits of the data are widened so much: they are what was shown, not a robot's
_UNITS = {
    Kind.JOINT_POSITION: 'rad',
    Kind.JOINT_DELTA: 'rad',
    Kind.JOINT_VELOCITY: 'rad/s',
}


class Extent:
    """Smallest and largest numbers and changes of action columns, over all rows."""

    def __init__(self) -> None:
        self.low: F64 | None = None
        self.high: F64 | None = None
        self.change: F64 | None = None

    def add(self, actions: F64) -> None:
        """Look at the actions (T, A) of one episode."""
        if not len(actions):
            return
        low, high = actions.min(axis=0), actions.max(axis=0)
        change = np.abs(np.diff(actions, axis=0)).max(axis=0, initial=0.0)
        if self.low is None or self.high is None or self.change is None:
            self.low, self.high, self.change = low, high, change
            return
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.change = np.maximum(self.change, change)


def make(mapping: Mapping, widths: Iterable[int], dt_s: float, extent: Extent) -> ActionSpace:
    """
    Return the action space of imported rows.

    :param widths: columns of each entry of ``mapping.action``
    :raises ConfigError: entries that make no action space
    """
    sizes = list(widths)
    if mapping.space == 'ee_delta':
        space = spaces.ee_delta_space()
        if sum(sizes) != space.size:
            raise ConfigError(
                f'space ee_delta has {space.size} columns, the entries of action {sum(sizes)}'
            )
        return space
    groups, start = [], 0
    for number, (entry, size) in enumerate(zip(mapping.action, sizes, strict=True)):
        groups.append(_group(entry, number, start, size))
        start += size
    lower, upper = _bounds(mapping.action, sizes, extent)
    scale = np.abs([value for group in groups for value in group.scale])
    change = extent.change if extent.change is not None else np.zeros(start)
    relative = np.array([g.kind.relative for g in groups for _ in range(g.size)])
    step = np.where(relative, np.maximum(np.abs(lower), np.abs(upper)), change) * scale
    velocity = np.maximum(FASTER * step / dt_s, 1e-3)
    return spaces.make(
        ActionSpace(
            tuple(groups),
            tuple(lower.tolist()),
            tuple(upper.tolist()),
            tuple(velocity.tolist()),
            tuple((2.0 * velocity / dt_s).tolist()),
            tuple((4.0 * velocity / dt_s**2).tolist()),
            tuple(g.kind is Kind.GRIPPER for g in groups for _ in range(g.size)),
        )
    )


def _group(entry: Action, number: int, start: int, size: int) -> ActionGroup:
    where = f'action[{number}]'
    if not entry.kind:
        raise ConfigError(f'{where}: needs kind, or the file space')
    kind = Kind(entry.kind)
    names = entry.names or entry.joints
    for name in ('scale', 'offset'):
        if len(getattr(entry, name)) not in (1, size):
            raise ConfigError(f'{where}.{name}: needs 1 or {size} numbers')
    return ActionGroup(
        entry.group or f'group{number}',
        start,
        start + size,
        kind,
        entry.frame or ('world' if kind.cartesian else ''),
        Reference(entry.reference or ('commanded' if kind.relative else '')),
        Rotation(entry.rotation),
        names if not kind.cartesian else (),
        entry.unit or _UNITS.get(kind, 'm'),
        _wide(entry.scale, size),
        _wide(entry.offset, size),
    )


def _wide(values: tuple[float, ...], size: int) -> tuple[float, ...]:
    return values * size if len(values) == 1 else values


def _bounds(entries: tuple[Action, ...], sizes: list[int], extent: Extent) -> tuple[F64, F64]:
    total = sum(sizes)
    low = extent.low if extent.low is not None else np.full(total, -1.0)
    high = extent.high if extent.high is not None else np.full(total, 1.0)
    margin = np.maximum(WIDER * (high - low), 1e-6)
    lower, upper = low - margin, high + margin
    start = 0
    for number, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        for name, target in (('lower', lower), ('upper', upper)):
            values = getattr(entry, name)
            if values:
                if len(values) not in (1, size):
                    raise ConfigError(f'action[{number}].{name}: needs 1 or {size} numbers')
                target[start : start + size] = values
        start += size
    return lower, upper
