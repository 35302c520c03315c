"""The seam of perception: a stage takes an observation and returns it with more in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from chunkpilot_core.camera import Camera
from chunkpilot_core.kinematics import Pose
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64, Observation, Task


@dataclass(frozen=True, slots=True)
class RobotState:
    """
    The robot at ``stamp_ns``.

    Joints (J,) in ``robot.joints`` order [rad, m; per second], pose and velocity (3,) of the tool,
    gripper width [m; per second]; ``off_centre`` [m] is how far the middle between two fingers is
    from the tool point, positive towards where the first finger opens.
    """

    stamp_ns: int
    positions: F64
    velocities: F64
    tool: Pose
    tool_velocity: F64
    width: float
    width_velocity: float
    off_centre: float = 0.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    What a stage may look up: the robot, its cameras, and where the robot was at a time.

    ``robot_at`` interpolates between measured states and returns None outside of the history.
    ``robots_since`` gives every measured state after a time, oldest first, the newest for None.
    """

    robot: Robot
    cameras: Mapping[str, Camera]
    robot_at: Callable[[int], RobotState | None]
    robots_since: Callable[[int | None], Iterable[RobotState]]


class Stage(ABC):
    """One step of perception; called once per observation, in the order of the configuration."""

    Config: ClassVar[type[Any]]

    def __init__(self, config: Any, surroundings: Surroundings) -> None:
        self.config = config
        self.surroundings = surroundings

    @abstractmethod
    def __call__(self, observation: Observation) -> Observation:
        """
        Return the observation with this stage's results.

        ``observation.images`` holds the frames that arrived since the last call, each exactly
        once.
        """

    def reset(self, task: Task | None) -> None:  # noqa: B027 - optional
        """Forget everything seen; ``task`` is in force from now on."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features that this stage adds; they are NaN in observations where it failed."""
        return ()

    @property
    def needs_images(self) -> bool:
        """Whether a dead camera makes observations useless for the task in force."""
        return False


BASE = Stage
