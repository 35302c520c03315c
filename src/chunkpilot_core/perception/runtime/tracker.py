"""
Where one object is believed to be: on its support, in the gripper, pushed by it, or hidden.

Three facts shape this. A cube half hidden by the fingers has its centroid shifted by up to half
its size, and the shift stays the same from frame to frame, so that averaging does not remove it:
what is missing of the cube is a slack within which an image says nothing new. A cube in the
gripper is not on the table, so that the plane misplaces it by centimetres: while held, it is the
tool plus the offset it had when the fingers touched it. And at 5 images a second a pushed cube is
centimetres ahead of its last image: closed fingers push it out of the space that they take.
"""

from collections import deque
from dataclasses import dataclass
import math

from chunkpilot_core.camera import Camera
from chunkpilot_core.config import option
from chunkpilot_core.perception.base import RobotState
from chunkpilot_core.perception.runtime.detector import Detection, locate, outline
from chunkpilot_core.types import F64, nanoseconds, ObjectEstimate, ObjectStatus, seconds
import numpy as np

_UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0])
_YAW_VARIANCE = (math.pi / 2) ** 2 / 12  # nothing is known about how a cube is turned


@dataclass(frozen=True)
class TrackerConfig:
    """How an object is followed."""

    size_m: float = option(0.04, 'edge of the cubes', unit='m', min=0.01, max=0.2)
    fingers_m: tuple[float, ...] = option(
        (0.021, 0.042),
        'size of the closed finger tips along x and y of the tool',
        unit='m',
        min=0.0,
    )
    finger_axis: tuple[float, ...] = option(
        (0.0, 1.0, 0.0), 'direction in the tool frame in which the first finger opens'
    )
    table_z_m: float = option(0.0, 'height of the table top in the world', unit='m')
    noise_m: float = option(0.002, 'error (1 sd) of an unhidden detection', unit='m', min=1e-4)
    clear_quality: float = option(
        0.95, 'visible / expected pixels above which a cube counts as unhidden', min=0.1, max=1.0
    )
    near_tool_m: float = option(0.10, 'nearer than this the tool may move an object', unit='m')
    drift_near_m: float = option(0.05, 'sd that a second near the tool adds', unit='m', min=0.0)
    drift_far_m: float = option(0.001, 'sd that a second elsewhere adds', unit='m', min=0.0)
    drift_hidden_m: float = option(0.01, 'sd that a second unseen adds', unit='m', min=0.0)
    drift_held_m: float = option(0.002, 'sd that a second in the gripper adds', unit='m', min=0.0)
    jump_m: float = option(0.02, 'an object seen so far off has been moved', unit='m', min=0.001)
    slip_m: float = option(0.045, 'a held object seen so far off is not held', unit='m', min=0.005)
    fall_s: float = option(0.25, 'images are not used so long after a release', unit='s', min=0.0)
    lost_after_s: float = option(3.0, 'unseen for so long, an object is lost', unit='s', min=0.1)


