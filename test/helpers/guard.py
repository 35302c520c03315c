"""A guard, a robot that follows it at once, and a clock."""

from collections.abc import Callable
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.types import (
    ArmState,
    Command,
    CommandGroup,
    F64,
    Id,
    JointState,
    Kind,
    nanoseconds,
    Reaction,
)
import numpy as np

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()


class GuardBench:
    """Ticks a guard at 100 Hz; every tick is checked for what holds whatever happens."""

    def __init__(self, **options: Any) -> None:
        self.guard = Guard(ROBOT, **options)
        self.limiter = self.guard.limiter
        self.now_s = 1000.0
        self.steady_s = 5.0
        self.measured = np.array([*ROBOT.home, 0.04, 0.04])
        self.velocity = np.zeros(9)
        self.seq = 0
        self.session = 7
        self.follows = True
        self.state_comes = True
        self.outside = 0.0  # [rad] by which it begins beyond a hard limit
        self.slack_s = 0.0  # by which stamps may shift motion from one tick to the next
        self.events: list[Any] = []
        self.last: GuardTick | None = None
        self._before = np.zeros(9)
        self._sent_before: F64 | None = None

    def now_ns(self) -> int:
        return nanoseconds(self.now_s)

    def tick(
        self, command: Command | None = None, dt: float = 0.01, jump_s: float = 0.0
    ) -> GuardTick:
        """Let ``dt`` pass, measure, give a command if there is one, and tick."""
        self.now_s += dt + jump_s
        self.steady_s += dt
        if self.state_comes:
            self.measure()
        if command is not None:
            self.guard.on_command(command, self.now_ns())
        tick = self.guard.tick(self.now_ns(), nanoseconds(self.steady_s), command is None)
        self._assert_always(tick, dt)
        self.events += tick.events
        self.last = tick
        if tick.positions is not None and self.follows:
            self.velocity = (tick.positions - self.measured) / dt
            self.measured = tick.positions.copy()
        elif tick.positions is None:
            self.velocity = np.zeros(9)
        return tick

    def ticks(self, count: int, make: Callable[[], Command | None] = lambda: None) -> GuardTick:
        """Tick several times; ``make`` is asked for the command of each tick."""
        for _ in range(count):
            self.seq += 1
            tick = self.tick(make())
        return tick

    def measure(self, **changes: Any) -> None:
        values = {
            'stamp_ns': self.now_ns(),
            'names': ROBOT.joints,
            'positions': self.measured.copy(),
            'velocities': self.velocity.copy(),
        }
        self.guard.on_joint_state(JointState(**{**values, **changes}), self.now_ns())

    def armed(self, ramped: bool = True) -> 'GuardBench':
        """Arm, and by default wait until the ramp is over."""
        self.ticks(2)
        done, message = self.guard.arm(self.now_ns())
        assert done, message
        self.ticks(101 if ramped else 1)
        return self

    def joints(self, positions: F64, width: float | None = None, **changes: Any) -> Command:
        """Return a command of arm joint positions (7,)."""
        arm = CommandGroup(
            'arm', Kind.JOINT_POSITION, np.asarray(positions), np.zeros(0), names=ROBOT.arm_joints
        )
        return self.command((arm,), width, **changes)

    def tool(self, position: F64, width: float | None = None, **changes: Any) -> Command:
        """Return a command of the tool's position (3,)."""
        arm = CommandGroup('arm', Kind.EE_POSE, np.asarray(position), np.zeros(3), 'world')
        return self.command((arm,), width, **changes)

    def command(
        self, groups: tuple[CommandGroup, ...], width: float | None = None, **changes: Any
    ) -> Command:
        """Return the next command; it is stamped with the coming tick."""
        self.seq += 1
        if width is not None:
            grip = CommandGroup('gripper', Kind.GRIPPER, np.array([width]), np.zeros(1))
            groups = (*groups, grip)
        stamp_ns = nanoseconds(self.now_s + 0.01)
        values: dict[str, Any] = {
            'id': Id(self.session, self.seq),
            'stamp_ns': stamp_ns,
            'arm_epoch': self.guard.machine.epoch,
            'groups': groups,
            'space_hash': SPACE.hash,
            'observation_stamp_ns': stamp_ns,
        }
        return Command(**{**values, **changes})

    def home(self, **changes: Any) -> Command:
        """Return a command to stay where the arm starts."""
        return self.joints(np.array(ROBOT.home), **changes)

    def moving(self, speed: float = 0.5) -> Callable[[], Command]:
        """Return a sender whose first joint moves on at ``speed`` [rad/s]."""
        start, began = self.measured[:7].copy(), self.now_s

        def make() -> Command:
            target = start.copy()
            target[0] += speed * (self.now_s + 0.01 - began)
            return self.joints(target)

        return make

    @property
    def state(self) -> ArmState:
        return self.guard.machine.state

    def _assert_always(self, tick: GuardTick, dt: float) -> None:
        verdict, limiter = tick.verdict, self.limiter
        assert sum(verdict.counters) == verdict.tick  # P12
        assert np.isfinite(verdict.sent).all()  # P1
        if verdict.reaction is not Reaction.PASS:
            assert verdict.check, verdict
            assert verdict.reason, verdict
        if tick.positions is None or self._sent_before is None:
            self._sent_before, self._before = tick.positions, verdict.sent_velocity
            return
        assert np.isfinite(tick.positions).all()
        beyond = self.outside + 1e-9
        assert np.all(tick.positions <= limiter.hard_upper + beyond)
        assert np.all(tick.positions >= limiter.hard_lower - beyond)
        longest = (max(dt, 0.01) + self.slack_s) * (1 + 1e-6)  # stamps are whole nanoseconds
        moved = np.abs(tick.positions - self._sent_before)
        assert np.all(moved <= limiter.max_velocity * longest + 1e-12)  # P2
        change = np.abs(verdict.sent_velocity - self._before)
        assert np.all(change <= limiter.max_acceleration * longest)
        self._sent_before, self._before = tick.positions, verdict.sent_velocity
