"""A command must have the promised shape, names, frame, and only finite numbers (D1)."""

from collections.abc import Iterator
from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Command, CommandGroup, F64, Kind, Reaction, Rotation
import numpy as np

ARM_KINDS = (Kind.JOINT_POSITION, Kind.EE_POSE)


class CommandCheck(Check):
    """Rejects what can't be a target of this robot, before anything computes with it."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """What is plausible."""

        largest: float = option(
            100.0, 'magnitude that no target reaches', unit='rad, m', min=1.0, max=1e6
        )

    name = 'command'
    order = 4
    stage = Stage.COMMAND
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Return the first thing that is wrong."""
        command = situation.command
        if command is None:
            return None
        arms = [group for group in command.groups if group.kind in ARM_KINDS]
        if len(arms) != 1:
            kinds = [group.kind.value for group in command.groups]
            return _reject(f'command has groups {kinds}, exactly one must move the arm')
        if len({group.kind for group in command.groups}) != len(command.groups):
            return _reject('two groups of one kind')
        for group in command.groups:
            finding = self._numbers(group) or self._group(group, situation)
            if finding is not None:
                return finding
        return _stamps(command)

    def _numbers(self, group: CommandGroup) -> Finding | None:
        for what, values in (('', group.values), (' velocity', group.velocity)):
            for name, value in _named(group, values):
                if not np.isfinite(value):
                    return _reject(f'{group.name}{what}: {name} is {value}', name, value)
                if abs(value) > self.config.largest:
                    return _reject(
                        f'{group.name}{what}: {name} is {value:g}',
                        name,
                        value,
                        self.config.largest,
                    )
        return None

    def _group(self, group: CommandGroup, situation: Situation) -> Finding | None:
        robot = situation.robot
        if group.kind is Kind.JOINT_POSITION:
            if sorted(group.names) != sorted(robot.arm_joints):
                return _reject(
                    f'{group.name}: joints {list(group.names)}, expected each of '
                    f'{list(robot.arm_joints)} once'
                )
            return _size(group, len(robot.arm_joints))
        if group.kind is Kind.EE_POSE:
            if group.frame not in ('', robot.world_frame):
                return _reject(
                    f'{group.name}: frame {group.frame!r}, expected {robot.world_frame!r}'
                )
            return _pose(group)
        if group.kind is Kind.GRIPPER and robot.gripper is not None:
            return _size(group, 1)
        return _reject(f'{group.name}: {robot.name} takes no {group.kind.value}')


def _pose(group: CommandGroup) -> Finding | None:
    if group.rotation is Rotation.NONE:
        return _size(group, 3)
    if group.rotation is not Rotation.QUATERNION:
        return _reject(f'{group.name}: rotation {group.rotation.value!r} is no absolute one')
    wrong = _size(group, 7)
    norm = float(np.linalg.norm(group.values[3:]))
    if wrong is None and abs(norm - 1.0) > 1e-3:
        return _reject(f'{group.name}: quaternion of norm {norm:.4f}', 'quaternion', norm, 1.0)
    return wrong


def _size(group: CommandGroup, size: int) -> Finding | None:
    if group.values.shape != (size,) or group.velocity.shape not in ((size,), (0,)):
        return _reject(
            f'{group.name}: {group.values.size} values and {group.velocity.size} velocities, '
            f'expected {size}',
            group.name,
            float(group.values.size),
            float(size),
        )
    return None


def _stamps(command: Command) -> Finding | None:
    if not np.isfinite(command.max_row_age_s) or command.max_row_age_s < 0.0:
        age = command.max_row_age_s
        return _reject(f'max_row_age_s is {age}', 'max_row_age_s', age, 0.0)
    return None


def _named(group: CommandGroup, values: F64) -> Iterator[tuple[str, float]]:
    names = group.names if len(group.names) == values.size else ()
    for i, value in enumerate(values.ravel().tolist()):
        yield (names[i] if names else f'{group.name}[{i}]'), value


def _reject(
    reason: str, joint: str = '', value: float = float('nan'), limit: float = float('nan')
) -> Finding:
    return Finding(Reaction.REJECT_CHUNK, reason, joint, value, limit)
