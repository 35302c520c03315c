"""
The shape of a robot and of what stands around it: the key ``collision`` of the robot's file.

Bodies are rigid pieces of the arm, each moved by one joint and covered by capsules; a URDF with
meshes may describe the same pieces more exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.yaml_values import known_keys, number, positions, positive, Triple, triple

BASE, HELD, ANYTHING = 'base', 'held', '*'
"""The frame that no joint moves; what the gripper holds; all that is not the arm."""
MAX_SIZE = 20.0  # [m]
MAX_THRESHOLD = 0.1  # [m], below what distances are told up to


@dataclass(frozen=True, slots=True)
class Capsule:
    """All points within ``radius`` [m] of a line, in the frame of its body."""

    start: Triple
    end: Triple
    radius: float


@dataclass(frozen=True, slots=True)
class Body:
    """
    A rigid piece of the arm, moved by the joint ``frame`` or standing still with the base.

    ``xyz`` and ``rpy`` take its own frame, that of ``urdf_link`` in the URDF ('' for none), into
    the joint's.
    """

    name: str
    frame: str
    xyz: Triple
    rpy: Triple
    urdf_link: str
    capsules: tuple[Capsule, ...]


@dataclass(frozen=True, slots=True)
class Slide:
    """
    How a finger's joint moves it: as in a URDF, seen from the last joint of the arm's chain.
    """

    joint: str
    xyz: Triple
    rpy: Triple
    axis: Triple


@dataclass(frozen=True, slots=True)
class Box:
    """Something fixed in the world frame: its middle, and its edge lengths ``size`` [m]."""

    name: str
    xyz: Triple
    rpy: Triple
    size: Triple


@dataclass(frozen=True, slots=True)
class Threshold:
    """Of two bodies: nearer than ``stop`` [m] is refused, nearer than ``slow`` is slowed."""

    first: str
    second: str
    stop: float
    slow: float


@dataclass(frozen=True, slots=True)
class Collision:
    """Bodies of the arm, what stands around, and which may come how near."""

    urdf: str
    stop: float
    slow: float
    bodies: tuple[Body, ...]
    slides: tuple[Slide, ...]
    environment: tuple[Box, ...]
    allowed: tuple[tuple[str, str], ...]
    thresholds: tuple[Threshold, ...]

    @property
    def fingers(self) -> tuple[str, ...]:
        """Names of the bodies that a finger's joint moves."""
        slides = {slide.joint for slide in self.slides}
        return tuple(body.name for body in self.bodies if body.frame in slides)

    def may_touch(self, first: str, second: str) -> bool:
        """Whether a pair is not looked at."""
        return (first, second) in self.allowed or (second, first) in self.allowed

    def threshold(self, first: str, second: str) -> tuple[float, float]:
        """
        Return the distances of a pair at which the arm is stopped and slowed [m].

        A threshold of the very pair comes before one with anything in the surroundings.
        """
        own = {body.name for body in self.bodies} | {HELD}
        for pair in ((first, second), (second, first)):
            for limit in self.thresholds:
                if (limit.first, limit.second) == pair:
                    return limit.stop, limit.slow
        for body, other in ((first, second), (second, first)):
            for limit in self.thresholds:
                if (limit.first, limit.second) == (body, ANYTHING) and other not in own:
                    return limit.stop, limit.slow
        return self.stop, self.slow


def parse(
    data: Mapping[str, Any], arm_joints: Sequence[str], finger_joints: Sequence[str]
) -> Collision:
    """
    Read and check the key ``collision``.

    :raises ConfigError: with the place of what is wrong
    :raises KeyError: a key is missing
    """
    known_keys('collision', data, _KEYS)
    slides = tuple(_slide(item, finger_joints) for item in data.get('fingers') or ())
    frames = (BASE, *arm_joints, *(slide.joint for slide in slides))
    bodies = tuple(_body(item, frames) for item in data['bodies'])
    boxes = tuple(_box(item) for item in data.get('environment') or ())
    _unique('collision', [body.name for body in bodies] + [box.name for box in boxes])
    _unique('collision.fingers', [slide.joint for slide in slides])
    names = [body.name for body in bodies] + [box.name for box in boxes]
    stop, slow = _stop_and_slow('collision', data)
    return Collision(
        urdf=str(data.get('urdf') or ''),
        stop=stop,
        slow=slow,
        bodies=bodies,
        slides=slides,
        environment=boxes,
        allowed=tuple(_pair('allowed', pair, names) for pair in data.get('allowed') or ()),
        thresholds=tuple(
            _threshold(item, (*names, HELD, ANYTHING)) for item in data.get('thresholds') or ()
        ),
    )


