"""
Where the simulated drives would really bring the arm along a path: they lag and overshoot.

A world of its own with nothing but the arm. It costs ten times what the kinematic sweep does, and
is worth it where the model of the drives is good: the shipped one is panda-gym's.
"""

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.prediction.path import Path
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

TICK_S = 0.01


class Dynamics:
    """PyBullet's arm, put where a path begins and driven along it."""

    def __init__(self, robot: Robot) -> None:
        """
        Load the arm.

        :raises ConfigError: PyBullet or panda-gym is missing, or the robot is another one
        """
        try:
            from chunkpilot_core.sim import bullet

            self._sim = bullet.connect()
            panda = bullet.load_panda(self._sim, robot)
            joints = bullet.joint_indices(self._sim, robot)
        except ImportError as error:
            raise ConfigError(f'dynamics: {error}; pip install "chunkpilot[sim]"') from error
        self._client, self._body = self._sim.physics_client, self._sim._bodies_idx['panda']
        self._indices = list(joints.values())
        forces = dict(zip(panda.joint_indices.tolist(), panda.joint_forces.tolist(), strict=True))
        self._forces = [forces[index] for index in self._indices]

    def follow(self, path: Path) -> F64:
        """Return where the joints are at the end of each row, and before the first, (M + 1, J)."""
        for index, place, speed in zip(
            self._indices, path.positions[0], path.velocity, strict=True
        ):
            self._client.resetJointState(self._body, index, place, speed)
        reached = [path.positions[0]]
        for before, after, duration in zip(
            path.positions[:-1], path.positions[1:], path.durations, strict=True
        ):
            ticks = max(round(duration / TICK_S), 1)
            for i in range(1, ticks + 1):
                target = before + i / ticks * (after - before)
                self._sim.control_joints('panda', self._indices, target, self._forces)
                self._sim.step()
            reached.append(self._positions())
        return np.array(reached)

    def close(self) -> None:
        """Free the physics client."""
        self._sim.close()

    def _positions(self) -> F64:
        states = self._client.getJointStates(self._body, self._indices)
        return np.array([state[0] for state in states])
