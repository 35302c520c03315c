"""
Where one object is believed to be: on its support, in the gripper, or hidden.

Two facts shape this. A cube half hidden by the fingers has its centroid shifted by up to half its
size, and the shift stays the same from frame to frame, so that averaging does not remove it: what
is missing of the cube is a slack within which an image says nothing new. And a cube in the gripper
is not on the table, so that the plane misplaces it by centimetres: while held, it is the tool plus
the offset it had when the fingers closed.
"""

from dataclasses import dataclass, replace
import math

from chunkpilot_core.camera import Camera
from chunkpilot_core.config import option
from chunkpilot_core.perception.base import RobotState
from chunkpilot_core.perception.runtime.detector import Detection, locate, outline
from chunkpilot_core.types import F64, nanoseconds, ObjectEstimate, ObjectStatus, seconds
import numpy as np

_UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0])
_YAW_VARIANCE = (math.pi / 2) ** 2 / 12  # nothing is known about how a cube is turned


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """How an object is followed."""

    size_m: float = option(0.04, 'edge of the cubes', unit='m', min=0.01, max=0.2)
    table_z_m: float = option(0.0, 'height of the table top in the world', unit='m')
    noise_m: float = option(0.002, 'error (1 sd) of an unhidden detection', unit='m', min=1e-4)
    clear_quality: float = option(
        0.8, 'visible / expected pixels above which a cube counts as unhidden', min=0.1, max=1.0
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
        self._quality = math.nan
        self._seen_ns = 0
        self._now_ns = 0
        self._ignore_before_ns = 0
        self._hidden = False
        self._doubts = 0

    def advance(self, robot: RobotState) -> None:
        """Bring the estimate to the time of ``robot``."""
        passed_s, self._now_ns = seconds(robot.stamp_ns - self._now_ns), robot.stamp_ns
        if self.position is None:
            return
        if self.held:
            self.position = self._in_gripper(robot)
        self._variance += self._drift(robot) ** 2 * max(passed_s, 0.0)

    def hold(self, robot: RobotState) -> None:
        """The fingers have closed on this object."""
        if self.position is None:
            return
        self.held, self._doubts = True, 0
        self._offset = robot.tool.rotation.T @ (self.position - robot.tool.position)
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

    def _in_gripper(self, robot: RobotState) -> F64:
        place: F64 = robot.tool.position + robot.tool.rotation @ self._offset
        return place

    def _slack(self, quality: float) -> float:
        hidden = max(0.0, self.config.clear_quality - quality) / self.config.clear_quality
        return hidden * self.config.size_m / 2

    def _see_resting(self, camera: Camera, found: Detection, stamp_ns: int) -> None:
        place = locate(camera, found, self.height, self.config.size_m)
        if place is None:
            return
        self._quality = self._visible_share(camera, found, place)
        slack = self._slack(self._quality)
        if self.position is None or self._status() is ObjectStatus.LOST:
            self._restart(place, slack)
        else:
            self._correct(place, slack)
        self._seen_ns = stamp_ns

    def _correct(self, place: F64, slack: float) -> None:
        assert self.position is not None
        shift = place - self.position
        distance = float(np.linalg.norm(shift))
        beyond = max(0.0, distance - slack)
        if beyond > max(self.config.jump_m, 4 * math.sqrt(self._variance)):
            # mostly hidden cubes are believed the second time only
            self._doubts += 1
            if slack < self.config.size_m / 4 or self._doubts > 1:
                self._restart(place, slack)
            return
        self._doubts = 0
        noise = self.config.noise_m**2 + slack**2
        gain = self._variance / (self._variance + self.config.noise_m**2)
        if beyond > 0.0:
            self.position = self.position + gain * beyond / distance * shift
        if noise < self._variance:
            self._variance *= noise / (self._variance + noise)

    def _restart(self, place: F64, slack: float) -> None:
        self.position, self._doubts = place, 0
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


@dataclass(frozen=True, slots=True)
class Grip:
    """What the fingers say: ``closed`` on something since ``since_ns`` at ``width`` [m]."""

    closed: bool = False
    since_ns: int = 0
    width: float = 0.0

    def update(self, robot: RobotState, narrow: float, wide: float, still: float) -> 'Grip':
        """
        Return the grip at the time of ``robot``.

        :param narrow: less wide than this holds nothing [m]
        :param wide: wider than this holds nothing [m]
        :param still: fingers faster than this are on their way [m/s]
        """
        if not narrow <= robot.width <= wide:
            return Grip()
        if self.closed:
            # a drop of the grip by finger noise would lose the object in mid-air
            return self if robot.width <= self.width + 0.012 else Grip()
        if abs(robot.width_velocity) > still:
            return Grip()
        if self.since_ns == 0:
            return replace(self, since_ns=robot.stamp_ns)
        steady = robot.stamp_ns - self.since_ns >= 40_000_000
        return Grip(steady, self.since_ns, robot.width)
