"""Push to a goal that moves: as on a conveyor, whose encoder tells where the goal is now."""

from dataclasses import dataclass
import math
from typing import ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.push import Push
from chunkpilot_core.types import Task


@dataclass(frozen=True, slots=True)
class PushMovingConfig(base.TaskConfig):
    """How the goal moves; a tighter threshold than Push, else old predictions would do."""

    distance_threshold: float = option(
        0.03, 'solved when closer to the goal than this', unit='m', min=0.001, max=0.2
    )
    timeout_s: float = option(15.0, 'an episode that lasts longer has failed', unit='s', min=0.1)
    min_speed: float = option(0.01, 'slowest goal', unit='m/s', min=0.0, max=1.0)
    max_speed: float = option(0.04, 'fastest goal', unit='m/s', min=0.0, max=1.0)
    reach: float = option(
        0.15, 'so far from the middle of the table the goal turns back', unit='m', min=0.0, max=0.3
    )

    def __post_init__(self) -> None:
        if self.min_speed > self.max_speed:
            raise ConfigError(
                f'min_speed {self.min_speed} m/s is above max_speed {self.max_speed} m/s'
            )


class PushMoving(Push):
    """Scenes as in Push; the goal goes straight on over the table, mirrored at the edges."""

    Config: ClassVar[type[base.TaskConfig]] = PushMovingConfig
    config: PushMovingConfig
    kind = 'push_moving'
    text = 'push the green cube to the moving goal'
    lasting = False

    def reset(self, seed: int, instance: int = 0) -> Task:
        """Sample the scene that Push has with this seed, then speed and direction of the goal."""
        task = super().reset(seed, instance)
        random = self._attached().np_random
        speed = random.uniform(self.config.min_speed, self.config.max_speed)
        angle = random.uniform(0.0, 2.0 * math.pi)
        self._velocity = [speed * math.cos(angle), speed * math.sin(angle)]
        return task

    def advance(self, dt_s: float) -> None:
        """Move the goal."""
        task, reach = self._attached(), self.config.reach
        goal = task.goal.copy()
        for axis, speed in enumerate(self._velocity):
            if abs(goal[axis]) > reach and goal[axis] * speed > 0.0:
                self._velocity[axis] = -speed
            goal[axis] += self._velocity[axis] * dt_s
        task.goal = goal
