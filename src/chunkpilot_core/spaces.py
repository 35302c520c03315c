"""
Action spaces: from rows in a policy's units to absolute targets, and back.

A *target* (T,) is what a command carries: joint positions [rad], gripper width [m], end-effector
position [m] and, where the space has one, orientation as quaternion xyzw. Rows of relative kinds
are relative to the target before (``commanded``), to what is measured when the row starts
(``measured``), or to what was measured when the chunk starts (``chunk_start``); whoever resolves
them passes that reference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
import hashlib
import json
from typing import Any

from chunkpilot_core import rotations
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    CommandGroup,
    F32,
    F64,
    JointState,
    Kind,
    Reference,
    Rotation,
)
import numpy as np
from numpy.typing import NDArray

TARGET_KINDS = {Kind.JOINT_DELTA: Kind.JOINT_POSITION, Kind.EE_DELTA: Kind.EE_POSE}


def make(space: ActionSpace) -> ActionSpace:
    """
    Check an action space and return it with its hash.

    :raises ConfigError: groups overlap or leave a gap, a tuple has the wrong length, bounds are
        not finite or not ordered, a relative kind has no reference
    """
    column = 0
    for group in space.groups:
        if group.start != column or group.stop <= group.start:
            raise ConfigError(
                f'action group {group.name!r}: columns {group.start} to {group.stop}, '
                f'expected to start at {column}'
            )
        column = group.stop
        if len(group.scale) != group.size or len(group.offset) != group.size:
            raise ConfigError(
                f'action group {group.name!r}: scale and offset need {group.size} values each'
            )
        if 0.0 in group.scale or not np.all(np.isfinite(group.scale + group.offset)):
            raise ConfigError(f'action group {group.name!r}: scale must be finite and not 0')
        if group.kind.relative != (group.reference is not Reference.NONE):
            raise ConfigError(
                f'action group {group.name!r}: kind {group.kind.value} does not go with '
                f'reference {group.reference.value!r}'
            )
        if group.kind.cartesian and (group.size, group.rotation) not in _CARTESIAN_SIZES:
            raise ConfigError(
                f'action group {group.name!r}: {group.size} columns do not go with rotation '
                f'{group.rotation.value!r}'
            )
    for name in ('lower', 'upper', 'max_velocity', 'max_acceleration', 'max_jerk', 'irreversible'):
        values = getattr(space, name)
        if len(values) != column or not np.all(np.isfinite(values)):
            raise ConfigError(f'action space: {name} needs {column} finite values, got {values}')
    if not np.all(np.less(space.lower, space.upper)):
        raise ConfigError(f'action space: lower {space.lower} is not below upper {space.upper}')
    bare = replace(space, hash='')
    text = json.dumps(asdict(bare), sort_keys=True)
    return replace(bare, hash=hashlib.sha256(text.encode()).hexdigest()[:16])


def from_json(data: Mapping[str, Any]) -> ActionSpace:
    """
    Return the action space that ``dataclasses.asdict`` made this of.

    :raises ConfigError: not allowed, or of another hash than it claims
    :raises KeyError, TypeError, ValueError: an entry is missing or of a wrong type
    """
    groups = tuple(
        ActionGroup(
            **{
                **group,
                'kind': Kind(group['kind']),
                'reference': Reference(group['reference']),
                'rotation': Rotation(group['rotation']),
                'names': tuple(group['names']),
                'scale': tuple(group['scale']),
                'offset': tuple(group['offset']),
            }
        )
        for group in data['groups']
    )
    bounds: dict[str, Any] = {
        name: tuple(value) for name, value in data.items() if name not in ('groups', 'hash')
    }
    space = make(ActionSpace(groups, **bounds))
    if space.hash != data['hash']:
        raise ConfigError(f'action space has hash {space.hash}, it says {data["hash"]}')
    return space


_CARTESIAN_SIZES = {(3, Rotation.NONE), (6, Rotation.VECTOR), (7, Rotation.QUATERNION)}


def ee_delta_space(
    frame: str = 'world', step_m: float = 0.05, max_width: float = 0.08
) -> ActionSpace:
    """
    Return the space of the shipped policies: displacement xyz and gripper opening, all in [-1, 1].

    One unit is ``step_m`` (panda-gym's 0.05 m) from the commanded position of the row before; the
    gripper column is the absolute width, -1 closed, 1 open.
    """
    arm = ActionGroup(
        'arm',
        0,
        3,
        Kind.EE_DELTA,
        frame,
        Reference.COMMANDED,
        scale=(step_m,) * 3,
        offset=(0.0,) * 3,
    )
    gripper = ActionGroup(
        'gripper', 3, 4, Kind.GRIPPER, scale=(max_width / 2,), offset=(max_width / 2,)
    )
    return make(
        ActionSpace(
            (arm, gripper),
            lower=(-1.0,) * 4,
            upper=(1.0,) * 4,
            max_velocity=(1.0, 1.0, 1.0, 0.2),
            max_acceleration=(13.0, 13.0, 13.0, 4.0),
            max_jerk=(6500.0, 6500.0, 6500.0, 1000.0),
            irreversible=(False, False, False, True),
        )
    )


def target_slices(space: ActionSpace) -> Iterator[tuple[ActionGroup, slice]]:
    """Iterate over the groups and their columns of a target."""
    return iter(_layout(space).slices)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What is asked of a space at every tick: columns of targets, scales and offsets (A,)."""

    space: ActionSpace
    slices: tuple[tuple[ActionGroup, slice], ...]
    scale: F64
    offset: F64


_layouts: dict[str, _Layout] = {}


def _layout(space: ActionSpace) -> _Layout:
    found = _layouts.get(space.hash)
    if found is not None and found.space is space:
        return found
    start, slices = 0, []
    for group in space.groups:
        slices.append((group, slice(start, start + group.target_size)))
        start += group.target_size
    scale, offset = (
        np.array([value for group in space.groups for value in getattr(group, name)])
        for name in ('scale', 'offset')
    )
    made = _layouts[space.hash] = _Layout(space, tuple(slices), scale, offset)
    return made


def motion_columns(space: ActionSpace) -> NDArray[np.bool_]:
    """Return which row columns are motion, shape (A,): everything but grippers."""
    mask = np.ones(space.size, bool)
    for group in space.groups:
        if group.kind is Kind.GRIPPER:
            mask[group.start : group.stop] = False
    return mask


def motion_targets(space: ActionSpace) -> NDArray[np.bool_]:
    """Return which target columns are motion, shape (T,)."""
    mask = np.ones(space.target_size, bool)
    for group, columns in target_slices(space):
        if group.kind is Kind.GRIPPER:
            mask[columns] = False
    return mask


def resolve_row(space: ActionSpace, row: F32, reference: F64) -> F64:
    """
    Return the absolute target (T,) of one row.

    :param row: shape (A,), policy units
    :param reference: shape (T,); what relative groups count from, ignored by absolute ones
    """
    target = np.empty(len(reference))
    layout = _layout(space)
    values = row * layout.scale + layout.offset
    for group, columns in layout.slices:
        physical = values[group.start : group.stop]
        base = reference[columns]
        if group.rotation is Rotation.NONE:
            target[columns] = base + physical if group.kind.relative else physical
            continue
        place, turn = physical[:3], physical[3:]
        if group.rotation is Rotation.VECTOR:
            turn = rotations.from_vector(turn)
        else:
            turn = turn / np.linalg.norm(turn)
        if group.kind.relative:
            place, turn = base[:3] + place, rotations.multiply(turn, base[3:])
        target[columns] = np.concatenate((place, turn))
    return target


def resolve(space: ActionSpace, rows: F32, reference: F64) -> F64:
    """
    Return the absolute targets (N, T) of successive rows, each counted from the one before.

    Exact for ``commanded``; for ``chunk_start`` every row counts from ``reference``; for
    ``measured`` this is the plan as if the robot followed perfectly (whoever runs the rows
    resolves them one by one instead).

    :param rows: shape (N, A), policy units
    :param reference: shape (T,), target or measurement before the first row
    """
    targets = np.empty((len(rows), space.target_size))
    from_start = any(group.reference is Reference.CHUNK_START for group in space.groups)
    last = reference
    for i, row in enumerate(rows):
        targets[i] = resolve_row(space, row, reference if from_start else last)
        last = targets[i]
    return targets


def to_row(space: ActionSpace, target: F64, reference: F64) -> F32:
    """Return the row (A,) whose target is ``target`` (T,), the inverse of :func:`resolve_row`."""
    row = np.empty(space.size, np.float64)
    for group, columns in target_slices(space):
        value = target[columns]
        if group.rotation is not Rotation.NONE:
            place, turn = value[:3], value[3:]
            if group.kind.relative:
                base = reference[columns]
                place = place - base[:3]
                turn = rotations.multiply(turn, rotations.conjugate(base[3:]))
            if group.rotation is Rotation.VECTOR:
                turn = rotations.to_vector(turn)
            value = np.concatenate((place, turn))
        elif group.kind.relative:
            value = value - reference[columns]
        row[group.start : group.stop] = (value - np.array(group.offset)) / np.array(group.scale)
    return row.astype(np.float32)


def to_rows(space: ActionSpace, targets: F64, reference: F64) -> F32:
    """Return the rows (N, A) of successive targets (N, T), the inverse of :func:`resolve`."""
    from_start = any(group.reference is Reference.CHUNK_START for group in space.groups)
    before = [reference if from_start or i == 0 else targets[i - 1] for i in range(len(targets))]
    return np.array(
        [to_row(space, target, base) for target, base in zip(targets, before, strict=True)],
        np.float32,
    ).reshape(len(targets), space.size)


def from_joints(space: ActionSpace, kinematics: Kinematics, joints: JointState) -> F64:
    """
    Return where the robot is, as a target (T,) of the space: joints by name, the tool by forward
    kinematics.

    :raises InvalidDataError: a joint that the space or the robot needs is missing
    """
    index = {name: i for i, name in enumerate(joints.names)}
    target = np.empty(space.target_size)
    for group, columns in target_slices(space):
        if group.kind.cartesian:
            arm = _pick(joints.positions, index, kinematics.robot.arm_joints)
            pose = kinematics.forward(arm)
            parts = [pose.position]
            if group.rotation is not Rotation.NONE:
                parts.append(rotations.to_quaternion(pose.rotation))
            target[columns] = np.concatenate(parts)
        elif group.kind is Kind.GRIPPER:
            grip = kinematics.robot.gripper
            names = group.names or (grip.joints if grip else ())
            target[columns] = _pick(joints.positions, index, names).sum()
        elif group.kind is Kind.JOINT_VELOCITY:
            target[columns] = _pick(joints.velocities, index, group.names)
        elif group.kind is Kind.BASE_TWIST:
            target[columns] = 0.0
        else:
            target[columns] = _pick(joints.positions, index, group.names)
    return target


def command_groups(space: ActionSpace, target: F64, velocity: F64) -> tuple[CommandGroup, ...]:
    """Return a target (T,) and its rate (T,) as the groups of a command."""
    return tuple(
        CommandGroup(
            group.name,
            TARGET_KINDS.get(group.kind, group.kind),
            target[columns],
            velocity[columns],
            group.frame,
            Rotation.QUATERNION if group.rotation is Rotation.VECTOR else group.rotation,
            group.names,
        )
        for group, columns in target_slices(space)
    )


def interpolate(space: ActionSpace, before: F64, after: F64, fraction: float) -> F64:
    """Return the target (T,) between two: linear, orientations along the shorter arc."""
    between: F64 = before + fraction * (after - before)
    for group, columns in _layout(space).slices:
        if group.rotation is Rotation.NONE:
            continue
        turn = rotations.to_vector(
            rotations.multiply(after[columns][3:], rotations.conjugate(before[columns][3:]))
        )
        start = columns.start + 3
        between[start : columns.stop] = rotations.multiply(
            rotations.from_vector(fraction * turn), before[columns][3:]
        )
    return between


def _pick(values: F64, index: dict[str, int], names: tuple[str, ...]) -> F64:
    try:
        return np.array([values[index[name]] for name in names])
    except (KeyError, IndexError):
        missing = [name for name in names if index.get(name, len(values)) >= len(values)]
        raise InvalidDataError(f'joint state lacks {missing}; it has {sorted(index)}') from None
