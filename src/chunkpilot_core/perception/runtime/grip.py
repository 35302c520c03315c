"""Tells from finger positions alone whether the gripper has closed on something."""

from collections import deque
from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.perception.base import RobotState
from chunkpilot_core.types import nanoseconds

_MEMORY_NS = nanoseconds(0.4)


@dataclass(frozen=True)
class GripConfig:
    """When fingers count as closed on something."""

    grip_reach_m: float = option(
        0.04, 'largest distance of a held object from the tool', unit='m', min=0.0
    )
    grip_narrow_m: float = option(0.02, 'fingers nearer than this hold nothing', unit='m', min=0.0)
    grip_wide_m: float = option(
        0.06, 'fingers further apart than this hold nothing', unit='m', min=0.0
    )
    grip_still_m_s: float = option(
        0.03, 'fingers that close faster than this have met nothing yet', unit='m/s', min=0.0
    )
    grip_opening_m: float = option(
        0.012, 'opened by so much since they closed, fingers hold nothing', unit='m', min=0.0
    )


class Grip:
    """
    Follows the fingers through every measured state.

    ``closed`` on something since ``since_ns``, the time at which they touched it.
    """

    def __init__(self, config: GripConfig) -> None:
        self.config = config
        self.closed = False
        self.since_ns = 0
        self._width = 0.0
        self._recent: deque[tuple[int, float]] = deque()

    def update(self, robot: RobotState) -> None:
        """Take the next measured state."""
        self._recent.append((robot.stamp_ns, robot.width))
        while self._recent[0][0] < robot.stamp_ns - _MEMORY_NS:
            self._recent.popleft()
        inside = self.config.grip_narrow_m <= robot.width <= self.config.grip_wide_m
        if self.closed:
            self._width = min(self._width, robot.width)
            opened = robot.width > self._width + self.config.grip_opening_m
            self.closed = inside and not opened
        elif inside and self._stopped(robot):
            self.closed, self._width = True, robot.width
            self.since_ns = self._touched_ns(robot)

    def _stopped(self, robot: RobotState) -> bool:
        """Whether closing fingers met something: they closed lately and no longer do."""
        widest = max(width for _, width in self._recent)
        closing = widest > robot.width + self.config.grip_opening_m / 2
        return closing and abs(robot.width_velocity) <= self.config.grip_still_m_s

    def _touched_ns(self, robot: RobotState) -> int:
        # fingers give a little once they squeeze; the touch was earlier than the standstill
        touched_ns = robot.stamp_ns
        for stamp_ns, width in reversed(self._recent):
            if width > robot.width + 0.004:
                break
            touched_ns = stamp_ns
        return touched_ns
