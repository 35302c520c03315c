"""
What happens to an episode from outside: objects that jump, goals that move, arms that are pushed.

Drawn before the episode from its seed, so that every strategy meets the same events; when they
happen depends on what the arm does. Nothing happens before the arm has left where it stood.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
import math
from typing import Protocol

from chunkpilot_core.config import option
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

EDGE_M = 0.15  # objects and goals stay where panda-gym puts them
STARTED_M = 0.01  # the tool has left where it stood
TURNS = 8  # directions that are tried for a jump, from the drawn one on
TRIGGER_M = (0.07, 0.15)  # of the tool from an object that jumps: never one in the fingers
BUSY_M = 0.045  # an object so near to the tool is held or pushed
ROOM_M = 0.06  # around the place where an object lands
RISE_S = 0.15  # a push comes and goes in this time
SEED = 3  # numbers of other uses of an episode's seed: see eval/loop.py


@dataclass(frozen=True, slots=True)
class DisturbanceConfig:
    """What disturbs an episode, how much and how often."""

    kind: str = option(
        'none',
        'object_jump: one that is not held jumps while the arm approaches it; target_jump: the '
        'goal jumps; target_move: the goal moves, another way after each event; arm_push: the '
        'tool is pushed aside',
        choices=('none', 'object_jump', 'target_jump', 'target_move', 'arm_push'),
    )
    count: int = option(2, 'at most so many events an episode', min=1, max=100)
    pause_s: float = option(
        1.0, 'longest time before the first event and between two', unit='s', min=0.1, max=60.0
    )
    object_jump_m: float = option(
        0.06, 'longest jump of an object; the shortest is half of it', unit='m', min=0.0, max=0.2
    )
    target_jump_m: float = option(
        0.1, 'longest jump of the goal; the shortest is half of it', unit='m', min=0.0, max=0.3
    )
    target_speed: float = option(
        0.08, 'fastest goal; the slowest is half of it', unit='m/s', min=0.0, max=1.0
    )
    arm_push_m: float = option(
        0.04, 'strongest push of the tool; the weakest is half of it', unit='m', min=0.0, max=0.2
    )
    arm_push_s: float = option(
        60.0,
        'how long a push lasts; longer than an episode, the arm stays displaced',
        unit='s',
        min=0.3,
        max=600.0,
    )


@dataclass(frozen=True, slots=True)
class Event:
    """
    One event, drawn beforehand.

    ``pause_s`` after the one before, ``strength`` 0.5 to 1 of the configured one, direction
    ``angle`` [rad] over the table, ``trigger_m`` between tool and object.
    """

    pause_s: float
    strength: float
    angle: float
    trigger_m: float

    def shift(self, length: float, turn: int = 0) -> F64:
        """Return the displacement (3,) over the table [m], turned by eighths."""
        angle = self.angle + 2.0 * math.pi * turn / TURNS
        return np.array([math.cos(angle), math.sin(angle), 0.0]) * length * self.strength


class Disturbed(Protocol):
    """What a disturbance may know of a world, and do to it."""

    def objects(self) -> Mapping[str, F64]:
        """Return where every object is, (3,) [m] by name."""

    def goal(self) -> F64:
        """Return the goal, (G,) [m]."""

    def move_body(self, body: str, position: F64) -> None:
        """Put an object somewhere, at rest."""

    def move_goal(self, shift: F64) -> None:
        """Shift the goal by (3,) [m]."""


class Disturbance(ABC):
    """One kind of disturbance in one world; ``happened`` counts events of the episode."""

    def __init__(self, config: DisturbanceConfig, robot: Robot) -> None:
        self.config = config
        self.happened = 0
        self._robot = robot
        self._kinematics = Kinematics(robot)

    def reset(self, seed: int, joints: F64) -> None:
        """Draw an episode's events; ``joints`` (J,) is where the arm stands."""
        random = np.random.default_rng((seed, SEED))
        self._events = [
            Event(
                random.uniform(0.1, self.config.pause_s),
                random.uniform(0.5, 1.0),
                random.uniform(0.0, 2.0 * math.pi),
                random.uniform(*TRIGGER_M),
            )
            for _ in range(self.config.count)
        ]
        self.happened = 0
        self._stood = self._tool(joints)
        self._waited_s = 0.0
        self._started = False

    def step(self, world: Disturbed, joints: F64, dt_s: float) -> F64 | None:
        """
        Let a control period pass.

        :param joints: measured, shape (J,)
        :returns: by how much the arm is pushed away from its joint targets, shape (J,), or None
        """
        tool = self._tool(joints)
        if not self._started:
            self._started = float(np.linalg.norm(tool - self._stood)) > STARTED_M
        if self._started:
            self._waited_s += dt_s
            self.go_on(world, tool, dt_s)
            due = bool(self._events) and self._waited_s >= self._events[0].pause_s
            if due and self.happen(world, self._events[0], tool, joints):
                del self._events[0]
                self.happened += 1
                self._waited_s = 0.0
        return self.push(dt_s)

    @abstractmethod
    def happen(self, world: Disturbed, event: Event, tool: F64, joints: F64) -> bool:
        """Let a due event happen, or return that it has to wait; ``tool`` (3,) [m]."""

    def go_on(self, world: Disturbed, tool: F64, dt_s: float) -> None:  # noqa: B027 - optional
        """Continue what has begun; ``tool`` (3,) [m]."""

    def push(self, dt_s: float) -> F64 | None:
        """Return the push of this control period."""
        return None

    def _tool(self, joints: F64) -> F64:
        return self._kinematics.forward(joints[: len(self._robot.arm_joints)]).position


