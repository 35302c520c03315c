"""
A calibrated pinhole camera: intrinsics as in ``sensor_msgs/CameraInfo``, and where it stands in
the world.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.robot import config_dir
from chunkpilot_core.types import F64
from chunkpilot_core.yaml_values import number
import numpy as np
import yaml

MAX_SIZE = 10_000  # [pixels]
MAX_PIXELS = 1e6  # focal length and principal point
MAX_LENGTH = 100.0  # [m]


@dataclass(frozen=True, slots=True)
class Camera:
    """
    Pinhole camera without distortion; optical frame: x right, y down, z forward.

    ``position`` (3,) [m] and ``rotation`` (3, 3) take optical coordinates into the world.
    """

    name: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    position: F64
    rotation: F64

    def project(self, points: F64) -> F64:
        """Return the pixels (N, 2) of world points (N, 3); NaN behind the camera."""
        local = (points - self.position) @ self.rotation
        depth = np.where(local[:, 2] > 1e-6, local[:, 2], np.nan)
        u = self.fx * local[:, 0] / depth + self.cx
        v = self.fy * local[:, 1] / depth + self.cy
        return np.column_stack((u, v))

    def ray(self, u: float, v: float) -> F64:
        """Return the unit direction (3,) in the world of pixel (u, v)."""
        local = np.array([(u - self.cx) / self.fx, (v - self.cy) / self.fy, 1.0])
        direction: F64 = self.rotation @ (local / np.linalg.norm(local))
        return direction


def orbit(
    name: str,
    width: int,
    height: int,
    target: tuple[float, float, float],
    distance: float,
    yaw_deg: float,
    pitch_deg: float,
    fov_deg: float,
) -> Camera:
    """
    Return a camera that looks at ``target`` [m] from ``distance`` [m], with PyBullet's angles.

    The principal point is where PyBullet's renderer has it: (w / 2, h / 2 - 1); half-pixel centres
    would bias positions on the table by 3 to 5 mm (measured).
    """
    yaw, pitch = math.radians(yaw_deg), math.radians(pitch_deg)
    forward = np.array(
        [-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), math.sin(pitch)]
    )
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    focal = height / 2 / math.tan(math.radians(fov_deg) / 2)
    return Camera(
        name,
        width,
        height,
        focal,
        focal,
        width / 2,
        height / 2 - 1,
        np.array(target) - distance * forward,
        np.column_stack((right, down, forward)),
    )


def load(path: str | Path) -> Camera:
    """
    Read a camera's YAML file (``camera:`` with name, size, and ``orbit`` or ``intrinsics`` and
    ``pose``).

    :param path: a file, or the bare name of a camera in config/cameras
    :raises ConfigError: unreadable, a missing key or a value that is not allowed
    """
    file = _find(path)
    try:
        data = yaml.safe_load(file.read_text(encoding='utf-8'))['camera']
        return _parse(data)
    except KeyError as error:
        raise ConfigError(f'{file}: missing key {error.args[0]!r}') from error
    except (
        OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError, ConfigError
    ) as error:  # fmt: skip
        raise ConfigError(f'{file}: {error}') from error


def _find(path: str | Path) -> Path:
    file = Path(path)
    if file.suffix or file.parent != Path():
        return file
    folder = config_dir() / 'cameras'
    found = folder / f'{path}.yaml'
    if not found.is_file():
        names = (entry.stem for entry in folder.glob('*.yaml'))
        raise UnknownNameError('camera', str(path), names)
    return found


def _parse(data: Mapping[str, Any]) -> Camera:
    name = str(data['name'])
    width, height = (_size(key, data[key]) for key in ('width', 'height'))
    if 'orbit' in data:
        look = data['orbit']
        x, y, z = _vector('orbit.target', look['target'])
        return orbit(
            name,
            width,
            height,
            (x, y, z),
            number('orbit.distance', look['distance'], 1e-3, MAX_LENGTH),
            number('orbit.yaw_deg', look['yaw_deg'], -360.0, 360.0),
            # straight up or down the yaw has no meaning
            number('orbit.pitch_deg', look['pitch_deg'], -89.9, 89.9),
            number('orbit.fov_deg', look['fov_deg'], 0.1, 179.0),
        )
    intrinsics, pose = data['intrinsics'], data['pose']
    return Camera(
        name,
        width,
        height,
        fx=number('intrinsics.fx', intrinsics['fx'], 1.0, MAX_PIXELS),
        fy=number('intrinsics.fy', intrinsics['fy'], 1.0, MAX_PIXELS),
        cx=number('intrinsics.cx', intrinsics['cx'], -MAX_PIXELS, MAX_PIXELS),
        cy=number('intrinsics.cy', intrinsics['cy'], -MAX_PIXELS, MAX_PIXELS),
        position=np.array(_vector('pose.xyz', pose['xyz'])),
        rotation=_rotation(pose['rotation']),
    )


def _size(name: str, value: Any) -> int:
    if type(value) is not int or not 8 <= value <= MAX_SIZE:
        raise ConfigError(f'{name}: {value!r}: must be a whole number of 8 to {MAX_SIZE}')
    return value


def _vector(name: str, values: Any) -> list[float]:
    if not isinstance(values, list) or len(values) != 3:
        raise ConfigError(f'{name}: {values!r} must be a list of 3 numbers')
    return [number(f'{name}[{i}]', v, -MAX_LENGTH, MAX_LENGTH) for i, v in enumerate(values)]


def _rotation(values: Any) -> F64:
    """Read 3 rows of 3, or 9 numbers by rows."""
    if isinstance(values, list) and len(values) == 9:
        values = [values[0:3], values[3:6], values[6:9]]
    if not isinstance(values, list) or len(values) != 3:
        raise ConfigError(f'pose.rotation: {values!r} must be 3 rows of 3 numbers')
    matrix = np.array([_vector(f'pose.rotation[{i}]', row) for i, row in enumerate(values)])
    off = float(np.abs(matrix @ matrix.T - np.eye(3)).max())
    if off > 1e-3 or np.linalg.det(matrix) < 0.0:
        raise ConfigError(
            f'pose.rotation: {values!r} must be a rotation: orthonormal within 0.001, '
            'determinant 1'
        )
    return matrix
