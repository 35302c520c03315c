"""What every check of the guard is, what it sees, and what it may answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
import math
from typing import ClassVar, Protocol

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import ObstacleList
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    ArmState,
    ChunkVerdict,
    Command,
    F64,
    Id,
    JointState,
    Observation,
    Reaction,
)

NAN = float('nan')
NO_CHUNK = Id()


class Stage(IntEnum):
    """When a check is asked."""

    INPUT = 0  # every tick, in every state
    COMMAND = 1  # when a command is about to be accepted
    MOTION = 2  # about the next setpoint, before it is sent
    CHUNK = 3  # once, when a chunk has come: it is the last of ``situation.chunks``


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What a check objects to: which joint (axis, source), its value, the limit, and in words.

    ``scale`` asks for slower motion, ``brake`` for the hardest deceleration in this tick,
    ``escalate`` for a human or planner. REPLAN and REJECT_CHUNK, but of a command about to be
    accepted, ask execution for another chunk: of ``chunk_id``, or of the one that runs where none
    is named, no more than ``keep_rows`` rows may run (-1: what runs is cut as for a surprise).
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
    escalate: bool = False
    chunk_id: Id = NO_CHUNK
    keep_rows: int = -1

    def __post_init__(self) -> None:
        """
        Refuse a scale that is none: it would be lost among others, and count as full speed.

        :raises InvalidDataError: negative, or not a number; the guard stops, as for any exception
        """
        if not self.scale >= 0.0:
            raise InvalidDataError(f'speed scale {self.scale} of {self.reason!r}, at least 0')

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
    frames: F64 | None = None  # of the arm next and at rest, (2, n + 1, 4, 4); None: it stands


@dataclass(frozen=True, slots=True)
class Measured:
    """Newest valid joint state in the robot's order, (J,) each."""

    stamp_ns: int
    positions: F64
    velocities: F64
    changed_ns: int  # when any position last changed by a bit
    efforts: F64 | None = None  # [Nm, N]


@dataclass(frozen=True, slots=True)
class HeardChunk:
    """
    A chunk that has come at ``received_ns``.

    ``targets`` (H - first_row, T) are what its rows from ``first_row`` on, the one due then, make
    of where the arm was; None while the action space is not known.
    """

    chunk: ActionChunk
    received_ns: int
    first_row: int = 0
    targets: F64 | None = None

    def named(self, chunk_id: Id) -> 'HeardChunk':
        """Return it under the id that commands of it carry."""
        return replace(self, chunk=replace(self.chunk, id=chunk_id))


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
    policy_drives: bool = True  # neither a hand nor a move to a pose does, or is about to
    joint_state: JointState | None = None
    joint_error: str = ''
    measured: Measured | None = None
    observation: Observation | None = None
    space: ActionSpace | None = None  # of the policy's rows
    chunks: Sequence[HeardChunk] = ()  # of this epoch, oldest first, a few
    verdicts: Sequence[ChunkVerdict] = ()  # of chunks of this epoch, oldest first, a few
    row_s: float = 0.0  # between rows of the policy, 0 = not known
    speed_scale: float = 0.0  # in force until this tick
    estops: Mapping[str, tuple[bool, int]] = field(default_factory=dict)  # asserted, received_ns
    command: Command | None = None  # waiting to be accepted
    calibrated: bool = False  # the detectors' calibration is for the policy in force
    episode_ns: int = 0  # when the episode began, 0 = none did
    episode_over: bool = False
    tick_cpu_s: float = 0.0  # cost of the tick before
    commanded: F64 | None = None  # joints sent last, (J,); None while nothing is sent
    tool_speed_limit: float = math.inf  # beside the robot's own [m/s]
    commanded_speed: float = 0.0  # largest commanded joint speed of the arm [rad/s]
    proposal: Proposal | None = None
    clearance: Clearance | None = None  # distances with the obstacles in force; None: no shape
    obstacles: ObstacleList | None = None  # the newest that could be used
    obstacles_error: str = ''  # why the newest could not
    nearest: Mapping[str, float] = field(default_factory=dict)  # [m] by pair, for the verdict


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
