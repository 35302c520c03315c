"""
How far a predicted motion stays smooth: the signal and the threshold of Action Upcycling.

arXiv 2609.34911. Pure functions of arrays; velocities are fractions of the action space's velocity
limits, so that metres, radians and a policy's own units weigh alike.
"""

from dataclasses import dataclass
import math

from chunkpilot_core import spaces
from chunkpilot_core.types import ActionSpace, F32, F64, Kind, Rotation
import numpy as np
from numpy.typing import NDArray

VELOCITY_KINDS = (Kind.JOINT_VELOCITY, Kind.BASE_TWIST)


@dataclass(frozen=True, slots=True)
class MotionScale:
    """
    How rows become velocities.

    ``columns`` (M,) are the motion columns of a row, grippers left out; ``absolute`` (M,) those
    whose velocity is the difference of rows; ``weights`` and ``offsets`` (M,) turn a difference or
    a displacement into a fraction of the velocity limit; ``quaternions`` are slices of M.
    """

    columns: NDArray[np.intp]
    absolute: NDArray[np.bool_]
    weights: F64
    offsets: F64
    quaternions: tuple[slice, ...]


def motion_scale(space: ActionSpace, dt_s: float) -> MotionScale:
    """
    Return how the rows of a space become velocities in units of its limits.

    :param dt_s: time between rows [s]
    """
    columns = np.flatnonzero(spaces.motion_columns(space))
    absolute = np.zeros(space.size, bool)
    weights, offsets = np.ones(space.size), np.zeros(space.size)
    quaternions = []
    for group in space.groups:
        rows = slice(group.start, group.stop)
        if group.kind is Kind.GRIPPER:
            continue
        period = 1.0 if group.kind in VELOCITY_KINDS else dt_s
        weights[rows] = np.array(group.scale) / (np.array(space.max_velocity[rows]) * period)
        if group.kind.relative or group.kind in VELOCITY_KINDS:
            offsets[rows] = np.array(group.offset) / (np.array(space.max_velocity[rows]) * period)
        else:
            absolute[rows] = True
        if group.rotation is Rotation.QUATERNION:
            start = int(np.searchsorted(columns, group.start)) + 3
            quaternions.append(slice(start, start + 4))
    return MotionScale(
        columns, absolute[columns], weights[columns], offsets[columns], tuple(quaternions)
    )


def velocities(scale: MotionScale, actions: F32, last_row: F32) -> F64:
    """
    Return the velocity of every row, shape (H, M), in fractions of the limits.

    v_k = a_k where rows are displacements or velocities, v_k = a_k - a_(k-1) where they are
    absolute; the first difference is to what was really executed, never to a padded zero.

    :param actions: shape (H, A), policy units
    :param last_row: shape (A,), policy units; the command before row 0, used by absolute columns
    """
    path = np.empty((len(actions) + 1, len(scale.columns)))
    path[0] = last_row[scale.columns]
    path[1:] = actions[:, scale.columns]
    for columns in scale.quaternions:  # q and -q are the same orientation
        turned = path[:, columns]
        flips = np.sum(turned[1:] * turned[:-1], axis=1) < 0.0
        turned[1:] *= np.where(np.cumsum(flips) % 2 == 1, -1.0, 1.0)[:, None]
    path[1:] -= path[:-1] * scale.absolute
    moved: F64 = path[1:] * scale.weights + scale.offsets
    return moved


def fluctuation(velocity: F64, base: int) -> F64:
    """
    Return c_k = sum over j = h+1..k of ||v_j - v_(j-1)||_2 for k = h+1..H, shape (H - h,).

    :param velocity: shape (H, M)
    :param base: h >= 1
    """
    changes = velocity[base:] - velocity[base - 1 : -1]
    result: F64 = np.cumsum(np.sqrt(np.einsum('ij,ij->i', changes, changes)))
    return result


def longest(signal: F64, base: int, threshold: float) -> int:
    """Return max{k in [h, H] : c_k <= tau}, with c_h = 0; ties count as smooth."""
    return base + int(np.searchsorted(signal, threshold, side='right'))


def threshold(pool: F64, chunks: int, base: int, ratio: float) -> float:
    """
    Return tau, the ceil((r - 1) h N)-th smallest signal: on average r h rows will run.

    :param pool: signals of ``chunks`` chunks, any shape
    :param chunks: N
    :param base: h
    :param ratio: r; at or below 1 tau is 0, beyond what the pool holds infinity
    """
    wanted = rank(chunks, base, ratio)
    if wanted <= 0:
        return 0.0
    if wanted > pool.size:
        return math.inf
    return float(np.partition(pool, wanted - 1, axis=None)[wanted - 1])


def rank(chunks: int, base: int, ratio: float) -> int:
    """Return which signal of N chunks in ascending order is tau; 0 or less = none of them."""
    # 0.1 * 10 is 1, not 1.0000000000000009
    return math.ceil((ratio - 1.0) * base * chunks - 1e-9)
