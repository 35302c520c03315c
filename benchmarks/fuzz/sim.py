"""
The same attacks on a guard in front of the simulated arm, whose collisions physics counts.

What is commanded is followed by PyBullet's motors; contacts with table and floor are its own, and
links that penetrate each other are found at the measured joints, not at those the guard knows.
"""

from dataclasses import replace
from typing import Any

from benchmarks.fuzz.attack import Episode, PERIOD_S
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.guard import GuardTick
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import nanoseconds

TASK = 'reach'  # without objects: whatever is touched is a collision


class SimEpisode(Episode):
    """One guard under attack, and an arm that weighs something."""

    def __init__(self, robot: Robot, seed: tuple[int, int], **options: Any) -> None:
        """
        Load the world, too.

        :raises ConfigError: a robot whose shape is not known
        """
        if robot.collision is None:
            raise ConfigError(f'robot {robot.name!r} has no shape that could collide')
        super().__init__(robot, seed, **options)
        self.world = World(TASK, self.robot)
        self.world.reset(seed[1])
        state = self.world.joint_state()
        self.measured, self.velocity = state.positions, state.velocities
        client, arm = self.world._client, self.world._body
        infos = [client.getJointInfo(arm, i) for i in range(client.getNumJoints(arm))]
        links = {info[12].decode(): int(info[0]) for info in infos}
        links[client.getBodyInfo(arm)[0].decode()] = -1
        bodies = {body.name: links[body.urdf_link] for body in robot.collision.bodies}
        apart = {frozenset(pair) for pair in robot.collision.allowed}
        names = list(bodies)
        self._pairs = [
            (first, bodies[first], second, bodies[second])
            for i, first in enumerate(names)
            for second in names[i + 1 :]
            if frozenset((first, second)) not in apart
        ]
        self._moving = [link for link in bodies.values() if link >= 1]
        self._link_names = {number: name for name, number in bodies.items()}

    def close(self) -> None:
        """Free the physics."""
        self.world.close()

    def _choose_robot(self, robot: Robot) -> Robot:
        """Return the robot without the leave to touch the table that the demo needs."""
        assert robot.collision is not None
        kept = tuple(pair for pair in robot.collision.thresholds if pair.stop >= 0.0)
        return replace(robot, collision=replace(robot.collision, thresholds=kept))

    def step(self) -> list[str]:
        """See :meth:`Episode.step`; collisions are added."""
        return super().step() + self._collisions()

    def _pass_time(self) -> float:
        self.steady_ns += nanoseconds(PERIOD_S)
        self.now_ns += nanoseconds(PERIOD_S)
        return PERIOD_S

    def _change_mood(self) -> None:
        super()._change_mood()
        self.dt_s, self.lag, self.noise = PERIOD_S, 1.0, min(self.noise, 1e-4)

    def _follow(self, tick: GuardTick) -> None:
        if tick.positions is None:
            self.world.hold()
            self.world.step()
        else:
            self.world.step(tick.positions)
        state = self.world.joint_state()
        self.measured, self.velocity = state.positions, state.velocities

    def _collisions(self) -> list[str]:
        client, arm = self.world._client, self.world._body
        found = []
        for first, link, second, other in self._pairs:
            points = client.getClosestPoints(arm, arm, 0.0, link, other)
            if points and min(point[8] for point in points) < 0.0:
                found.append(f'collision: {first} with {second}')
        for point in client.getContactPoints(bodyA=arm):
            if point[3] in self._moving and point[2] != arm and point[8] < 0.0:
                name = client.getBodyInfo(point[2])[1].decode() or f'body {point[2]}'
                found.append(f'collision: {self._link_names[point[3]]} with {name}')
        return found
