"""Which actions can't be undone, and whether a chunk asks for one."""

from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.safety.base import HeardChunk, Situation
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    Command,
    CommandGroup,
    F64,
    JointState,
    nanoseconds,
)
import numpy as np
from numpy.typing import NDArray

GRIP_S = 0.1  # fingers that are stopped for so long hold something
STANDS_S = 0.3  # a masked column that stands for so long has done what it was to do


@dataclass(frozen=True, slots=True)
class Wish:
    """An action of ``channel`` (a group's name) that its policy gates."""

    channel: str
    policy: str
    what: str  # in words
    asked: float
    last: float
    instead: F64  # values of the group while it is withheld
    beyond: float  # a gripper's target above this wants the same
    mask: NDArray[np.bool_] | None = None  # of values that can't be undone; None = a gripper
    target: F64 | None = None  # of the group, as asked
    at: F64 | None = None  # of the group, as sent last
    way: F64 | None = None  # 1 or -1 where it goes up or down; 0 elsewhere, and for rotations

    def wanted_by(self, heard: HeardChunk, situation: Situation, within_s: float) -> bool:
        """
        Return whether rows due between now and ``within_s`` later want it.

        A chunk that has no row for this time does not.
        """
        space, targets, chunk = situation.space, heard.targets, heard.chunk
        if space is None or targets is None:
            return False
        dt_ns = nanoseconds(chunk.dt_s)
        now = (situation.now_ns - chunk.start_ns) // dt_ns - heard.first_row
        end = now + nanoseconds(within_s) // dt_ns + 2  # the row that is approached counts, too
        rows = targets[max(now, 0) : max(end, 0), _columns(space, self.channel)]
        if not len(rows):
            return False
        if self.mask is None or self.target is None:
            return bool((rows > self.beyond).any())
        off = np.abs(rows - self.target)[:, self.mask].max(axis=1)
        return bool((off <= abs(self.asked - self.last) / 2.0).any())


def irreversible(
    group: CommandGroup,
    command: Command,
    situation: Situation,
    position: F64,
    config: GateConfig,
    anchors: dict[str, F64],
) -> Wish | None:
    """
    Return what a group that is no gripper asks for in columns that can't be undone.

    :param position: joints sent last, shape (J,)
    :param anchors: by group, from where changes count, however slow; missing ones are added
    """
    space = situation.space
    if space is None or command.space_hash != space.hash:
        return None
    own = next((entry for entry in space.groups if entry.name == group.name), None)
    mask = None if own is None else _mask(space, own)
    if own is None or mask is None or len(mask) != len(group.values):
        return None
    robot = situation.robot
    state = JointState(0, robot.joints, position, np.zeros(len(position)))
    at = spaces.from_joints(space, situation.kinematics, state)[_columns(space, group.name)]
    order = [group.names.index(name) for name in own.names] or range(len(mask))
    values = group.values[order]  # in the order of the space
    anchor = anchors.setdefault(group.name, at)
    change = np.where(mask, values - anchor, 0.0)
    worst = int(np.argmax(np.abs(change)))
    if abs(change[worst]) <= config.tolerance:
        return None
    straight = _straight(own, mask)
    way = np.where(straight & (np.abs(change) > config.tolerance), np.sign(change), 0.0)
    asked, last = float(values[worst]), float(at[worst])
    what = f'{group.name}[{worst}] from {last:.4f} to {asked:.4f}, which is irreversible'
    instead = group.values.copy()
    instead[order] = np.where(mask, at, values)
    return Wish(
        group.name, config.masked, what, asked, last, instead, np.inf, mask, values, at, way
    )


class Allowed:
    """How far an allowed action of masked columns has come; told the time by its caller."""

    def __init__(self, wish: Wish, now_ns: int) -> None:
        """Begin where the action is."""
        assert wish.at is not None
        self._way, self._reached = wish.way, wish.at
        self._seen, self._moved_ns = wish.at, now_ns

    def over(self, wish: Wish, now_ns: int, tolerance: float) -> bool:
        """Return whether it stands, or what is asked for now is another one: back, or beside."""
        assert wish.at is not None
        assert wish.target is not None
        assert self._way is not None
        if np.abs(wish.at - self._seen)[wish.mask].max() > tolerance:
            self._seen, self._moved_ns = wish.at, now_ns
        ahead = (wish.at - self._reached) * self._way
        self._reached = np.where(ahead > 0.0, wish.at, self._reached)
        back = (wish.target - self._reached) * self._way < -tolerance
        beside = (self._way == 0.0) & (wish.way != 0.0)
        stands = now_ns - self._moved_ns > nanoseconds(STANDS_S)
        return stands or bool((back | beside).any())


def _mask(space: ActionSpace, group: ActionGroup) -> NDArray[np.bool_] | None:
    """Return which values of a group's target (T,) can't be undone, None for none of them."""
    marked = np.array(space.irreversible[group.start : group.stop], bool)
    if not marked.any():
        return None
    mask = np.zeros(group.target_size, bool)
    plain = _plain(group)
    mask[:plain] = marked[:plain]
    mask[plain:] = marked[plain:].any()  # a rotation is one thing
    return mask


def _straight(group: ActionGroup, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of the masked values go up or down; those of a rotation do both."""
    straight: NDArray[np.bool_] = mask.copy()
    straight[_plain(group) :] = False
    return straight


def _plain(group: ActionGroup) -> int:
    return 3 if group.kind.cartesian else group.target_size


def _columns(space: ActionSpace, name: str) -> slice:
    return next(
        (columns for own, columns in spaces.target_slices(space) if own.name == name), slice(0, 0)
    )
