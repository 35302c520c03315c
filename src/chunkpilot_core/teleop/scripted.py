"""
A scripted operator for the simulator: the expert of the task in front of it, so that
demonstrations can be recorded without hands.

It looks at the simulator's truth and decides once per row, as a policy would. Now and then it
does something else on purpose, so that recovering is demonstrated; such rows are marked, and
nobody should imitate them.
"""

from dataclasses import dataclass
from typing import Any

from chunkpilot_core import registry, spaces
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.runtime.demonstrations import DemonstrationConfig, Disturbance
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim.scene import Scene
from chunkpilot_core.tasks.runtime.expert import Expert
from chunkpilot_core.teleop import base
from chunkpilot_core.types import F32, F64, nanoseconds, seconds
import numpy as np

MAX_SCENE_AGE_S = 0.2
INSIDE_M = 0.007  # [m] from the ends of the workspace: fingers are not pressed into the table


class Scripted(base.Source):
    """Drives within episodes, from the moment on at which the guard lets it at full speed."""

    @dataclass(frozen=True)
    class Config:
        """What it does on purpose that the expert would not."""

        disturbances: bool = option(True, 'push aside and slip, to demonstrate recovering')
        pushes_per_row: float = option(
            0.03, 'chance per row that the tool is pushed aside', min=0.0, max=1.0
        )
        slips_per_row: float = option(
            0.008, 'chance per row that the gripper does the contrary', min=0.0, max=1.0
        )

    name = 'scripted'
    listens = ('scene',)
    episodes_only = True
    config: Config

    def __init__(self, robot: Robot, config: Any = None) -> None:
        super().__init__(robot, config)
        self._experts: dict[str, Expert] = {}
        self._lower = np.array(robot.workspace_lower) + INSIDE_M
        self._upper = np.array(robot.workspace_upper) - INSIDE_M
        self._scene: Scene | None = None
        self.let_go()

    @property
    def bounds(self) -> base.Bounds:
        """As a policy, it asks for widths at once: the guard limits how fast fingers move."""
        return base.Bounds(self.robot.max_tool_speed, gripper=np.inf)

    def take(self, what: str, data: Any, now_ns: int) -> None:
        """Take the scene."""
        if not isinstance(data, Scene):
            raise InvalidDataError(f'{what}: {type(data).__name__}, expected a Scene')
        self._scene = data

    def let_go(self) -> None:
        """Begin anew with the next episode."""
        self._row = -1
        self._phase = 0.0
        self._before: F64 | None = None
        self._slow = self._fast = np.zeros(0)  # velocity at the start and the end of the row
        self._width = 0.0
        self._done: F32 | None = None
        self._source = 'teleop'
        self._seen_ns = 0
        self._solved = False
        self._disturbance: Disturbance | None = None

    def aim(self, arm: base.Arm) -> base.Aim | str:
        """Go on along the row, or decide on the next one."""
        if not arm.in_episode:
            return 'no episode is running'
        scene = self._scene
        if scene is None or abs(seconds(arm.now_ns - scene.stamp_ns)) > MAX_SCENE_AGE_S:
            return 'no new sim/scene: a scripted operator works in the simulator only'
        expert = self._expert(scene.task_kind)
        if arm.space != expert.space:
            return f'the action space is {arm.space.hash}, the expert speaks {expert.space.hash}'
        if self._before is None:
            if arm.scale < 1.0:
                return 'waiting for full speed'
            self._before = arm.commanded
            self._slow = self._fast = np.zeros(len(arm.commanded))
            self._decide(expert, scene, arm.dt_s)
        else:
            self._phase += arm.passed_s / arm.dt_s
        # After a stall the rows missed are not made up for: nothing gets faster.
        if self._phase >= 1.0 - 1e-3:
            self._before = self._at(1.0, arm.dt_s)
            self._phase = max(min(self._phase - 1.0, 1.0 - 1e-3), 0.0)
            self._decide(expert, scene, arm.dt_s)
        velocity = self._slow + self._phase * (self._fast - self._slow)
        target = self._at(self._phase, arm.dt_s)
        target[-1] = self._width
        left_s = (1.0 - self._phase) * arm.dt_s / max(arm.scale, 0.05)
        end_ns = arm.now_ns + nanoseconds(left_s)
        return base.Aim(target, velocity, self._row, self._seen_ns, end_ns, self._source)

    def _at(self, phase: float, dt_s: float) -> F64:
        """
        Return the target (T,) at a phase of the row.

        Its velocity changes over the whole row: a bend at the border would be more than the joints
        may be accelerated, and the guard would have to alter it.
        """
        assert self._before is not None
        mean = self._slow + 0.5 * phase * (self._fast - self._slow)
        target: F64 = self._before + phase * dt_s * mean
        # Where the guard would stop it, a target must not wind up.
        target[:3] = np.clip(target[:3], self._lower, self._upper)
        return target

    def _decide(self, expert: Expert, scene: Scene, dt_s: float) -> None:
        if self._disturbance is None:
            config = DemonstrationConfig(
                pushes_per_row=self.config.pushes_per_row, slips_per_row=self.config.slips_per_row
            )
            self._disturbance = Disturbance(config, np.random.default_rng((scene.seed, 1)))
        assert self._before is not None
        wished = expert(scene, self._before, self._done)
        self._solved = self._solved or scene.success
        row = wished
        if self.config.disturbances and not self._solved:
            row = self._disturbance(wished, self._before)
        self._source = 'teleop' if row is wished else 'disturbance'
        after = spaces.resolve_row(expert.space, row, self._before)
        self._slow, self._fast = self._fast, (after - self._before) / dt_s
        self._width, self._fast[-1] = after[-1], 0.0  # grippers do not follow a path
        self._done, self._seen_ns = row, scene.stamp_ns
        self._row += 1

    def _expert(self, kind: str) -> Expert:
        if kind not in self._experts:
            self._experts[kind] = registry.get('tasks', kind)().expert(self.robot)
        return self._experts[kind]
