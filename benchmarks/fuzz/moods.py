"""What is commanded: moods of a sender, most of them built to overshoot, alias or divide by 0."""

from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.types import Command, CommandGroup, F64, Id, Kind, nanoseconds, Rotation
import numpy as np

SPACE = spaces.ee_delta_space()
ODD = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-308, 0.0, -0.0, 99.9, 5e-324)


class Moods:
    """Makes commands for a guard whose last tick it sees."""

    random: np.random.Generator
    robot: Robot
    guard: Guard
    tick: GuardTick | None = None
    now_ns = 1_000_000_000_000
    dt_s = 0.01
    n: int  # arm joints
    measured: F64
    session, seq = 7, 0

    def begin_mood(self) -> None:
        """Draw what a mood goes on from."""
        self.phase = 0.0
        self._direction = self.random.choice([-1.0, 1.0], self.n)
        self._start = self._commanded()
        self._goal = self.anywhere()

    def harmless(self) -> Command:
        """A slow motion about a place, as of a good policy."""
        self.phase += self.dt_s
        ramp = 0.5 - 0.5 * np.cos(min(self.phase, 1.0) * np.pi)
        return self._joints(self._start + 0.03 * ramp * np.sin(2.0 * self.phase) * self._direction)

    def smooth(self) -> Command:
        """A fast sine."""
        self.phase += self.dt_s
        wave = np.sin(3.0 * self.phase) * self.random.uniform(0.2, 1.0)
        return self._joints(self._start + wave * self._direction)

    def jumps(self) -> Command:
        """Another place every now and then."""
        if self.random.random() < 0.05:
            self._goal = self.anywhere()
        return self._joints(self._goal)

    def shaking(self) -> Command:
        """A target that turns round when the arm is fastest."""
        commanded, limiter = self._commanded(), self.guard.limiter
        speed = self._speed()
        turn = np.abs(speed) > 0.95 * limiter.max_velocity[: self.n]
        self._direction = np.where(turn, -self._direction, self._direction)
        return self._joints(commanded + self._direction * 2.0)

    def edge(self) -> Command:
        """Full speed to a limit, beyond it, and away at the last moment."""
        limiter = self.guard.limiter
        bound = np.where(self._direction > 0, limiter.upper[: self.n], limiter.lower[: self.n])
        if self.random.random() < 0.02:
            self._direction = -self._direction
        return self._joints(bound + self._direction * self.random.choice([0.0, 1e-12, 0.01, 9.0]))

    def border(self) -> Command:
        """Exactly as fast as is allowed, give or take a rounding error."""
        limiter, dt = self.guard.limiter, self.dt_s
        gain = limiter.max_acceleration[: self.n] * dt
        off = 1.0 + self.random.choice([-1e-9, -1e-12, 0.0, 1e-16, 1e-12, 1e-9])
        speed = self._speed() + self.random.choice([-1.0, 1.0]) * gain * off
        top = limiter.max_velocity[: self.n] * off
        return self._joints(self._commanded() + np.clip(speed, -top, top) * dt)

    def tiny(self) -> Command:
        """Next to nothing."""
        size = float(self.random.choice([5e-324, 1e-300, 1e-17, 1e-15, 1e-12, 1e-9]))
        return self._joints(self._commanded() + size * self._direction)

    def walls(self) -> Command:
        """A tool target within, on and beyond the walls of the workspace."""
        lower, upper = np.array(self.robot.workspace_lower), np.array(self.robot.workspace_upper)
        if self.random.random() < 0.03 or self._goal.shape != (3,):
            self._goal = self.random.uniform(lower - 0.2, upper + 0.2)
        return self._tool(self._goal)

    def hand(self) -> Command:
        """A tool that is led about."""
        self.phase += self.dt_s
        start = self.guard.kinematics.forward(self._start).position
        away = 0.1 * np.sin(2.0 * self.phase) * self._direction[:3]
        width = float(self.random.uniform(-0.1, 0.2)) if self.random.random() < 0.1 else 0.04
        return self._tool(start + away, width)

    def turning(self) -> Command:
        """A tool that turns any way, with a quaternion that may be none."""
        values = np.concatenate((self._position(), self.random.normal(size=4)))
        values[3:] /= np.linalg.norm(values[3:]) * self.random.choice([1.0, 1.0, 1.0005, 2.0])
        group = CommandGroup(
            'arm', Kind.EE_POSE, values, np.zeros(7), 'world', Rotation.QUATERNION
        )
        return self._command((group,))

    def garbage(self) -> Command:
        """No command at all."""
        random = self.random
        size = int(random.integers(0, 12))
        values = np.where(
            random.random(size) < 0.3, random.choice(ODD, size), random.normal(size=size)
        )
        kind = list(Kind)[int(random.integers(0, len(Kind)))]
        rotation = list(Rotation)[int(random.integers(0, len(Rotation)))]
        frame = str(random.choice(['', 'world', 'moon']))
        names = self.robot.joints[: int(random.integers(0, 10))]
        group = CommandGroup(
            'x', kind, values, values[: int(random.integers(0, 12))], frame, rotation, names
        )
        return self._command((group,) * int(random.integers(0, 3)))

    def mostly(self) -> Command:
        """A fair command, with one odd number now and then."""
        target = self._start + 0.1 * self.random.normal(size=self.n)
        if self.random.random() < 0.02:
            target[self.random.integers(0, self.n)] = self.random.choice(ODD)
        return self._joints(target)

    def stamped(self) -> Command:
        """Stamps, epochs and sequences that are off."""
        random = self.random
        changes: dict[str, Any] = {
            'stamp_ns': self.now_ns + nanoseconds(float(random.normal(0.0, 0.05))),
            'arm_epoch': self.guard.machine.epoch + int(random.choice([0, 0, 0, 1, -1])),
            'observation_stamp_ns': self.now_ns - nanoseconds(float(random.uniform(0, 2))),
            'row': int(random.integers(-1, 20)),
            'max_row_age_s': float(random.choice([0.0, 0.5, -1.0, np.nan])),
            'source': str(random.choice(['policy', 'policy', 'teleop', 'homing'])),
        }
        return self._joints(self._start + 0.2 * random.normal(size=self.n), **changes)

    def bursts(self) -> Command | None:
        """Several at once, then none."""
        if self.random.random() < 0.7:
            return None
        for _ in range(int(self.random.integers(1, 5))):
            command = self._joints(self._start + 0.2 * self.random.normal(size=self.n))
            self.guard.on_command(command, self.now_ns)
        return command

    def silence(self) -> None:
        """Nobody speaks."""

    # ---- helpers --------------------------------------------------------------------------------

    def anywhere(self) -> F64:
        limiter = self.guard.limiter
        return self.random.uniform(limiter.lower[: self.n] - 0.5, limiter.upper[: self.n] + 0.5)

    def _commanded(self) -> F64:
        sent = self.tick.positions if self.tick is not None else None
        return (self.measured if sent is None else sent)[: self.n].copy()

    def _speed(self) -> F64:
        if self.tick is None or self.tick.positions is None:
            return np.zeros(self.n)
        return self.tick.verdict.sent_velocity[: self.n]

    def _position(self) -> F64:
        return self.guard.kinematics.forward(self._commanded()).position

    def _joints(self, target: F64, **changes: Any) -> Command:
        names = self.robot.arm_joints
        group = CommandGroup('arm', Kind.JOINT_POSITION, target, np.zeros(0), names=names)
        return self._command((group,), **changes)

    def _tool(self, target: F64, width: float | None = None) -> Command:
        groups: tuple[CommandGroup, ...] = (
            CommandGroup('arm', Kind.EE_POSE, target, np.zeros(3), 'world'),
        )
        if width is not None:
            grip = CommandGroup('gripper', Kind.GRIPPER, np.array([width]), np.zeros(1))
            groups = (*groups, grip)
        return self._command(groups)

    def _command(self, groups: tuple[CommandGroup, ...], **changes: Any) -> Command:
        stamp_ns = self.now_ns
        values: dict[str, Any] = {
            'id': self.new_id(self.session),
            'stamp_ns': stamp_ns,
            'arm_epoch': self.guard.machine.epoch,
            'groups': groups,
            'space_hash': SPACE.hash,
            'observation_stamp_ns': stamp_ns,
        }
        return Command(**{**values, **changes})

    def new_id(self, session: int) -> Id:
        self.seq += 1
        return Id(session, self.seq)


MOODS = (
    'harmless', 'smooth', 'jumps', 'shaking', 'edge', 'border', 'tiny', 'walls', 'hand', 'turning',
    'garbage', 'mostly', 'stamped', 'bursts', 'silence',
)  # fmt: skip
_RAW = np.array([3, 3, 3, 3, 3, 3, 1, 3, 3, 1, 1, 2, 2, 2, 1], float)
WEIGHTS = _RAW / _RAW.sum()
