"""
What stands between the robot's topics and its motors: takes commands in parts, refuses, freezes.
"""

from chunkpilot_core.errors import ChunkpilotError, InvalidDataError, UnknownNameError
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import F64
import numpy as np


class Driver:
    """A robot's driver: each topic commands its own joints, the others keep their last targets."""

    def __init__(self, world: World) -> None:
        """
        Start with the arm held where it is.

        ``commands`` and ``refused`` count messages; ``last_refusal`` says why the newest was
        refused.
        """
        self._world = world
        self.commands = 0
        self.refused = 0
        self.last_refusal = ''
        self.stopped = False
        self.reset()

    def take(self, source: str, joints: tuple[str, ...], values: F64) -> None:
        """
        Take targets of some joints; they go to the motors with the next :meth:`apply`.

        :param source: for messages, e.g. the topic
        :param values: shape (len(joints),) [rad, m]
        :raises ChunkpilotError: stopped, wrong size, not finite or outside the limits; counted,
            and the last targets stay in force
        """
        try:
            self._staged = self._merged(joints, values)
        except ChunkpilotError as error:
            self.refused += 1
            self.last_refusal = f'{source}: {error}'
            raise type(error)(self.last_refusal) from None
        self._dirty = True
        self.commands += 1

    def apply(self) -> None:
        """Pass on what came in since the last call; to be called before each step of the world."""
        if self._dirty:
            self._world.command(self._staged)
            self._dirty = False

    def stop(self) -> None:
        """Freeze the arm where it is and refuse commands until :meth:`clear`."""
        self.hold()
        self.stopped = True

    def clear(self) -> None:
        """Let commands in again; until the first one the arm stays where it is."""
        self.hold()
        self.stopped = False

    def hold(self) -> None:
        """Stay where the arm is now."""
        self._world.hold()
        self.reset()

    def reset(self) -> None:
        """Forget commands that were not applied, e.g. after the world's reset."""
        self._staged = self._world.targets
        self._dirty = False

    def _merged(self, joints: tuple[str, ...], values: F64) -> F64:
        if self.stopped:
            raise ChunkpilotError('the driver is stopped, call driver/clear')
        if len(values) != len(joints):
            raise InvalidDataError(f'{len(values)} values, must be {len(joints)}')
        known = self._world.robot.joints
        staged = self._staged.copy()
        for joint, value in zip(joints, values, strict=True):
            if joint not in known:
                raise InvalidDataError(str(UnknownNameError('joint', joint, known)))
            staged[known.index(joint)] = value
        return self._world.check(np.asarray(staged))