class ObjectJump(Disturbance):
    """The object that the arm comes near to jumps over the table."""

    def reset(self, seed: int, joints: F64) -> None:
        """See :meth:`Disturbance.reset`."""
        super().reset(seed, joints)
        self._waited_s = math.inf  # the first one does not wait
        self._farthest: dict[str, float] = {}

    def go_on(self, world: Disturbed, tool: F64, dt_s: float) -> None:
        """Note how far away the tool has been, so that only an approach counts."""
        self._objects = world.objects() if self._events else {}
        self._distances = {
            name: float(np.linalg.norm(tool - place)) for name, place in self._objects.items()
        }
        for name, distance in self._distances.items():
            self._farthest[name] = max(distance, self._farthest.get(name, 0.0))

    def happen(self, world: Disturbed, event: Event, tool: F64, joints: F64) -> bool:
        """Wait for the tool to come nearer than the trigger, while nothing is in its fingers."""
        name = min(self._distances, key=lambda name: self._distances[name], default='')
        approached = bool(name) and self._farthest[name] > event.trigger_m + 0.01
        if not approached or not BUSY_M < self._distances[name] < event.trigger_m:
            return False
        place = self._objects[name]
        taken = [other for key, other in self._objects.items() if key != name]
        if any(_apart(place, other) < ROOM_M for other in taken):
            return False  # on another one, or below it
        if tool[2] < place[2] + ROOM_M:
            taken.append(tool)
        for turn in range(TURNS):
            landing = place + event.shift(self.config.object_jump_m, turn)
            if _inside(landing) and all(_apart(landing, other) > ROOM_M for other in taken):
                world.move_body(name, landing)
                self._farthest.clear()
                return True
        return False


class TargetJump(Disturbance):
    """The goal jumps."""

    def happen(self, world: Disturbed, event: Event, tool: F64, joints: F64) -> bool:
        """Jump in the first direction in which there is room."""
        goal = world.goal()
        for turn in range(TURNS):
            shift = event.shift(self.config.target_jump_m, turn)
            if all(_inside(goal[i : i + 3] + shift) for i in range(0, len(goal), 3)):
                world.move_goal(shift)
                return True
        return False


class TargetMove(Disturbance):
    """The goal moves on and on; each event gives it another velocity."""

    def reset(self, seed: int, joints: F64) -> None:
        """See :meth:`Disturbance.reset`."""
        super().reset(seed, joints)
        self._velocity = np.zeros(3)

    def happen(self, world: Disturbed, event: Event, tool: F64, joints: F64) -> bool:
        """Take the event's velocity."""
        self._velocity = event.shift(self.config.target_speed)
        return True

    def go_on(self, world: Disturbed, tool: F64, dt_s: float) -> None:
        """Move, mirrored at the edges."""
        points = world.goal().reshape(-1, 3)[:, :2]
        beyond = np.max(points, axis=0) > EDGE_M, np.min(points, axis=0) < -EDGE_M
        speed = np.abs(self._velocity[:2])
        self._velocity[:2] = np.select(beyond, (-speed, speed), self._velocity[:2])
        world.move_goal(self._velocity * dt_s)


class ArmPush(Disturbance):
    """
    The tool is pushed aside, and stays there or springs back.

    The joints slip: the motors' targets are shifted. An external force either does nothing to the
    simulated motors or throws the arm about; and after a short push a policy that has reacted is
    off by as much when the arm springs back, so that the slowest one would look best.
    """

    def reset(self, seed: int, joints: F64) -> None:
        """See :meth:`Disturbance.reset`."""
        super().reset(seed, joints)
        self._pushed_s: float | None = None

    def happen(self, world: Disturbed, event: Event, tool: F64, joints: F64) -> bool:
        """Begin to push, once the push before is over."""
        if self._pushed_s is not None:
            return False
        arm = joints[: len(self._robot.arm_joints)]
        shift = np.concatenate((event.shift(self.config.arm_push_m), np.zeros(3)))
        self._push = np.zeros(len(joints))
        self._push[: len(arm)] = np.linalg.pinv(self._kinematics.jacobian(arm)) @ shift
        self._pushed_s = 0.0
        return True

    def push(self, dt_s: float) -> F64 | None:
        """Return what is left of the push."""
        if self._pushed_s is None:
            return None
        self._pushed_s += dt_s
        left_s = self.config.arm_push_s - self._pushed_s
        if left_s <= 0.0:
            self._pushed_s = None
            return None
        share = min(self._pushed_s, left_s, RISE_S) / RISE_S
        pushed: F64 = math.sin(0.5 * math.pi * share) ** 2 * self._push
        return pushed


KINDS: dict[str, type[Disturbance]] = {
    'object_jump': ObjectJump,
    'target_jump': TargetJump,
    'target_move': TargetMove,
    'arm_push': ArmPush,
}


def make(config: DisturbanceConfig | None, robot: Robot) -> Disturbance | None:
    """Return the disturbance that is configured, None for none."""
    if config is None or config.kind == 'none':
        return None
    return KINDS[config.kind](config, robot)


def _apart(first: F64, second: F64) -> float:
    return math.hypot(first[0] - second[0], first[1] - second[1])


def _inside(place: F64) -> bool:
    return bool(abs(place[0]) <= EDGE_M and abs(place[1]) <= EDGE_M)
