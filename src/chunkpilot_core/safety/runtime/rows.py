"""
Rows as really sent: joint targets at the end of each row, mapped back into the policy's space.

This is what is learned from, so it is exact where the guard changed nothing: the border between
two rows lies between two ticks, and is found as the point where the paths before and after meet.
"""

from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.safety.runtime.arbiter import POLICY, priority_of
from chunkpilot_core.types import (
    ActionSpace,
    Command,
    ExecutedRows,
    F64,
    Id,
    JointState,
    nanoseconds,
    NS_PER_S,
    Reference,
    Rotation,
    RowSource,
)
import numpy as np

BATCH = 8
LONGEST_GAP = 10  # rows without a command, after which the motion before and after are two
SOURCES = {
    'policy': RowSource.POLICY,
    'residual': RowSource.RESIDUAL,
    'guided': RowSource.GUARD,
    'teleop': RowSource.HUMAN,
    'human': RowSource.HUMAN,
    'disturbance': RowSource.DISTURBED,
    'homing': RowSource.HOMING,
}


@dataclass(frozen=True, slots=True)
class _Sample:
    """One tick: what was asked for and what was sent."""

    command: Command
    joints: F64
    withheld: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """One finished row."""

    values: F64
    source: RowSource
    stamp_ns: int
    joints: F64


