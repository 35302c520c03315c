"""What is known of a robot: read from its YAML file, checked once, never changed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from chunkpilot_core import collision as collisions
from chunkpilot_core.collision import Collision
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.types import F64
from chunkpilot_core.yaml_values import (
    known_keys,
    MAX_POSITION,
    number,
    position,
    positions,
    positive,
    triple,
)
import numpy as np
import yaml

# Above any arm or table; a larger number is a mistake and would silently switch a limit off.
MAX_VELOCITY = 100.0  # [rad/s, m/s]
MAX_ACCELERATION = 1e4
MAX_JERK = 1e7
MAX_AGE_S = 3600.0
MAX_EFFORT = 1e5


@dataclass(frozen=True, slots=True)
class Link:
    """Fixed transform to a joint (as a URDF origin); the joint turns about +z."""

    joint: str
    xyz: tuple[float, float, float]
    rpy: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Bounds of one joint [rad, m; and per second].

    Near an end of its range a joint may have to be slower, as the Franka FR3's: not faster than
    ``sqrt(2 deceleration_limit room) - velocity_offset``.
    """

    min_position: float
    max_position: float
    max_velocity: float
    max_acceleration: float
    max_jerk: float = math.inf
    velocity_offset: float = 0.0
    deceleration_limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Gripper:
    """A parallel gripper whose joints each open half the width [m]."""

    name: str
    joints: tuple[str, ...]
    min_width: float
    max_width: float
    max_velocity: float
    max_acceleration: float


