"""What every task offers: bodies, goal, success, words for it, and a scripted expert."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks.runtime.expert import Expert
from chunkpilot_core.types import F64, Task
import numpy as np

GREEN = (0.1, 0.9, 0.1)
BLUE = (0.1, 0.1, 0.9)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """
    A thing to perceive: ``name`` in observations, ``body`` in panda-gym, RGB in [0, 1], edge
    ``size`` [m].
    """

    name: str
    body: str
    colour: tuple[float, float, float]
    size: float


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Options that every task has."""

    distance_threshold: float = option(
        0.05, 'solved when closer to the goal than this', unit='m', min=0.001, max=0.2
    )
    timeout_s: float = option(10.0, 'an episode that lasts longer has failed', unit='s', min=0.1)


class TaskDefinition(ABC):
    """
    One of panda-gym's tasks. A new object knows the facts; :meth:`attach` gives it bodies in a
    simulation.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    kind: ClassVar[str]
    text: ClassVar[str]
    goal_names: ClassVar[tuple[str, ...]] = ('goal.x', 'goal.y', 'goal.z')
    objects: ClassVar[tuple[ObjectInfo, ...]] = ()
    ghosts: ClassVar[tuple[str, ...]] = ('target',)
    """Bodies that mark the goal for people; cameras must not see them."""
    lasting: ClassVar[bool] = True
    """Whether what is solved stays so; demonstrations have to show that then."""

    def __init__(self, config: TaskConfig | None = None) -> None:
        self.config = config or self.Config()
        self._task: Any = None

    @abstractmethod
    def build(self, sim: Any, robot: Any) -> Any:
        """
        Create the bodies and return panda-gym's task.

        :param sim: ``panda_gym.pybullet.PyBullet``
        :param robot: ``panda_gym.envs.robots.panda.Panda`` in the same simulation
        """

    @abstractmethod
    def expert(self, robot: Robot) -> Expert:
        """Return the scripted expert."""

    def attach(self, sim: Any, robot: Any) -> None:
        """Give the task its bodies in ``sim``, ghosts invisible."""
        self._task = self.build(sim, robot)
        for ghost in self.ghosts:
            sim.physics_client.changeVisualShape(
                sim._bodies_idx[ghost], -1, rgbaColor=[0.0, 0.0, 0.0, 0.0]
            )

    def reset(self, seed: int, instance: int = 0) -> Task:
        """
        Sample objects and goal as ``gymnasium.make('Panda...').reset(seed=seed)`` does.

        :param instance: makes the task's id unique
        """
        from gymnasium.utils import seeding

        task = self._attached()
        task.np_random, _ = seeding.np_random(seed)
        task.reset()
        return Task(
            f'{self.kind}-{seed}-{instance}',
            self.kind,
            self.text,
            self.goal_names,
            self.goal.astype(np.float32),
        )

    @property
    def goal(self) -> F64:
        """The goal in force, shape (G,) [m], in the world frame."""
        return np.array(self._attached().get_goal(), np.float64)

    def move_goal(self, shift: F64) -> None:
        """Shift the goal, every point of it, by ``shift`` (3,) [m]."""
        task = self._attached()
        task.goal = task.goal + np.tile(shift, len(task.goal) // 3)

    def advance(self, dt_s: float) -> None:  # noqa: B027 - optional
        """Let time pass [s]; a goal that moves by itself does it here."""

    def success(self) -> bool:
        """Whether panda-gym would end the episode now."""
        task = self._attached()
        return bool(task.is_success(task.get_achieved_goal(), task.get_goal()))

    @property
    def timeout_s(self) -> float:
        """How long an episode may last [s]."""
        return self.config.timeout_s

    def _attached(self) -> Any:
        if self._task is None:
            raise ChunkpilotError(f'task {self.kind!r} is not attached to a simulation')
        return self._task


BASE = TaskDefinition
