"""What the joints would do if a chunk ran from now on: one point per row."""

from dataclasses import dataclass

from chunkpilot_core import rotations, spaces
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.prediction.due import due_row, due_targets
from chunkpilot_core.prediction.inverse import inverse_along
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    F32,
    F64,
    JointState,
    Kind,
    Rotation,
)
import numpy as np
from numpy.typing import NDArray

SHORTEST = 0.25  # of a row: what is left of a row that is nearly over says little of its speed


@dataclass(frozen=True, slots=True)
class Path:
    """
    Joint positions (M + 1, J) of M rows and, before them, of the present setpoint.

    ``row`` (M,) are their numbers in the chunk, ``begins`` (M,) those of the rows with which the
    way to each begins, as of a long chunk not all are looked at; ``durations`` (M,) [s] how long
    each takes;
    ``velocity`` (J,) that of the present; ``tool`` (M + 1, 3) [m] in the world, ``asked`` (M, 3)
    where a Cartesian row wants it, NaN for others; ``left`` (M, 2) [m], [rad] what inverse
    kinematics could not close.
    """

    row: NDArray[np.intp]
    begins: NDArray[np.intp]
    positions: F64
    durations: F64
    velocity: F64
    tool: F64
    asked: F64
    left: F64

    @property
    def velocities(self) -> F64:
        """Mean velocities of the rows, shape (M, J)."""
        speeds: F64 = np.diff(self.positions, axis=0) / self.durations[:, None]
        return speeds


class PathMaker:
    """Makes paths for one robot."""

    def __init__(self, kinematics: Kinematics, limiter: Limiter, max_rows: int) -> None:
        """
        Serve a robot.

        :param max_rows: of a longer chunk this many rows, evenly apart, are looked at
        """
        self._kinematics, self._limiter, self._max_rows = kinematics, limiter, max_rows
        robot = kinematics.robot
        self._columns = {name: i for i, name in enumerate(robot.joints)}
        self._lower, self._upper = np.array(robot.workspace_lower), np.array(robot.workspace_upper)

    def make(
        self, space: ActionSpace, chunk: ActionChunk, rows: F32, present: JointState, now_ns: int
    ) -> Path:
        """
        Lay out rows from the present setpoint on.

        :param chunk: for its times
        :param rows: shape (H, A), the chunk's own or one of its samples, finite
        :param present: in the robot's order
        """
        due = due_row(chunk, now_ns, len(rows))
        targets = due_targets(space, self._kinematics, rows, due, present.positions)
        first = int(due)
        stride = -(-len(targets) // self._max_rows)
        kept = np.arange(len(targets) - 1, -1, -stride)[::-1]
        relative = all(
            group.kind.relative for group in space.groups if group.kind is not Kind.GRIPPER
        )
        begun = max(1.0 - (due - first), SHORTEST) if relative else 1.0
        ends = np.asarray((kept + begun) * chunk.dt_s, np.float64)
        joints, asked, left = self._joints(space, targets[kept], present, ends)
        positions = np.vstack((present.positions, joints))
        n = self._limiter.n_arm
        tool = self._kinematics.frames_along(positions[:, :n])[:, -1, :3, 3]
        durations = np.diff(ends, prepend=0.0)
        row = first + kept
        begins = np.append(first, row[:-1] + 1)
        return Path(row, begins, positions, durations, present.velocities, tool, asked, left)

    def _joints(
        self, space: ActionSpace, targets: F64, present: JointState, ends: F64
    ) -> tuple[F64, F64, F64]:
        """Return joints (M, J), Cartesian places asked for (M, 3), and what is left (M, 2)."""
        joints = np.repeat(present.positions[None], len(targets), axis=0)
        asked, left = np.full((len(targets), 3), np.nan), np.zeros((len(targets), 2))
        n = self._limiter.n_arm
        for group, columns in spaces.target_slices(space):
            values = targets[:, columns]
            if group.kind.cartesian:
                asked = values[:, :3]
                inside = np.clip(asked, self._lower, self._upper)  # as the guard does
                turn = self._rotation(group, values)
                joints[:, :n], left = inverse_along(
                    self._kinematics, inside, turn, present.positions[:n], ends
                )
            elif group.kind is Kind.GRIPPER:
                fingers = joints.shape[1] - n
                joints[:, n:] = np.clip(
                    values[:, :1] / max(fingers, 1),
                    self._limiter.lower[n:],
                    self._limiter.upper[n:],
                )
            elif group.kind in (Kind.JOINT_POSITION, Kind.JOINT_DELTA, Kind.JOINT_VELOCITY):
                at = [self._columns[name] for name in group.names]
                if group.kind is Kind.JOINT_VELOCITY:
                    values = values * np.diff(ends, prepend=0.0)[:, None]
                    values = present.positions[at] + np.cumsum(values, axis=0)
                joints[:, at] = values
        return joints, asked, left

    def _rotation(self, group: ActionGroup, values: F64) -> F64:
        if group.rotation is Rotation.NONE:
            return self._kinematics.tool_rotation
        turns = values[:, 3:] / np.linalg.norm(values[:, 3:], axis=1, keepdims=True)
        return np.array([rotations.from_quaternion(turn) for turn in turns])
