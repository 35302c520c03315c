"""
Stage ``objects``: finds the task's coloured cubes in camera images and follows them.

A colour mask gives the cube's centroid, the table plane its place (error about 1 mm when the arm
is away); in the gripper it moves with the tool.
"""

from dataclasses import dataclass, replace
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.perception.base import RobotState, Stage, Surroundings
from chunkpilot_core.perception.runtime.detector import colour_mask, detect, outline
from chunkpilot_core.perception.runtime.grip import Grip, GripConfig
from chunkpilot_core.perception.runtime.tracker import Tracker, TrackerConfig
from chunkpilot_core.types import Health, Image, ObjectStatus, Observation, seconds, Task
import cv2
import numpy as np
from numpy.typing import NDArray


class Objects(Stage):
    """Adds estimates of the task's objects, and the features ``<object>.{x, y, z, held, age}``."""

    @dataclass(frozen=True)
    class Config(TrackerConfig, GripConfig):
        """Which objects there are, how they look, when they are held."""

        tasks: tuple[str, ...] = option(
            ('default object=green', 'stack object=blue object2=green', 'reach'),
            'per task kind: "<kind> <object>=<colour> ..."; kinds not listed use "default"',
        )
        colours: tuple[str, ...] = option(
            ('green=50-70', 'blue=110-130'), 'hues "<colour>=<low>-<high>", 0 to 180 as in OpenCV'
        )
        min_saturation: int = option(110, 'less saturated pixels are no object', min=0, max=255)
        min_value: int = option(50, 'darker pixels are no object', min=0, max=255)
        min_pixels: int = option(8, 'smaller blobs are no object', min=1)

    def __init__(self, config: Config, surroundings: Surroundings) -> None:
        super().__init__(config, surroundings)
        self._hues = _parse_colours(config.colours)
        self._tasks = _parse_tasks(config.tasks, self._hues)
        self._trackers: dict[str, Tracker] = {}
        self._colours: dict[str, str] = {}
        self.reset(None)

    def reset(self, task: Task | None) -> None:
        """Forget every object; follow those of ``task`` from now on."""
        kind = task.kind if task is not None else 'default'
        self._colours = self._tasks.get(kind, self._tasks['default'])
        self._trackers = {name: Tracker(name, self.config) for name in self._colours}
        self._grip = Grip(self.config)
        self._followed_ns: int | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Five numbers of each object."""
        parts = ('x', 'y', 'z', 'held', 'age')
        return tuple(f'{name}.{part}' for name in self._trackers for part in parts)

    @property
    def needs_images(self) -> bool:
        """Whether the task has objects at all."""
        return bool(self._trackers)

    def __call__(self, observation: Observation) -> Observation:
        """Bring every object to the time of the observation, then look at the new images."""
        for robot in self.surroundings.robots_since(self._followed_ns):
            self._follow(robot)
        for image in observation.images:
            then = self.surroundings.robot_at(image.stamp_ns)
            if then is not None:
                self._look(image, then)
        return self._report(observation)

    def _look(self, image: Image, robot: RobotState) -> None:
        camera = self.surroundings.cameras[image.name]
        hsv = np.asarray(cv2.cvtColor(image.pixels, cv2.COLOR_RGB2HSV), np.uint8)
        for name, tracker in self._trackers.items():
            tracker.height = self._rest_height(tracker)
            mask = self._mask(hsv, self._colours[name])
            # pieces of one cube lie within its outline
            middle = np.array([0.0, 0.0, tracker.height])
            reach = math.sqrt(outline(camera, middle, self.config.size_m).pixels)
            found = detect(mask, self.config.min_pixels, reach)
            tracker.see(camera, found, robot)

    def _mask(self, hsv: NDArray[np.uint8], colour: str) -> NDArray[np.uint8]:
        hue = self._hues[colour]
        return colour_mask(hsv, hue, self.config.min_saturation, self.config.min_value)

    def _follow(self, robot: RobotState) -> None:
        self._followed_ns = robot.stamp_ns
        self._grip.update(robot)
        for tracker in self._trackers.values():
            tracker.advance(robot)
        held = next((tracker for tracker in self._trackers.values() if tracker.held), None)
        if held is not None and (held.slipped or not self._grip.closed):
            held.release(robot, self._rest_height(held))
        elif held is None and self._grip.closed and self._trackers:
            touched = self.surroundings.robot_at(self._grip.since_ns) or robot
            nearest = min(self._trackers.values(), key=lambda tracker: tracker.distance(touched))
            if nearest.distance(touched) <= self.config.grip_reach_m:
                nearest.hold(touched)
                nearest.advance(robot)

    def _rest_height(self, tracker: Tracker) -> float:
        """Return the height of the centre on what is below: another cube, else the table."""
        size = self.config.size_m
        table: float = self.config.table_z_m + size / 2
        for other in self._trackers.values():
            if other is tracker or other.position is None or tracker.position is None:
                continue
            apart = tracker.position - other.position
            if np.abs(apart[:2]).max() < 0.75 * size and apart[2] > size / 2 and not other.held:
                return float(other.position[2] + size)
        return table

    def _report(self, observation: Observation) -> Observation:
        estimates, features, reasons = [], [], []
        for name, tracker in self._trackers.items():
            estimate = tracker.estimate()
            if estimate is None:
                features += [math.nan, math.nan, math.nan, 0.0, math.nan]
                reasons.append(f'{name} not found yet')
                continue
            age_s = seconds(observation.stamp_ns - estimate.stamp_ns)
            features += [*estimate.position, float(tracker.held), age_s]
            estimates.append(estimate)
            if estimate.status is ObjectStatus.LOST:
                reasons.append(f'{name} not seen for {age_s:.1f} s')
        health = max(observation.health, Health.DEGRADED) if reasons else observation.health
        return replace(
            observation,
            feature_names=observation.feature_names + self.feature_names,
            features=np.concatenate((observation.features, np.array(features, np.float32))),
            objects=observation.objects + tuple(estimates),
            health=health,
            health_reason='; '.join(filter(None, (observation.health_reason, *reasons))),
        )


def _parse_colours(entries: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    hues = {}
    for entry in entries:
        name, _, span = entry.partition('=')
        low, _, high = span.partition('-')
        if not (low.isdigit() and high.isdigit() and int(low) <= int(high) <= 180):
            raise ConfigError(f'colours: {entry!r} is not "<colour>=<low>-<high>" within 0 to 180')
        hues[name] = (int(low), int(high))
    return hues


def _parse_tasks(
    entries: tuple[str, ...], hues: dict[str, tuple[int, int]]
) -> dict[str, dict[str, str]]:
    tasks: dict[str, dict[str, str]] = {'default': {}}
    for entry in entries:
        kind, *objects = entry.split() or ['']
        pairs = [item.partition('=') for item in objects]
        if not kind or '=' in kind or not all(name and mark for name, mark, _ in pairs):
            raise ConfigError(f'tasks: {entry!r} is not "<kind> <object>=<colour> ..."')
        for _, _, colour in pairs:
            if colour not in hues:
                raise UnknownNameError(f'colour in {entry!r}', colour, hues)
        tasks[kind] = {name: colour for name, _, colour in pairs}
    return tasks
