"""A short memory of measured robot states, looked up by time."""

from collections import deque
from collections.abc import Iterator, Sequence
import math

from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.perception.base import RobotState
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64, JointState, nanoseconds, seconds
import numpy as np


class History:
    """Joint states of the last ``length_s`` seconds in ``robot.joints`` order, oldest first."""

    def __init__(self, robot: Robot, length_s: float) -> None:
        self.robot = robot
        self.kinematics = Kinematics(robot)
        self._length_ns = nanoseconds(length_s)
        self._entries: deque[tuple[int, F64, F64]] = deque()
        self._last: RobotState | None = None

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest state; None without any."""
        return self._entries[-1][0] if self._entries else None

    def clear(self) -> None:
        """Forget every state."""
        self._entries.clear()
        self._last = None

    def add(self, state: JointState) -> None:
        """
        Take a measured state, matched by joint name; joints of other robots are ignored.

        :raises InvalidDataError: empty, not finite, not newer than the newest, or without a joint
            of the robot
        """
        positions = self._pick(state, state.positions, 'position')
        if len(state.velocities) and not np.all(np.isnan(state.velocities)):
            velocities = self._pick(state, state.velocities, 'velocity')
        else:
            velocities = self._difference(state.stamp_ns, positions)
        newest = self.newest_ns
        if newest is not None and state.stamp_ns <= newest:
            late_s = seconds(newest - state.stamp_ns)
            raise InvalidDataError(f'joint state is {late_s:g} s older than the newest one')
        self._entries.append((state.stamp_ns, positions, velocities))
        while self._entries[0][0] < state.stamp_ns - self._length_ns:
            self._entries.popleft()

    def at(self, stamp_ns: int) -> RobotState | None:
        """
        Return the robot at ``stamp_ns``, linear between neighbours; None outside of what is
        remembered.
        """
        if self._last is not None and self._last.stamp_ns == stamp_ns:
            return self._last
        after = next((i for i, entry in enumerate(self._entries) if entry[0] >= stamp_ns), None)
        if after is None or (after == 0 and self._entries[0][0] != stamp_ns):
            return None
        end_ns, positions, velocities = self._entries[after]
        if end_ns != stamp_ns:
            start_ns, first, first_velocities = self._entries[after - 1]
            share = (stamp_ns - start_ns) / (end_ns - start_ns)
            positions = first + share * (positions - first)
            velocities = first_velocities + share * (velocities - first_velocities)
        return self._state(stamp_ns, positions, velocities)

    def newest(self) -> RobotState | None:
        """Return the newest state; None without any."""
        if not self._entries:
            return None
        if self._last is None or self._last.stamp_ns != self._entries[-1][0]:
            self._last = self._state(*self._entries[-1])
        return self._last

    def since(self, stamp_ns: int | None) -> Iterator[RobotState]:
        """Give every state after ``stamp_ns``, oldest first; the newest one for None."""
        if not self._entries:
            return
        if stamp_ns is None:
            stamp_ns = self._entries[-1][0] - 1
        for entry in [entry for entry in self._entries if entry[0] > stamp_ns]:
            yield self._state(*entry)

    def _state(self, stamp_ns: int, positions: F64, velocities: F64) -> RobotState:
        arm = len(self.robot.chain)
        tool = self.kinematics.forward(positions[:arm])
        moved = self.kinematics.jacobian(positions[:arm])[:3] @ velocities[:arm]
        width, opening = float(positions[arm:].sum()), float(velocities[arm:].sum())
        fingers = positions[arm:]
        off_centre = float(fingers[0] - fingers[1]) / 2 if len(fingers) == 2 else 0.0
        return RobotState(stamp_ns, positions, velocities, tool, moved, width, opening, off_centre)

    def _pick(self, state: JointState, values: F64, what: str) -> F64:
        if not len(state.names) or len(values) != len(state.names):
            raise InvalidDataError(
                f'joint state with {len(state.names)} names and {len(values)} {what} values'
            )
        index = {name: i for i, name in enumerate(state.names)}
        picked = _by_name(values, index, self.robot.joints)
        for name, value in zip(self.robot.joints, picked, strict=True):
            if not math.isfinite(value):
                raise InvalidDataError(f'{what} of {name} is {value}, must be finite')
        return picked

    def _difference(self, stamp_ns: int, positions: F64) -> F64:
        # drivers may leave velocities out: the slope since the newest state then
        if not self._entries or stamp_ns <= self._entries[-1][0]:
            return np.zeros_like(positions)
        before_ns, before, _ = self._entries[-1]
        return (positions - before) / seconds(stamp_ns - before_ns)


def _by_name(values: F64, index: dict[str, int], names: Sequence[str]) -> F64:
    try:
        return np.array([values[index[name]] for name in names], np.float64)
    except KeyError as error:
        unknown = UnknownNameError('joint', error.args[0], index)
        raise InvalidDataError(f'joint state lacks a joint of the robot: {unknown}') from None
