"""
The few rotation formulas that are needed at the control rate; quaternions are xyzw, matrices (3,
3).
"""

import math

from chunkpilot_core.types import F64
import numpy as np


def from_rpy(rpy: tuple[float, float, float]) -> F64:
    """Return the rotation matrix of fixed-axis roll, pitch, yaw [rad], as in a URDF."""
    (cr, sr), (cp, sp), (cy, sy) = ((math.cos(angle), math.sin(angle)) for angle in rpy)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def from_quaternion(quaternion: F64) -> F64:
    """Return the rotation matrix of a unit quaternion (4,)."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def to_quaternion(matrix: F64) -> F64:
    """Return the unit quaternion (4,) of a rotation matrix, w >= 0; stable for every angle."""
    m = matrix
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    squares = np.array(
        [1 + 2 * m[0, 0] - trace, 1 + 2 * m[1, 1] - trace, 1 + 2 * m[2, 2] - trace, 1 + trace]
    )
    largest = int(np.argmax(squares))
    x_row = [squares[0], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]]
    y_row = [m[0, 1] + m[1, 0], squares[1], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]]
    z_row = [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], squares[2], m[1, 0] - m[0, 1]]
    w_row = [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], squares[3]]
    quaternion: F64 = np.array((x_row, y_row, z_row, w_row)[largest])
    quaternion /= np.linalg.norm(quaternion)
    return -quaternion if quaternion[3] < 0 else quaternion


def multiply(a: F64, b: F64) -> F64:
    """Return the quaternion product a b: first b, then a."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return np.array(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ]
    )


def conjugate(quaternion: F64) -> F64:
    """Return the inverse of a unit quaternion."""
    inverse: F64 = quaternion * np.array([-1.0, -1.0, -1.0, 1.0])
    return inverse


def from_vector(vector: F64) -> F64:
    """Return the quaternion of a rotation vector (3,) [rad]."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.array([*(0.5 * vector), 1.0])
    return np.array([*(math.sin(angle / 2) / angle * vector), math.cos(angle / 2)])


def to_vector(quaternion: F64) -> F64:
    """Return the rotation vector (3,) [rad] of a unit quaternion, at most pi long."""
    q = -quaternion if quaternion[3] < 0 else quaternion
    sine = float(np.linalg.norm(q[:3]))
    if sine < 1e-12:
        return 2.0 * q[:3]
    return 2.0 * math.atan2(sine, float(q[3])) / sine * q[:3]


def between(a: F64, b: F64) -> F64:
    """
    Return the rotation vector (3,) [rad] that turns matrix ``a`` into ``b``, in the common frame.
    """
    matrix = b @ a.T
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = matrix.tolist()  # floats are faster than arrays
    cosine = 0.5 * (xx + yy + zz - 1.0)
    if cosine < 0.0:  # the short way below loses digits near half a turn
        return to_vector(to_quaternion(matrix))
    x, y, z = 0.5 * (zy - yz), 0.5 * (xz - zx), 0.5 * (yx - xy)
    sine = math.sqrt(x * x + y * y + z * z)
    scale = math.atan2(sine, cosine) / sine if sine > 1e-12 else 1.0
    return np.array((scale * x, scale * y, scale * z))