class Tracker:
    """Follows one cube; all methods take measured data only."""

    def __init__(self, name: str, config: TrackerConfig) -> None:
        self.name = name
        self.config = config
        self.position: F64 | None = None
        self.height = config.table_z_m + config.size_m / 2
        self.held = False
        self._variance = 0.0
        self._offset = np.zeros(3)
        self._tool = np.zeros(3)
        self._quality = math.nan
        self._seen_ns = 0
        self._now_ns = 0
        self._ignore_before_ns = 0
        self._hidden = False
        self._doubts = 0
        self._track: deque[tuple[int, F64]] = deque(maxlen=100)
        size = np.array([*config.fingers_m, 0.0]) + config.size_m
        self._reach = np.array([size[0] / 2, size[1] / 2, 0.75 * config.size_m])

    def advance(self, robot: RobotState) -> None:
        """Bring the estimate to the time of ``robot``; call it with every measured state."""
        passed_s, self._now_ns = seconds(robot.stamp_ns - self._now_ns), robot.stamp_ns
        if self.position is None:
            self._tool = robot.tool.position
            return
        if self.held:
            self.position = self._in_gripper(robot)
        else:
            self.position = self._pushed(self.position, robot)
        self._tool = robot.tool.position
        self._variance += self._drift(robot) ** 2 * max(passed_s, 0.0)
        self._track.append((robot.stamp_ns, self.position))

    def hold(self, robot: RobotState) -> None:
        """
        The fingers have closed on this object.

        :param robot: the robot when they touched it
        """
        if self.position is None:
            return
        self.held, self._doubts = True, 0
        self._offset = robot.tool.rotation.T @ (self._at(robot.stamp_ns) - robot.tool.position)
        # what was seen before the fingers closed no longer holds: they push the object
        self._ignore_before_ns = robot.stamp_ns

    def release(self, robot: RobotState, height: float) -> None:
        """The fingers have let go; the object comes to rest with its centre at ``height`` [m]."""
        assert self.position is not None
        self.held, self._doubts, self.height = False, 0, height
        self.position = np.array([*self.position[:2], height])
        self._ignore_before_ns = robot.stamp_ns + nanoseconds(self.config.fall_s)

    def see(self, camera: Camera, found: Detection | None, robot: RobotState) -> None:
        """
        Use an image.

        :param found: the object's blob, None if there is none
        :param robot: the robot at the image's stamp
        """
        if robot.stamp_ns < max(self._ignore_before_ns, self._seen_ns):
            return
        self._hidden = found is None
        if found is None:
            self._quality = 0.0
        elif self.held:
            self._see_held(camera, found, robot)
        else:
            self._see_resting(camera, found, robot.stamp_ns)

    def estimate(self) -> ObjectEstimate | None:
        """Return what is believed now; None if the object was never seen."""
        if self.position is None:
            return None
        covariance = np.diag([self._variance] * 3 + [_YAW_VARIANCE] * 3)
        if not self.held:
            covariance[2, 2] = self.config.noise_m**2  # the support fixes the height
        stamp_ns = self._now_ns if self.held else self._seen_ns
        return ObjectEstimate(
            self.name,
            stamp_ns,
            self.position.copy(),
            _UPRIGHT,
            covariance,
            self._status(),
            self._quality,
        )

    def _status(self) -> ObjectStatus:
        if self.held:
            return ObjectStatus.HELD
        if seconds(self._now_ns - self._seen_ns) > self.config.lost_after_s:
            return ObjectStatus.LOST
        return ObjectStatus.PREDICTED if self._hidden else ObjectStatus.VISIBLE

    def _drift(self, robot: RobotState) -> float:
        config = self.config
        if self.held:
            return config.drift_held_m
        if self._near(robot):
            return config.drift_near_m
        return config.drift_hidden_m if self._hidden else config.drift_far_m

    def _near(self, robot: RobotState) -> bool:
        return self.distance(robot) < self.config.near_tool_m

    def distance(self, robot: RobotState) -> float:
        """Return how far the object is from the tool [m]; infinite if it was never seen."""
        if self.position is None:
            return math.inf
        return float(np.linalg.norm(self.position - robot.tool.position))

    def _at(self, stamp_ns: int) -> F64:
        """Return where the object was believed to be at a time, shape (3,) [m]."""
        assert self.position is not None
        for then_ns, position in reversed(self._track):
            if then_ns <= stamp_ns:
                return position
        return self._track[0][1] if self._track else self.position

    def _move(self, shift: F64, since_ns: int) -> None:
        assert self.position is not None
        self.position = self.position + shift
        # images that are on their way are compared with where the object was when they were taken
        for i, (then_ns, position) in enumerate(self._track):
            if then_ns >= since_ns:
                self._track[i] = (then_ns, position + shift)

    def _in_gripper(self, robot: RobotState) -> F64:
        place: F64 = robot.tool.position + robot.tool.rotation @ self._centred(robot)
        return place

    def _centred(self, robot: RobotState) -> F64:
        """Return the offset in the tool frame; along the fingers it is what the joints say."""
        axis = np.array(self.config.finger_axis)
        offset: F64 = self._offset + (robot.off_centre - float(axis @ self._offset)) * axis
        return offset

    def _pushed(self, position: F64, robot: RobotState) -> F64:
        """Return ``position`` pushed out of the closed fingers, the shortest way."""
        if robot.width > self.config.size_m / 2:
            return position
        offset = robot.tool.rotation.T @ (position - robot.tool.position)
        inside = self._reach - np.abs(offset)
        if inside.min() <= 0.0:
            return position
        axis = 0 if inside[0] < inside[1] else 1
        side = math.copysign(inside[axis], offset[axis])
        # friction: a pushed cube goes along with the fingers sideways, too
        step = robot.tool.rotation.T @ (robot.tool.position - self._tool)
        moved = position + side * robot.tool.rotation[:, axis]
        moved = moved + step[1 - axis] * robot.tool.rotation[:, 1 - axis]
        return np.array([moved[0], moved[1], position[2]])

    def _slack(self, quality: float) -> float:
        hidden = max(0.0, self.config.clear_quality - quality) / self.config.clear_quality
        # half of what is hidden; seen at a slant, a cube covers 2.2 times its edge of the table
        return 1.1 * hidden * self.config.size_m

    def _see_resting(self, camera: Camera, found: Detection, stamp_ns: int) -> None:
        place = locate(camera, found, self.height, self.config.size_m)
        if place is None:
            return
        self._quality = self._visible_share(camera, found, place)
        slack = self._slack(self._quality)
        if self.position is None or self._status() is ObjectStatus.LOST:
            self._track.clear()
            self._restart(place, slack)
        else:
            self._correct(place, slack, stamp_ns)
        self._seen_ns = stamp_ns

    def _correct(self, place: F64, slack: float, stamp_ns: int) -> None:
        shift = place - self._at(stamp_ns)
        distance = float(np.linalg.norm(shift))
        beyond = max(0.0, distance - slack)
        if beyond > max(self.config.jump_m, 4 * math.sqrt(self._variance)):
            # mostly hidden cubes are believed the second time only
            self._doubts += 1
            if slack < self.config.size_m / 4 or self._doubts > 1:
                self._move(shift, stamp_ns)
                self._forget(slack)
            return
        self._doubts = 0
        noise = self.config.noise_m**2 + slack**2
        gain = self._variance / (self._variance + self.config.noise_m**2)
        if beyond > 0.0:
            self._move(gain * beyond / distance * shift, stamp_ns)
        if noise < self._variance:
            self._variance *= noise / (self._variance + noise)

    def _restart(self, place: F64, slack: float) -> None:
        self.position = place
        self._forget(slack)

    def _forget(self, slack: float) -> None:
        self._doubts = 0
        self._variance = self.config.noise_m**2 + slack**2

    def _see_held(self, camera: Camera, found: Detection, robot: RobotState) -> None:
        expected = self._in_gripper(robot)
        self._quality = self._visible_share(camera, found, expected)
        shift = outline(camera, expected, self.config.size_m).shift
        ray = camera.ray(found.u - shift[0], found.v - shift[1])
        along = float((expected - camera.position) @ ray)
        missed = camera.position + along * ray - expected
        slipped = float(np.linalg.norm(missed)) - self._slack(self._quality) > self.config.slip_m
        self._doubts = self._doubts + 1 if slipped else 0

    @property
    def slipped(self) -> bool:
        """Whether images say that the gripper does not hold what it is believed to hold."""
        return self.held and self._doubts > 1

    def _visible_share(self, camera: Camera, found: Detection, place: F64) -> float:
        expected = outline(camera, place, self.config.size_m).pixels
        return min(1.0, found.pixels / expected) if expected > 0.0 else math.nan