def _body(data: Any, frames: Sequence[str]) -> Body:
    known_keys('collision.bodies', data, _BODY_KEYS)
    name, frame = _name('bodies', data['name']), str(data['frame'])
    if frame not in frames:
        raise UnknownNameError(f'frame of the body {name!r}', frame, frames)
    capsules = tuple(_capsule(name, item) for item in data['capsules'])
    if not capsules:
        raise ConfigError(f'collision: body {name!r} needs at least one capsule')
    xyz, rpy = _optional_triple(data, 'xyz'), _optional_triple(data, 'rpy')
    return Body(name, frame, xyz, rpy, str(data.get('urdf_link') or ''), capsules)


def _optional_triple(data: Mapping[str, Any], name: str) -> Triple:
    return triple(data, name) if name in data else (0.0, 0.0, 0.0)


def _capsule(name: str, data: Any) -> Capsule:
    known_keys(f'capsules of {name}', data, ('from', 'to', 'radius'))
    radius = positive(f'{name}.radius', data['radius'], MAX_SIZE)
    return Capsule(triple(data, 'from'), triple(data, 'to'), radius)


def _slide(data: Any, joints: Sequence[str]) -> Slide:
    known_keys('collision.fingers', data, ('joint', 'xyz', 'rpy', 'axis'))
    joint = str(data['joint'])
    if joint not in joints:
        raise UnknownNameError('joint of the gripper', joint, joints)
    axis = triple(data, 'axis')
    if abs(sum(x * x for x in axis) - 1.0) > 1e-6:
        raise ConfigError(f'collision.fingers: axis {list(axis)} of {joint} must have length 1')
    return Slide(joint, triple(data, 'xyz'), triple(data, 'rpy'), axis)


def _box(data: Any) -> Box:
    known_keys('collision.environment', data, ('name', 'xyz', 'rpy', 'size'))
    name = _name('environment', data['name'])
    x, y, z = (
        positive(f'{name}.size', size, MAX_SIZE) for size in positions('size', data['size'], 3)
    )
    return Box(name, triple(data, 'xyz'), _optional_triple(data, 'rpy'), (x, y, z))


def _threshold(data: Any, names: Sequence[str]) -> Threshold:
    known_keys('collision.thresholds', data, ('pair', 'stop', 'slow'))
    first, second = _pair('thresholds', data['pair'], names)
    if first == ANYTHING:
        raise ConfigError(f'collision.thresholds: {ANYTHING!r} comes second, after a body')
    return Threshold(first, second, *_stop_and_slow(f'threshold of {first}-{second}', data))


def _stop_and_slow(what: str, data: Mapping[str, Any]) -> tuple[float, float]:
    stop = number(f'{what}: stop', data['stop'], -MAX_THRESHOLD, MAX_THRESHOLD)
    slow = number(f'{what}: slow', data['slow'], -MAX_THRESHOLD, MAX_THRESHOLD)
    if not stop < slow:
        raise ConfigError(f'{what}: stop {stop} m is not below slow {slow} m')
    return stop, slow


def _pair(what: str, pair: Any, names: Sequence[str]) -> tuple[str, str]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ConfigError(f'collision.{what}: {pair!r} must be two names')
    for name in pair:
        if name not in names:
            raise UnknownNameError(f'body in collision.{what}', str(name), names)
    return str(pair[0]), str(pair[1])


def _name(what: str, value: Any) -> str:
    name = str(value)
    if not name or '-' in name or name in (HELD, ANYTHING):
        raise ConfigError(f'collision.{what}: {value!r} is no name (not empty, no "-", not held)')
    return name


def _unique(what: str, names: Iterable[str]) -> None:
    listed = list(names)
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if twice:
        raise ConfigError(f'{what} names {twice} more than once')


_KEYS = (
    'urdf', 'stop', 'slow', 'bodies', 'fingers', 'environment', 'allowed', 'thresholds',
)  # fmt: skip
_BODY_KEYS = ('name', 'frame', 'xyz', 'rpy', 'urdf_link', 'capsules')
