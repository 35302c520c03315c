"""What every source of teleoperation is told, and what it may answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import ActionSpace, F64, JointState

LISTENS = ('keys', 'joy', 'leader', 'scene')
"""
What a source may ask for: text typed in a terminal, :class:`Joystick`, the JointState of a leader
arm, the simulator's Scene.
"""


@dataclass(frozen=True, slots=True)
class Joystick:
    """Axes in [-1, 1] and pressed buttons, as in sensor_msgs/Joy."""

    stamp_ns: int
    axes: tuple[float, ...]
    buttons: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """
    What a source may look at in one tick.

    ``dt_s``: of a row; ``passed_s``: time since the tick before, slowed by the guard's speed
    ``scale``. ``look`` gives what :attr:`commanded` and :attr:`taken` are; asked only when
    somebody drives, as what the guard sends costs time to read.
    """

    now_ns: int
    robot: Robot
    kinematics: Kinematics
    space: ActionSpace
    dt_s: float
    look: Callable[[], tuple[F64, JointState]]
    measured: JointState
    passed_s: float
    scale: float
    in_episode: bool

    @property
    def commanded(self) -> F64:
        """
        Target in force (T,), in ``space``: the last one commanded, in the tick in which control
        is taken what the guard has sent until then.
        """
        return self.look()[0]

    @property
    def taken(self) -> JointState:
        """What the guard had sent when control was taken."""
        return self.look()[1]


@dataclass(frozen=True, slots=True)
class Bounds:
    """
    How fast the target of a source may move: its tool [m/s], [rad/s], joints [rad/s] and gripper
    [m/s]. A source that asks for more is followed so fast, and lags.
    """

    tool: float
    turn: float = 3.0
    joint: float = 2.0
    gripper: float = 0.2


@dataclass(frozen=True, slots=True)
class Aim:
    """
    Where the arm should be now: ``target`` (T,) and its ``velocity`` (T,) [per s].

    ``row`` >= 0 numbers the rows of a source that decides once per row, from what it saw at
    ``seen_ns``, and ends at ``end_ns``; ``source`` is the command's.
    """

    target: F64
    velocity: F64
    row: int = -1
    seen_ns: int = 0
    end_ns: int = 0
    source: str = 'teleop'


class Source(ABC):
    """One way to drive the arm by hand; told everything, reads no clock and no device."""

    @dataclass(frozen=True)
    class Config:
        """No options."""

    name: ClassVar[str]
    listens: ClassVar[tuple[str, ...]]
    """Of :data:`LISTENS`."""
    help: ClassVar[str] = ''
    """Told to whoever sits in front of the node's terminal."""
    episodes_only: ClassVar[bool] = False
    """Whether it drives within episodes only; a human may whenever the guard is armed."""

    def __init__(self, robot: Robot, config: Any = None) -> None:
        self.robot = robot
        self.config = config or self.Config()

    @property
    def bounds(self) -> Bounds:
        """How fast this source may move the target at most."""
        return Bounds(self.robot.max_tool_speed)

    @abstractmethod
    def take(self, what: str, data: Any, now_ns: int) -> None:
        """
        Take what was heard.

        :param what: of :attr:`listens`
        :raises InvalidDataError: it can't be used, with the reason
        """

    @abstractmethod
    def aim(self, arm: Arm) -> Aim | str:
        """Return where to go, or why nobody drives."""

    def let_go(self) -> None:  # noqa: B027 - most sources remember nothing
        """
        Forget what was under way: control is lost, was given back, or can't be taken now.

        Whatever takes control has to be done anew after it.
        """


BASE = Source
