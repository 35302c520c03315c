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
import numpy as np
import yaml


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
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError) as error:
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
    name, width, height = str(data['name']), int(data['width']), int(data['height'])
    if width < 8 or height < 8:
        raise ConfigError(f'camera {name}: size {width} x {height}, at least 8 x 8')
    if 'orbit' in data:
        look = data['orbit']
        x, y, z = (float(value) for value in look['target'])
        return orbit(
            name,
            width,
            height,
            (x, y, z),
            float(look['distance']),
            float(look['yaw_deg']),
            float(look['pitch_deg']),
            float(look['fov_deg']),
        )
    intrinsics, pose = data['intrinsics'], data['pose']
    return Camera(
        name,
        width,
        height,
        fx=float(intrinsics['fx']),
        fy=float(intrinsics['fy']),
        cx=float(intrinsics['cx']),
        cy=float(intrinsics['cy']),
        position=np.array(pose['xyz'], float).reshape(3),
        rotation=np.array(pose['rotation'], float).reshape(3, 3),
    )