class RowRecorder:
    """Turns ticks into rows of one action space."""

    def __init__(
        self,
        space: ActionSpace,
        dt_s: float,
        kinematics: Kinematics,
        tolerance: float,
        session: int,
    ) -> None:
        """
        Begin with no rows.

        :param dt_s: time between rows
        :param tolerance: a motion column off by more than this is the guard's doing [row units]
        """
        self.space, self.dt_s = space, dt_s
        self._kinematics, self._tolerance = kinematics, tolerance
        self._id = Id(session, 0)
        self._motion = spaces.motion_targets(space)
        self._columns = spaces.motion_columns(space)
        self._chunk_start = any(g.reference is Reference.CHUNK_START for g in space.groups)
        self._measured_reference = any(g.reference is Reference.MEASURED for g in space.groups)
        self._done: list[ExecutedRows] = []
        self._batch: list[_Row] = []
        self._key: tuple[Id, int] | None = None  # chunk and row being approached
        self._first = 0
        self._last: _Sample | None = None
        self._since_ns = 0
        self._started: F64 = np.zeros(0)  # joints sent where the row began
        self._reference: F64 | None = None
        self._withheld = False  # something, in the row under way
        self._tags = ('', '', 0)
        self._fed: list[tuple[_Sample, F64, F64 | None]] = []

    def tag(self, task_id: str, episode_id: str, epoch: int) -> None:
        """Say what the rows to come belong to; the ones before are closed."""
        if (task_id, episode_id, epoch) != self._tags:
            self.interrupt()
            self._tags = (task_id, episode_id, epoch)

    def interrupt(self) -> None:
        """Close the batch: the motion does not go on as commanded, a started row is not one."""
        self._digest()
        self._close()

    def feed(
        self,
        command: Command,
        before: F64,
        sent: F64,
        measured: F64 | None,
        withheld: bool = False,
    ) -> None:
        """
        Take one tick that followed a command.

        The work waits for :meth:`take`: the robot must not.

        :param before: joints commanded in the tick before, shape (J,)
        :param sent: joints sent in this tick, shape (J,)
        :param measured: joints measured now, shape (J,)
        :param withheld: the gate kept something of the command back
        """
        self._fed.append((_Sample(command, sent, withheld), before, measured))

    def take(self) -> list[ExecutedRows]:
        """Return the finished batches, and forget them."""
        self._digest()
        done, self._done = self._done, []
        return done

    def _digest(self) -> None:
        fed, self._fed = self._fed, []
        for sample, before, measured in fed:
            if self._fits(sample.command):
                self._add(sample, before, measured)
            else:
                self._close()

    def _fits(self, command: Command) -> bool:
        """Return whether a command says something of every group of the space."""
        sizes = {group.name: (len(group.values), len(group.velocity)) for group in command.groups}
        wanted = [(group, sizes.get(group.name, (0, 0))) for group in self.space.groups]
        return command.space_hash == self.space.hash and all(
            values == group.target_size and velocity in (0, values)
            for group, (values, velocity) in wanted
        )

    def _close(self) -> None:
        self._flush()
        self._key = self._last = self._reference = None

    def _add(self, sample: _Sample, before: F64, measured: F64 | None) -> None:
        command = sample.command
        key = (command.chunk_id, command.row) if command.row >= 0 else (Id(), -1)
        if self._late(command):
            self._close()
        if self._key is None or self._last is None:
            self._started = before
            self._begin(key, command.stamp_ns, self._target_of(before), measured)
        elif key[1] < 0 and key == self._key:
            while self._grid_over(command):
                self._next_row(key, self._last, sample, measured)
        elif key != self._key:
            self._next_row(key, self._last, sample, measured)
        self._last = sample
        self._withheld = self._withheld or sample.withheld

    def _next_row(
        self, key: tuple[Id, int], last: _Sample, now: _Sample, measured: F64 | None
    ) -> None:
        """Finish the row that ended between two samples, and begin the next one."""
        assert self._key is not None
        timed = key == self._key
        border, joints, stamp_ns, off = self._border(last, now, timed)
        self._finish(border, joints, stamp_ns, off)
        following = key[0] == self._key[0] and key[1] == self._key[1] + 1
        if not (following or timed):
            self._flush()
        reference = border
        if self._chunk_start and key[0] == self._key[0] and self._reference is not None:
            reference = self._reference
        self._started = joints
        self._begin(key, stamp_ns, reference, measured)

    def _late(self, command: Command) -> bool:
        """Return whether so much time has passed that what came before is another motion."""
        if self._last is None:
            return False
        passed_ns = command.stamp_ns - self._last.command.stamp_ns
        return not 0 <= passed_ns <= LONGEST_GAP * nanoseconds(self.dt_s)

    def _begin(
        self, key: tuple[Id, int], stamp_ns: int, reference: F64, measured: F64 | None
    ) -> None:
        self._key, self._since_ns, self._withheld = key, stamp_ns, False
        fresh = self._measured_reference or (self._chunk_start and self._reference is None)
        self._reference = (
            self._target_of(measured) if fresh and measured is not None else reference
        )

    def _grid_over(self, command: Command) -> bool:
        return command.stamp_ns - self._since_ns >= nanoseconds(self.dt_s)

    def _finish(self, border: F64, joints: F64, stamp_ns: int, off: F64) -> None:
        assert self._key is not None
        assert self._last is not None
        assert self._reference is not None
        source = SOURCES.get(self._last.command.source, RowSource.POLICY)
        unnumbered = self._key[1] < 0 and source in (RowSource.POLICY, RowSource.RESIDUAL)
        if self._last.command.starved or unnumbered:
            source = RowSource.STARVED
        # A displacement in target units becomes row units as the difference of two rows.
        zero = spaces.to_row(self.space, border, self._reference)
        moved = spaces.to_row(self.space, border - off, self._reference)
        altered = np.abs(zero - moved)[self._columns].max(initial=0.0) > self._tolerance
        altered = altered or self._withheld
        if altered and source is not RowSource.DISTURBED:
            source = RowSource.GUARD
        if not self._batch:
            self._first = max(self._key[1], 0)
        self._batch.append(_Row(zero.astype(np.float64), source, stamp_ns, joints))
        if len(self._batch) >= BATCH:
            self._flush()

    def _timed_share(self, last: _Sample, now: _Sample) -> float:
        """Return at which share of the time between two samples the time of a row is over."""
        over_ns = self._since_ns + nanoseconds(self.dt_s) - last.command.stamp_ns
        span_ns = max(now.command.stamp_ns - last.command.stamp_ns, 1)
        return min(max(over_ns / span_ns, 0.0), 1.0)

    def _share(self, last: _Sample, now: _Sample) -> float:
        """
        Return at which share of the time between two samples a numbered row ended.

        Somebody's hand that numbers its rows says when they end; others end where paths meet.
        """
        span_ns = max(now.command.stamp_ns - last.command.stamp_ns, 1)
        if priority_of(last.command.source) > POLICY and last.command.row_ns:
            return min(max((last.command.row_ns - last.command.stamp_ns) / span_ns, 0.0), 1.0)
        span_s = span_ns / NS_PER_S
        asked, asked_now = self._asked(last.command), self._asked(now.command)
        velocity, velocity_now = self._velocity(last.command), self._velocity(now.command)
        kink = (velocity - velocity_now)[self._motion]
        gap = (asked_now - asked - velocity_now * span_s)[self._motion]
        weight = float(kink @ kink)
        after_s = min(max(float(gap @ kink) / weight, 0.0), span_s) if weight > 1e-12 else 0.0
        return after_s / span_s

    def _border(self, last: _Sample, now: _Sample, timed: bool) -> tuple[F64, F64, int, F64]:
        """
        Return target, joints and time at the end of a row, and what the guard changed.

        :param timed: rows without numbers end when their time is over; others where paths meet
        """
        span_ns = max(now.command.stamp_ns - last.command.stamp_ns, 1)
        asked, asked_now = self._asked(last.command), self._asked(now.command)
        share = self._timed_share(last, now) if timed else self._share(last, now)
        way = self._velocity(last.command) * (share * span_ns / NS_PER_S)
        if timed:
            way = share * (asked_now - asked)
        joints = last.joints + share * (now.joints - last.joints)
        off, off_now = self._off(last.joints, asked), self._off(now.joints, asked_now)
        off = off + share * (off_now - off)
        border = asked + way + off
        border[~self._motion] = self._grip(last, asked)[~self._motion]
        for group, columns in spaces.target_slices(self.space):
            if group.rotation is not Rotation.NONE:
                start = columns.start + 3
                border[start : columns.stop] /= np.linalg.norm(border[start : columns.stop])
        return border, joints, last.command.stamp_ns + round(share * span_ns), off

    def _grip(self, last: _Sample, asked: F64) -> F64:
        """
        Return where grippers are sent, shape (T,): as asked for, if they went that way.

        Fingers take their time from one width to another. What was decided is the width, and
        following it is no alteration.
        """
        grip = self._kinematics.robot.gripper
        if grip is not None:
            asked = np.clip(asked, grip.min_width, grip.max_width)
        before, sent = self._target_of(self._started), self._target_of(last.joints)
        left = np.abs(asked - sent)
        width: F64 = np.where((left < np.abs(asked - before)) | (left < 1e-6), asked, sent)
        return width

    def _off(self, joints: F64, asked: F64) -> F64:
        """Return by how much the target really sent differs from the one asked for, shape (T,)."""
        sent = self._target_of(joints)
        for group, columns in spaces.target_slices(self.space):
            turn = slice(columns.start + 3, columns.stop)
            if group.rotation is not Rotation.NONE and float(sent[turn] @ asked[turn]) < 0.0:
                sent[turn] *= -1.0  # the same orientation
        return sent - asked

    def _asked(self, command: Command) -> F64:
        by_name = {group.name: group.values for group in command.groups}
        return np.concatenate([by_name[group.name] for group in self.space.groups])

    def _velocity(self, command: Command) -> F64:
        by_name = {group.name: group.velocity for group in command.groups}
        parts = [
            by_name[group.name] if by_name[group.name].size else np.zeros(group.target_size)
            for group in self.space.groups
        ]
        return np.concatenate(parts)

    def _target_of(self, joints: F64) -> F64:
        names = self._kinematics.robot.joints
        state = JointState(0, names, joints, np.zeros(len(joints)))
        return spaces.from_joints(self.space, self._kinematics, state)

    def _flush(self) -> None:
        if not self._batch:
            return
        assert self._key is not None
        self._id = Id(self._id.session, self._id.seq + 1)
        task_id, episode_id, epoch = self._tags
        rows, self._batch = self._batch, []
        self._done.append(
            ExecutedRows(
                id=self._id,
                stamp_ns=rows[0].stamp_ns,
                arm_epoch=epoch,
                chunk_id=self._key[0],
                first_row=self._first,
                dt_s=self.dt_s,
                rows=np.array([row.values for row in rows], np.float32),
                sources=tuple(row.source for row in rows),
                stamps_ns=tuple(row.stamp_ns for row in rows),
                joint_names=self._kinematics.robot.joints,
                joints=np.array([row.joints for row in rows]),
                space_hash=self.space.hash,
                task_id=task_id,
                episode_id=episode_id,
            )
        )