@dataclass(frozen=True, slots=True)
class Output:
    """One robot topic and the joints in its order."""

    topic: str
    type: str
    joints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Robot:
    """A robot arm with an optional gripper."""

    name: str
    world_frame: str
    base_xyz: tuple[float, float, float]
    base_rpy: tuple[float, float, float]
    chain: tuple[Link, ...]
    tool_xyz: tuple[float, float, float]
    tool_rpy: tuple[float, float, float]
    tool_orientation: tuple[float, float, float, float]
    home: tuple[float, ...]
    limits: tuple[Limits, ...]
    gripper: Gripper | None
    workspace_lower: tuple[float, float, float]
    workspace_upper: tuple[float, float, float]
    max_tool_speed: float
    max_row_age_s: float
    position_margin: float
    outputs: tuple[Output, ...]
    collision: Collision | None = None
    max_effort: tuple[float, ...] = ()

    @property
    def arm_joints(self) -> tuple[str, ...]:
        """Names of the arm's joints, base first."""
        return tuple(link.joint for link in self.chain)

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of all driven joints: arm, then fingers."""
        return self.arm_joints + (self.gripper.joints if self.gripper else ())

    def limit_array(self, name: str) -> F64:
        """
        Return one limit of all driven joints, shape (J,): fingers get half of the gripper's width
        limits.

        :param name: a field of :class:`Limits`
        """
        return np.array([getattr(limit, name) for limit in self.limits + self._finger_limits()])

    def _finger_limits(self) -> tuple[Limits, ...]:
        grip = self.gripper
        if grip is None:
            return ()
        one = Limits(
            grip.min_width / 2,
            grip.max_width / 2,
            grip.max_velocity / 2,
            grip.max_acceleration / 2,
        )
        return (one,) * len(grip.joints)

    @property
    def limits_hash(self) -> str:
        """
        Short hash of everything that bounds motion, published so that nobody runs on other limits.
        """
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(path: str | Path) -> Robot:
    """
    Read a robot's YAML file.

    :param path: a file, or the bare name of a robot in config/robots
    :raises ConfigError: unreadable file, missing key, or a value that is no finite number, with
        its place
    """
    file = find(path)
    try:
        data = yaml.safe_load(file.read_text(encoding='utf-8'))
        return parse(data['robot'])
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'{file}: {error}') from error
    except KeyError as error:
        raise ConfigError(f'{file}: missing key {error.args[0]!r}') from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f'{file}: {error}') from error
    except ConfigError as error:
        raise ConfigError(f'{file}: {error}') from error


def config_dir() -> Path:
    """
    Return the folder with robots/, policies/ and so on: of the source tree, else of the installed
    share.
    """
    for folder in (
        Path(__file__).resolve().parents[2] / 'config',
        *(
            Path(prefix) / 'share/chunkpilot/config'
            for prefix in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
            if prefix
        ),
    ):
        if (folder / 'robots').is_dir():
            return folder
    raise ConfigError('config folder of chunkpilot not found; build and source the workspace')


def find(path: str | Path) -> Path:
    """Return the YAML file of a robot given by path or bare name."""
    file = Path(path)
    if file.suffix or file.parent != Path():
        return file
    folder = config_dir() / 'robots'
    found = folder / f'{path}.yaml'
    if not found.is_file():
        raise UnknownNameError('robot', str(path), (entry.stem for entry in folder.glob('*.yaml')))
    return found


def parse(data: Mapping[str, Any]) -> Robot:
    """Build and check a robot from the mapping under the key ``robot``."""
    known_keys('the robot', data, _KEYS)
    chain = tuple(
        Link(str(item['joint']), triple(item, 'xyz'), triple(item, 'rpy'))
        for item in data['chain']
    )
    joints = [link.joint for link in chain]
    if len(set(joints)) != len(joints):
        raise ConfigError(f'chain names a joint twice: {joints}')
    gripper = _gripper(data['gripper']) if data.get('gripper') else None
    robot = Robot(
        name=str(data['name']),
        world_frame=str(data['world_frame']),
        base_xyz=triple(data['base'], 'xyz'),
        base_rpy=triple(data['base'], 'rpy'),
        chain=chain,
        tool_xyz=triple(data['tool'], 'xyz'),
        tool_rpy=triple(data['tool'], 'rpy'),
        tool_orientation=_quaternion(data['tool']['orientation']),
        home=positions('home', data['home'], len(chain)),
        limits=tuple(_limits(name, data['joint_limits'][name]) for name in joints),
        gripper=gripper,
        workspace_lower=triple(data['workspace'], 'lower'),
        workspace_upper=triple(data['workspace'], 'upper'),
        max_tool_speed=positive('max_tool_speed', data['max_tool_speed'], MAX_VELOCITY),
        max_row_age_s=positive('max_row_age_s', data['max_row_age_s'], MAX_AGE_S),
        position_margin=positive('position_margin', data['position_margin'], MAX_POSITION),
        outputs=tuple(
            Output(str(item['topic']), str(item['type']), tuple(item['joints']))
            for item in data['outputs']
        ),
        collision=_collision(data, joints, gripper),
        max_effort=_efforts(data['max_effort'], joints) if 'max_effort' in data else (),
    )
    _check(robot)
    return robot


def _check(robot: Robot) -> None:
    for name, value, limit in zip(robot.arm_joints, robot.home, robot.limits, strict=True):
        if not limit.min_position <= value <= limit.max_position:
            raise ConfigError(
                f'home of {name}: {value} rad is outside '
                f'{limit.min_position} to {limit.max_position} rad'
            )
    for axis, low, high in zip('xyz', robot.workspace_lower, robot.workspace_upper, strict=True):
        if not low < high:
            raise ConfigError(f'workspace: lower {axis} {low} m is not below upper {high} m')
    sent = [joint for output in robot.outputs for joint in output.joints]
    if sorted(sent) != sorted(robot.joints):
        raise ConfigError(f'outputs drive {sent}, must drive each of {list(robot.joints)} once')


def _limits(name: str, data: Mapping[str, Any]) -> Limits:
    for key in ('has_position_limits', 'has_velocity_limits', 'has_acceleration_limits'):
        if data.get(key) is not True:
            raise ConfigError(f'joint_limits.{name}.{key} must be true: the guard needs the limit')
    has_jerk = data.get('has_jerk_limits', False)
    if not isinstance(has_jerk, bool):
        raise ConfigError(f'joint_limits.{name}.has_jerk_limits: {has_jerk!r}: true or false')
    limits = Limits(
        position(f'{name}.min_position', data['min_position']),
        position(f'{name}.max_position', data['max_position']),
        positive(f'{name}.max_velocity', data['max_velocity'], MAX_VELOCITY),
        positive(f'{name}.max_acceleration', data['max_acceleration'], MAX_ACCELERATION),
        positive(f'{name}.max_jerk', data['max_jerk'], MAX_JERK) if has_jerk else math.inf,
        *_near_the_ends(name, data.get('position_based_velocity_limits')),
    )
    if not limits.min_position < limits.max_position:
        raise ConfigError(
            f'joint_limits.{name}: min_position {limits.min_position} is not below '
            f'max_position {limits.max_position}'
        )
    return limits


def _efforts(data: Mapping[str, Any], joints: list[str]) -> tuple[float, ...]:
    known_keys('max_effort', data, tuple(joints))
    return tuple(positive(f'max_effort.{name}', data[name], MAX_EFFORT) for name in joints)


def _near_the_ends(name: str, data: Any) -> tuple[float, float]:
    if data is None:
        return 0.0, math.inf
    what = f'joint_limits.{name}.position_based_velocity_limits'
    known_keys(what, data, ('velocity_offset', 'deceleration_limit'))
    return (
        number(f'{what}: velocity_offset', data['velocity_offset'], 0.0, MAX_VELOCITY),
        positive(f'{what}: deceleration_limit', data['deceleration_limit'], MAX_ACCELERATION),
    )


def _gripper(data: Mapping[str, Any]) -> Gripper:
    gripper = Gripper(
        name=str(data['name']),
        joints=tuple(str(joint) for joint in data['joints']),
        min_width=position('gripper.min_width', data['min_width']),
        max_width=position('gripper.max_width', data['max_width']),
        max_velocity=positive('gripper.max_velocity', data['max_velocity'], MAX_VELOCITY),
        max_acceleration=positive(
            'gripper.max_acceleration', data['max_acceleration'], MAX_ACCELERATION
        ),
    )
    if not gripper.min_width < gripper.max_width:
        raise ConfigError(
            f'gripper: min_width {gripper.min_width} is not below max_width {gripper.max_width}'
        )
    return gripper


def _collision(
    data: Mapping[str, Any], joints: list[str], gripper: Gripper | None
) -> Collision | None:
    if 'collision' not in data:
        return None
    return collisions.parse(data['collision'], joints, gripper.joints if gripper else ())


def _quaternion(values: Any) -> tuple[float, float, float, float]:
    x, y, z, w = positions('tool.orientation', values, 4)
    if abs(math.hypot(x, y, z, w) - 1.0) > 1e-3:
        raise ConfigError(f'tool.orientation: {values} is no unit quaternion (xyzw)')
    return (x, y, z, w)


_KEYS = (
    'name', 'world_frame', 'base', 'home', 'chain', 'tool', 'gripper', 'joint_limits',
    'position_margin', 'workspace', 'max_tool_speed', 'max_row_age_s', 'outputs',
    'collision', 'max_effort',
)  # fmt: skip
