"""
panda-gym's robot and tasks on PyBullet, with a robot interface as on hardware: joint targets in,
joint states out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime.bodies import Obstacle
from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim import bullet
from chunkpilot_core.sim import disturbance as disturbances
from chunkpilot_core.sim.deployment import ActionChannel, ActionErrors
from chunkpilot_core.sim.disturbance import DisturbanceConfig
from chunkpilot_core.sim.hazards import Hazards
from chunkpilot_core.sim.scene import Scene
from chunkpilot_core.tasks.base import TaskDefinition
from chunkpilot_core.types import F64, JointState, nanoseconds, Task
import numpy as np

CONTROL_DT_S = 0.01
"""[s], five of panda-gym's substeps of 1/500 s."""
CONTROL_DT_NS = nanoseconds(CONTROL_DT_S)
ARM_TOLERANCE, FINGER_TOLERANCE = 0.05, 0.005
"""[rad], [m], how far beyond its limits a joint target is still taken."""


class World:
    """
    One robot at one task. ``time_ns`` counts from construction and never goes back, whatever is
    reset.
    """

    Config = ActionErrors

    def __init__(
        self,
        task: str | TaskDefinition = 'pick_and_place',
        robot: Robot | None = None,
        config: ActionErrors | None = None,
        disturbance: DisturbanceConfig | None = None,
    ) -> None:
        """
        Load robot and task, and reset to seed 0.

        :param task: registered name, or a configured task
        :param robot: must be panda-gym's; its joints are matched by name
        :param disturbance: what happens in episodes from outside; None = nothing
        :raises UnknownNameError: no such task
        :raises ConfigError: the robot's joints are not those of the simulated one
        """
        self.robot = robot or robots.load('panda')
        self.config = config or ActionErrors()
        self.time_ns = 0
        self.resets = 0
        self.steps = 0
        n_arm = len(self.robot.arm_joints)
        n_fingers = len(self.robot.joints) - n_arm
        tolerance = np.array([ARM_TOLERANCE] * n_arm + [FINGER_TOLERANCE] * n_fingers)
        self._lower = self.robot.limit_array('min_position') - tolerance
        self._upper = self.robot.limit_array('max_position') + tolerance
        self._channel = ActionChannel(self.config, self.robot)
        self.disturb(disturbance)
        self._push: F64 = np.zeros(n_arm + n_fingers)
        self._sim: Any = None
        self._hazards: Hazards | None = None
        self.definition = _definition(task)
        self.reset(0)

    def set_task(self, task: str | TaskDefinition) -> None:
        """
        Change the task: every body is made anew, the robot stays where it is; call :meth:`reset`
        next.

        :raises UnknownNameError: no such task; the world stays as it is
        """
        self.definition = _definition(task)
        self.reset(0, reset_robot=False)

    def disturb(self, config: DisturbanceConfig | None) -> None:
        """Take what happens from outside from the next reset on; None = nothing."""
        self._disturbance = disturbances.make(config, self.robot)

    def reset(self, seed: int, reset_robot: bool = True) -> Task:
        """
        Place objects and goal as panda-gym does with this seed.

        Every body is made anew (20 ms): PyBullet's own restoring keeps some of the history, and an
        episode must depend on its seed only.

        :param seed: 0 to 2^63 - 1
        :param reset_robot: also put the arm into its neutral pose, at rest; else it stays where it
            is, held
        :raises InvalidDataError: a seed that is no integer >= 0
        """
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InvalidDataError(f'seed {seed!r} must be an integer >= 0')
        before = self.joint_state() if self._sim is not None else None
        self._build()
        if before is not None and not reset_robot:
            self._place_robot(before)
        self.seed = int(seed)
        self.resets += 1
        self._targets = self.joint_state().positions
        self._push = np.zeros_like(self._targets)
        self._channel.reset(self._targets)
        if self._disturbance is not None:
            self._disturbance.reset(self.seed, self._targets)
        self._task = self.definition.reset(self.seed, instance=self.resets)
        return self._task

    def command(self, targets: F64) -> None:
        """
        Take joint targets (J,) in ``robot.joints`` order [rad, m]; they stay in force until the
        next ones.

        :raises InvalidDataError: wrong shape, not finite, or far outside the limits; the last
            targets stay in force
        """
        self._channel.put(self.time_ns, self.check(targets))

    def check(self, targets: F64) -> F64:
        """
        Return joint targets (J,) as an own array, without taking them.

        :raises InvalidDataError: wrong shape, not finite, or far outside the limits
        """
        try:
            values = np.array(targets, np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidDataError(f'joint targets {targets!r}: {error}') from error
        if values.shape != self._lower.shape:
            raise InvalidDataError(
                f'joint targets of shape {values.shape}, must be {self._lower.shape}'
            )
        within = (values >= self._lower) & (values <= self._upper)  # NaN is not
        bad = np.flatnonzero(~within)
        if len(bad):
            i = int(bad[0])
            raise InvalidDataError(
                f'target of {self.robot.joints[i]} is {values[i]}, '
                f'allowed {self._lower[i]:.4g} to {self._upper[i]:.4g}'
            )
        return values

    def hold(self) -> None:
        """Stay where the arm is now, whatever was commanded or is still on its way."""
        self._targets = self.joint_state().positions - self._push
        self._channel.flush()

    def step(self, targets: F64 | None = None) -> None:
        """
        Advance by one control period of 0.01 s.

        :param targets: as for :meth:`command`; None = as before
        :raises InvalidDataError: as :meth:`command`; the world then has not advanced
        """
        if targets is not None:
            self.command(targets)
        due = self._channel.take(self.time_ns)
        if due is not None:
            self._targets = due
        targets = self._targets
        if self._disturbance is not None:
            targets = targets + self._disturbed(self._disturbance)
        self._sim.control_joints('panda', self._indices, targets, self._forces)
        self._sim.step()
        self.definition.advance(CONTROL_DT_S)
        self.time_ns += CONTROL_DT_NS
        self.steps += 1

    def _disturbed(self, disturbance: disturbances.Disturbance) -> F64:
        push = disturbance.step(self, self.joint_state().positions, CONTROL_DT_S)
        self._push = np.zeros_like(self._targets) if push is None else push
        return self._push

    def joint_state(self) -> JointState:
        """Return what encoders would tell, in ``robot.joints`` order."""
        states = self._client.getJointStates(self._body, self._indices)
        numbers = np.array([state[:2] for state in states])
        return JointState(self.time_ns, self.robot.joints, numbers[:, 0], numbers[:, 1])

    def success(self) -> bool:
        """Whether the task is solved now, by panda-gym's own definition."""
        return self.definition.success()

    @property
    def task(self) -> Task:
        """The task in force: what the last reset returned, with the goal where it is now."""
        goal = self.definition.goal.astype(np.float32)
        if not np.array_equal(goal, self._task.goal):
            self._task = replace(self._task, goal=goal)
        return self._task

    @property
    def disturbances(self) -> int:
        """How often something happened from outside since the last reset."""
        return self._disturbance.happened if self._disturbance is not None else 0

    def objects(self) -> Mapping[str, F64]:
        """Return where every body of the task is, (3,) [m] by name."""
        return {
            name: np.array(self._client.getBasePositionAndOrientation(body)[0])
            for name, body in self._objects.items()
        }

    def goal(self) -> F64:
        """Return the goal in force, shape (G,) [m]."""
        return self.definition.goal

    def move_goal(self, shift: F64) -> None:
        """Shift the goal by ``shift`` (3,) [m]."""
        self.definition.move_goal(shift)

    def scene(self) -> Scene:
        """Return the ground truth."""
        poses = [
            self._client.getBasePositionAndOrientation(body) for body in self._objects.values()
        ]
        return Scene(
            self.time_ns,
            self.robot.joints,
            self.joint_state().positions,
            tuple(self._objects),
            np.array([pose[0] for pose in poses]).reshape(-1, 3),
            np.array([pose[1] for pose in poses]).reshape(-1, 4),
            self.definition.goal,
            self.success(),
            self.seed,
            self.definition.kind,
        )

    def place(self, obstacles: Sequence[Obstacle]) -> None:
        """Put fixed things into the world until the next reset, which nobody should touch."""
        self._hazards = Hazards(self._client, obstacles)

    def touched(self) -> set[str]:
        """Return the names of what was placed and is touched by the arm, or by what it moves."""
        if self._hazards is None:
            return set()
        return self._hazards.touched([self._body, *self._objects.values()])

    def move_body(self, body: str, position: F64) -> None:
        """
        Put a body at ``position`` (3,) [m], upright and at rest, as a hand would.

        :raises UnknownNameError: no such body
        :raises InvalidDataError: not finite
        """
        if body not in self._objects:
            raise UnknownNameError('body', body, self._objects)
        if np.shape(position) != (3,) or not np.all(np.isfinite(position)):
            raise InvalidDataError(f'position {position} of {body!r} must be 3 finite numbers')
        self._client.resetBasePositionAndOrientation(
            self._objects[body], list(position), [0.0, 0.0, 0.0, 1.0]
        )

    def close(self) -> None:
        """Free the physics client; nothing else may be called afterwards."""
        self._sim.close()

    @property
    def targets(self) -> F64:
        """What the motors go to now, shape (J,)."""
        targets: F64 = self._targets.copy()
        return targets

    @property
    def _client(self) -> Any:
        return self._sim.physics_client

    def _build(self) -> None:
        sim = bullet.connect()
        panda = bullet.load_panda(sim, self.robot)
        self.definition.attach(sim, panda)
        if self._sim is not None:
            self._sim.close()
        self._sim, self._body = sim, sim._bodies_idx['panda']
        joints = bullet.joint_indices(sim, self.robot)
        forces = dict(zip(panda.joint_indices.tolist(), panda.joint_forces.tolist(), strict=True))
        self._indices = list(joints.values())
        self._forces = [forces[index] for index in self._indices]
        self._objects = {info.name: sim._bodies_idx[info.body] for info in self.definition.objects}
        self._hazards = None
        panda.reset()

    def _place_robot(self, joints: JointState) -> None:
        for index, q, v in zip(self._indices, joints.positions, joints.velocities, strict=True):
            self._client.resetJointState(self._body, index, q, v)


def _definition(task: str | TaskDefinition) -> TaskDefinition:
    if isinstance(task, TaskDefinition):
        return task
    definition: TaskDefinition = registry.get('tasks', task)()
    return definition
