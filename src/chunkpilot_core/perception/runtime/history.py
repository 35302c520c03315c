"""A short memory of measured robot states, looked up by time."""

from collections import deque
from collections.abc import Iterator

from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.kinematics import Kinematics, Pose
from chunkpilot_core.perception.base import RobotState
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64, JointState, nanoseconds, seconds
import numpy as np


class History:
    """Joint states of the last ``length_s`` seconds in ``robot.joints`` order, oldest first."""

    def __init__(self, robot: Robot, length_s: float) -> None:
        self.robot = robot
        self._kinematics = Kinematics(robot)
        self._joints = robot.joints
        self._arm = len(robot.chain)
        self._length_ns = nanoseconds(length_s)
        self._entries: deque[tuple[int, F64, F64]] = deque()
        self._states: dict[int, RobotState] = {}
        self._names: tuple[str, ...] | None = None
        self._order: list[int] = []

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest state; None without any."""
        return self._entries[-1][0] if self._entries else None

    def clear(self) -> None:
        """Forget every state."""
        self._entries.clear()
        self._states.clear()

    def add(self, state: JointState) -> None:
        """
        Take a measured state, matched by joint name; joints of other robots are ignored.

        :raises InvalidDataError: empty, not finite, not newer than the newest, or without a joint
            of the robot
        """
        self._match(state)
        positions = self._pick(state.positions, 'position')
        if len(state.velocities) and not np.all(np.isnan(state.velocities)):
            velocities = self._pick(state.velocities, 'velocity')
        else:
            velocities = self._difference(state.stamp_ns, positions)
        newest = self.newest_ns
        if newest is not None and state.stamp_ns <= newest:
            late_s = seconds(newest - state.stamp_ns)
            raise InvalidDataError(f'joint state is {late_s:g} s older than the newest one')
        self._entries.append((state.stamp_ns, positions, velocities))
        while self._entries[0][0] < state.stamp_ns - self._length_ns:
            self._states.pop(self._entries.popleft()[0], None)

    def at(self, stamp_ns: int) -> RobotState | None:
        """
        Return the robot at ``stamp_ns``, linear between neighbours; None outside of what is
        remembered.
        """
        if stamp_ns in self._states:
            return self._states[stamp_ns]
        after = next((i for i, entry in enumerate(self._entries) if entry[0] >= stamp_ns), None)
        if after is None or (after == 0 and self._entries[0][0] != stamp_ns):
            return None
        end_ns, positions, velocities = self._entries[after]
        if end_ns == stamp_ns:
            return self._measured(self._entries[after])
        start_ns, first, first_velocities = self._entries[after - 1]
        share = (stamp_ns - start_ns) / (end_ns - start_ns)
        return self._state(
            stamp_ns,
            first + share * (positions - first),
            first_velocities + share * (velocities - first_velocities),
        )

    def newest(self) -> RobotState | None:
        """Return the newest state; None without any."""
        return self._measured(self._entries[-1]) if self._entries else None

    def since(self, stamp_ns: int | None) -> Iterator[RobotState]:
        """Give every state after ``stamp_ns``, oldest first; the newest one for None."""
        if not self._entries:
            return
        if stamp_ns is None:
            stamp_ns = self._entries[-1][0] - 1
        for entry in [entry for entry in self._entries if entry[0] > stamp_ns]:
            yield self._measured(entry)

    def _measured(self, entry: tuple[int, F64, F64]) -> RobotState:
        state = self._states.get(entry[0])
        if state is None:
            state = self._states[entry[0]] = self._state(*entry)
        return state

    def _state(self, stamp_ns: int, positions: F64, velocities: F64) -> RobotState:
        arm = self._arm
        frames = self._kinematics.frames(positions[:arm])
        tool = Pose(frames[-1, :3, 3], frames[-1, :3, :3])
        moved = _tool_velocity(frames, velocities[:arm])
        width, opening = float(positions[arm:].sum()), float(velocities[arm:].sum())
        fingers = positions[arm:]
        off_centre = float(fingers[0] - fingers[1]) / 2 if len(fingers) == 2 else 0.0
        return RobotState(stamp_ns, positions, velocities, tool, moved, width, opening, off_centre)

    def _match(self, state: JointState) -> None:
        if state.names == self._names:
            return
        index = {name: i for i, name in enumerate(state.names)}
        try:
            self._order = [index[name] for name in self._joints]
        except KeyError as error:
            unknown = UnknownNameError('joint', error.args[0], index)
            raise InvalidDataError(f'joint state lacks a joint of the robot: {unknown}') from None
        self._names = state.names

    def _pick(self, values: F64, what: str) -> F64:
        count = len(self._names or ())
        if len(values) != count:
            raise InvalidDataError(
                f'joint state with {count} names and {len(values)} {what} values'
            )
        picked: F64 = np.asarray(values, np.float64)[self._order]
        if not np.isfinite(picked).all():
            bad = int(np.flatnonzero(~np.isfinite(picked))[0])
            raise InvalidDataError(
                f'{what} of {self._joints[bad]} is {picked[bad]}, must be finite'
            )
        return picked

    def _difference(self, stamp_ns: int, positions: F64) -> F64:
        # drivers may leave velocities out: the slope since the newest state then
        if not self._entries or stamp_ns <= self._entries[-1][0]:
            return np.zeros_like(positions)
        before_ns, before, _ = self._entries[-1]
        return (positions - before) / seconds(stamp_ns - before_ns)


def _tool_velocity(frames: F64, velocities: F64) -> F64:
    """Return the tool's velocity (3,) [m/s]: the sum of each joint's axis crossed with its arm."""
    turns = frames[:-1, :3, 2] * velocities[:, None]
    arms = frames[-1, :3, 3] - frames[:-1, :3, 3]
    (wx, wy, wz), (rx, ry, rz) = turns.T, arms.T
    return np.array([wy @ rz - wz @ ry, wz @ rx - wx @ rz, wx @ ry - wy @ rx])
