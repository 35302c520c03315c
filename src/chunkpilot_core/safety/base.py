"""What every check of the guard is, what it sees, and what it may answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Protocol

from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import (
    ArmState,
    Command,
    F64,
    Id,
    JointState,
    Observation,
    Reaction,
)

NAN = float('nan')


class Stage(IntEnum):
    """When a check is asked."""

    INPUT = 0  # every tick, in every state
    COMMAND = 1  # when a command is about to be accepted
    MOTION = 2  # about the next setpoint, before it is sent


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What a check objects to: which joint (axis, source), its value, the limit, and in words.

    ``scale`` asks for slower motion, ``brake`` for the hardest deceleration in this tick.
    """

    reaction: Reaction
    reason: str
    joint: str = ''
    value: float = NAN
    limit: float = NAN
    check: str = ''
    scale: float = 1.0
    brake: bool = False
    fault: bool = True  # whether a rejection counts as the sender's fault
    flush: bool = False  # forget every buffered input and begin a new epoch

    @property
    def margin(self) -> float:
        """Limit minus magnitude of the value; negative = violated."""
        return self.limit - abs(self.value)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The setpoint about to be sent; all arrays (J,), tool positions (3,) in the world."""

    position: F64  # commanded before
    velocity: F64
    requested: F64  # asked for
    clipped: 'Finding | None'  # a Cartesian target that had to be moved to be allowed
    next_position: F64
    next_velocity: F64
    direction_changed: bool
    stop_position: F64  # where braking from there ends
    tool: F64
    next_tool: F64
    stop_tool: F64


@dataclass(frozen=True, slots=True)
class Measured:
    """Newest valid joint state in the robot's order, (J,) each."""

    stamp_ns: int
    positions: F64
    velocities: F64
    changed_ns: int  # when any position last changed by a bit


class Flow(Protocol):
    """What is known of the stream of commands."""

    session: int  # of the sender since arming, 0 = none yet
    last_id: Id
    last_chunk: Id
    accepted: Command | None  # newest accepted one of this epoch
    accepted_ns: int


@dataclass(slots=True)
class Situation:
    """Everything a check may look at in one tick."""

    robot: Robot
    kinematics: Kinematics
    limiter: Limiter
    flow: Flow
    period_s: float  # nominal control period
    dt_s: float = 0.0  # of this tick
    now_ns: int = 0
    steady_ns: int = 0
    last_ns: int = 0  # of the tick before, 0 = first tick
    last_steady_ns: int = 0
    state: ArmState = ArmState.DISARMED
    epoch: int = 0
    epoch_age_s: float = 0.0  # since the epoch changed, steady clock
    not_before_ns: int = 0  # observations older than this may not move the arm
    silence_matters: bool = False  # commands flowed and should go on flowing
    joint_state: JointState | None = None
    joint_error: str = ''
    measured: Measured | None = None
    observation: Observation | None = None
    estops: Mapping[str, tuple[bool, int]] = field(default_factory=dict)  # asserted, received_ns
    command: Command | None = None  # waiting to be accepted
    commanded_speed: float = 0.0  # largest commanded joint speed of the arm [rad/s]
    proposal: Proposal | None = None


class Check(ABC):
    """One check: looks, answers, changes nothing outside itself."""

    @dataclass(frozen=True)
    class Config:
        """No options."""

    name: ClassVar[str]
    order: ClassVar[int]  # place in the specification's list; equal stages run in this order
    stage: ClassVar[Stage]

    def __init__(self, config: 'Config | None' = None) -> None:
        self.config = config or self.Config()

    @abstractmethod
    def check(self, situation: Situation) -> Finding | None:
        """Return what is wrong, or None."""

    def why_not_arm(self, situation: Situation) -> str:
        """Return what stands in the way of arming, '' for nothing."""
        return ''

    def reset(self) -> None:  # noqa: B027 - most checks remember nothing
        """Forget what was seen; called when the arm is armed."""


BASE = Check
