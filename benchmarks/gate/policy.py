"""The scripted stacking expert as a policy of chunks, with one decision that goes wrong."""

from dataclasses import dataclass
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.sim.world import World
from chunkpilot_core.tasks.runtime.expert import Expert, holds, View
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    F32,
    F64,
    Observation,
    PolicySpec,
)
import numpy as np
from numpy.typing import NDArray

HORIZON, DT_S = 16, 0.04
CUBE_M = 0.04
FINGERS_M = 0.008  # that the width changes by in a row
LASTS = 8  # rows for which what was carried would have been carried on
FAR_M = 0.03
NAMES = ('object', 'object2')
GRIPPER, MOTION = 'gripper', 'motion'


@dataclass(frozen=True, slots=True)
class Slip:
    """
    What goes wrong in one chunk of an episode, in ``rows`` rows one after another.

    ``'gripper'``: a gripper that carries something is opened; ``'motion'``: the tool is displaced
    by ``size_m`` in free motion, where the gripper neither opens nor closes.
    """

    kind: str
    rows: int
    size_m: float = 0.03


@dataclass(slots=True)
class Imagined:
    """What the expert looks at while it imagines its next rows."""

    places: dict[str, F64]
    goal: F64

    def position(self, body: str) -> F64:
        """Return where a body is, shape (3,)."""
        return self.places[body]


class ScriptedChunks(Policy):
    """Looks at the true scene and imagines how it goes on."""

    def __init__(self, expert: Expert, kinematics: Kinematics) -> None:
        self._expert, self._kinematics = expert, kinematics
        self.spec = PolicySpec(
            'scripted', 'stack', 1, expert.space, HORIZON, DT_S, ('ee.x',), task_kind='stack'
        )
        self.world: World | None = None
        self.slip: Slip | None = None
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Draw when it goes wrong: the same for every kind of slip."""
        self._random = np.random.default_rng((seed, 7))
        self._wait = int(self._random.integers(0, 2))  # chunks that it could have happened in
        self._first = int(self._random.integers(3, 8))  # two rows are late
        self.slipped = self.asked = 0

    def act(self, observation: Observation, request: ChunkRequest) -> ActionChunk:
        """Imagine the rows of a chunk."""
        self.asked += 1
        rows, carried, left = self._imagine()
        if self.slip is not None and not self.slipped and self._may_slip(rows, carried, left):
            self._wait -= 1
            if self._wait < 0:
                self._go_wrong(rows)
        return self.chunk(observation, request, rows)

    def _imagine(self) -> tuple[F32, NDArray[np.bool_], F64]:
        """
        Return rows (H, A), whether something is carried in each (H,), and the way left (H,) [m] to
        the nearer goal.
        """
        assert self.world is not None
        scene, robot = self.world.scene(), self._kinematics.robot
        assert robot.gripper is not None
        tool = self._kinematics.forward(scene.joints(robot.arm_joints)).position
        width = float(scene.joints(robot.gripper.joints).sum())
        seen = Imagined({name: scene.position(name).copy() for name in NAMES}, scene.goal)
        rows, last, holding, left = [], None, [], []
        goals = (scene.goal[:2], scene.goal[3:5])
        for _ in range(HORIZON):
            view: Any = View(tool, width, seen)  # type: ignore[arg-type]
            wish = self._expert.plan(view)
            step = self._expert._step(wish, tool)
            if last is not None:
                step = last + _shorten(step - last, self._expert.max_change_m)
            opened = robot.gripper.max_width if wish.opened else 0.0
            carried = [n for n in NAMES if holds(view, seen.places[n]) and not wish.opened]
            holding.append(bool(carried))
            left.append(min(float(np.hypot(*(goal - tool[:2]))) for goal in goals))
            target = np.concatenate((tool + step, [opened]))
            rows.append(spaces.to_row(self.spec.space, target, np.concatenate((tool, [width]))))
            for name in carried[:1]:
                seen.places[name] = seen.places[name] + step
            tool, last = tool + step, step
            between = any(_between(tool, seen.places[name]) for name in NAMES)
            closed = CUBE_M if between else 0.0
            width += float(np.clip(max(opened, closed) - width, -FINGERS_M, FINGERS_M))
        return np.array(rows, np.float32), np.array(holding), np.array(left)

    def _may_slip(self, rows: F32, carried: NDArray[np.bool_], left: F64) -> bool:
        assert self.slip is not None
        part = slice(self._first, self._first + LASTS)
        if self.slip.kind == GRIPPER:
            return bool(carried[part].all() and left[part].min() > FAR_M)
        return bool(np.ptp(rows[:, 3]) == 0.0)

    def _go_wrong(self, rows: F32) -> None:
        assert self.slip is not None
        part = slice(self._first, self._first + self.slip.rows)
        if self.slip.kind == GRIPPER:
            rows[part, 3] = 1.0
        else:
            angle = self._random.uniform(0.0, 2.0 * np.pi)
            unit = 0.05 * self.slip.rows
            away = self.slip.size_m / unit * np.array([np.cos(angle), np.sin(angle)])
            rows[part, :2] = np.clip(rows[part, :2] + away, -1.0, 1.0)
        self.slipped += 1


def _between(tool: F64, cube: F64) -> bool:
    return bool(np.abs(cube - tool).max() < 0.02)


def _shorten(vector: F64, longest: float) -> F64:
    length = float(np.linalg.norm(vector))
    return vector * (longest / length) if length > longest else vector
