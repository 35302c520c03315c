"""Owns the setpoint: how far a tick moves it, and what the motion checks make of that."""

from collections.abc import Sequence
from dataclasses import dataclass

from chunkpilot_core.safety.base import Finding, Proposal, Situation, Stage
from chunkpilot_core.safety.runtime import arming
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.limiter import Step
from chunkpilot_core.types import Command, F64, nanoseconds, Reaction, seconds
import numpy as np

FALL_S = 0.2  # from full speed to none, where slowing is not about the next setpoint


@dataclass(frozen=True, slots=True)
class Aim:
    """
    Where to go: ``target`` (J,) and its ``velocity`` (J,).

    ``fraction`` of velocity and acceleration limits; ``homing``: the target may be far away.
    """

    target: F64
    velocity: F64
    clipped: Finding | None = None
    fraction: float = 1.0
    homing: bool = False


class Mover:
    """Moves the setpoint of one robot; position and velocity (J,) are what is sent."""

    def __init__(self, situation: Situation, checks: Checks, recovery_s: float) -> None:
        """
        Begin without a setpoint.

        :param recovery_s: in which the speed scale comes back after a check has lowered it
        """
        self._situation, self._checks = situation, checks
        self._kinematics, self._limiter = situation.kinematics, situation.limiter
        self._recovery_s = recovery_s
        size = len(self._limiter.joints)
        self.position, self.velocity = np.zeros(size), np.zeros(size)
        self.ceiling = 1.0  # of the speed scale, whatever the checks say
        self.slow = 1.0  # speed scale that the checks ask for
        self._tool = np.zeros(3)
        self._forward: tuple[F64, F64 | None] = self.position, None  # joints and their frames
        self._moved_ns = 0  # until when the setpoint was moved

    @property
    def tool(self) -> F64:
        """Where the setpoint has the tool, shape (3,)."""
        return self._tool

    @property
    def at_rest(self) -> bool:
        """Whether nothing is commanded to move."""
        return self._limiter.at_rest(self.velocity)

    @property
    def arm_speed(self) -> float:
        """Largest commanded joint speed of the arm [rad/s]."""
        return float(np.abs(self.velocity[: self._limiter.n_arm]).max())

    @property
    def frames(self) -> F64 | None:
        """The arm's frames at :attr:`position`, if they are known."""
        joints, frames = self._forward
        return frames if joints is self.position else None

    def start(self, position: F64, now_ns: int) -> None:
        """Begin at ``position`` (J,), at rest."""
        self.position, self.velocity = position, np.zeros_like(position)
        self._tool = self._kinematics.forward(position[: self._limiter.n_arm]).position
        self._moved_ns = now_ns
        self.restart_scale()

    def restart_scale(self) -> None:
        """Forget that checks had slowed the arm down."""
        self.slow = self.ceiling

    def settle(self, findings: Sequence[Finding]) -> None:
        """Let an arm at rest begin as slowly as it should be; only a moving one slows down."""
        wished = self._wished(findings)
        if self.slow > wished and self.at_rest:
            self.slow = wished

    def _wished(self, findings: Sequence[Finding]) -> float:
        """Return the speed scale that is asked for, whatever the next setpoint is."""
        return min(self.ceiling, *(found.scale for found in findings), 1.0)

    def restart_clock(self, now_ns: int) -> None:
        """Count time from now on: what it was before means nothing."""
        self._moved_ns = now_ns

    def tick_length(self, command: Command | None) -> float:
        """
        Return the time that the setpoint advances by [s]; 0 repeats it.

        Targets belong to the stamps of their commands, so that the time between stamps counts,
        which delivery does not jitter. But it stays within a period of the clock: no stamp and no
        burst of ticks makes the arm faster, and a gap is not caught up.
        """
        now_ns, period_ns = self._situation.now_ns, nanoseconds(self._situation.period_s)
        stamp_ns = now_ns
        if command is not None:
            stamp_ns = min(max(command.stamp_ns, now_ns - period_ns), now_ns)
        passed_ns = stamp_ns - self._moved_ns
        if passed_ns < 0.2 * period_ns:
            return 0.0
        self._moved_ns = stamp_ns
        return seconds(passed_ns if passed_ns <= 3 * period_ns else period_ns)

    def follow(self, aim: Aim, dt: float, scale: float, findings: list[Finding]) -> Step:
        """Go towards an aim as far as limits and checks let; what they object to is added."""
        situation, slowest = self._situation, 1.0
        wished = self._wished(findings)
        step = self._towards(aim, aim.velocity, dt, scale)
        situation.proposal = self._propose(aim, step, dt)
        for found in self._checks.findings(Stage.MOTION, situation):
            if aim.homing and found.reaction is Reaction.CLAMP:
                continue
            findings.append(found)
            slowest = min(slowest, found.scale)
            if found.reaction >= Reaction.HOLD:
                step = self.brake(dt)
            elif found.brake:
                step = self._detour(aim, dt, scale)
            elif found.scale < 1.0:
                wish = step.velocities * found.scale
                step = self._limiter.limited(self.position, self.velocity, wish, dt)
            else:
                continue
            situation.proposal = self._propose(aim, step, dt)
        self.slow = min(
            slowest,
            max(wished, self.slow - dt / FALL_S),
            self.slow + dt / max(self._recovery_s, dt),
        )
        return step

    def brake(self, dt: float) -> Step:
        """Slow down along the way."""
        return self._limiter.brake(self.position, self.velocity, dt)

    def send(self, step: Step, dt: float) -> Finding | None:
        """Take over a setpoint, or return why it may not be sent: then the arm stays."""
        wrong = arming.assert_output(self._limiter, self.position, self.velocity, step, dt)
        if wrong is not None:
            self.velocity = np.zeros_like(self.velocity)
            return wrong
        self.position, self.velocity = step.positions, step.velocities
        self._tool = self._tool_at(step.positions, step.velocities)
        return None

    def brake_blindly(self) -> None:
        """Slow down whatever is broken."""
        self._moved_ns = self._situation.now_ns
        try:
            step = self.brake(self._situation.period_s)
        except Exception:
            self.velocity = np.zeros_like(self.velocity)  # not even that: stay here
            return
        if np.isfinite(step.positions).all():
            self.position, self.velocity = step.positions, step.velocities

    def _towards(self, aim: Aim, velocity: F64, dt: float, scale: float) -> Step:
        return self._limiter.step(
            self.position,
            self.velocity,
            aim.target,
            velocity,
            dt,
            scale * aim.fraction,
            aim.fraction,
        )

    def _detour(self, aim: Aim, dt: float, scale: float) -> Step:
        """
        Return the straight way to the target if no check objects to it, else brake.

        Catching up with a moving target bends the path, which must not keep the arm at a wall.
        """
        step = self._towards(aim, np.zeros_like(aim.velocity), dt, scale)
        self._situation.proposal = self._propose(aim, step, dt)
        objections = self._checks.findings(Stage.MOTION, self._situation)
        if any(found.reaction >= Reaction.SLOW for found in objections):
            return self.brake(dt)
        return step

    def _propose(self, aim: Aim, step: Step, dt: float) -> Proposal:
        n, stop = self._limiter.n_arm, self._limiter.stop_position(*step[:2], dt)
        frames, tools = None, (self._tool, self._tool)
        if step.velocities[:n].any():  # most of the tick's cost is here: once for everybody
            frames = self._kinematics.frames_along(np.array((step.positions[:n], stop[:n])))
            tools = frames[0, -1, :3, 3], frames[1, -1, :3, 3]
            self._forward = step.positions, frames[0]
        return Proposal(
            self.position,
            self.velocity,
            aim.target,
            aim.clipped,
            *step,
            stop,
            self._tool,
            *tools,
            frames,
        )

    def _tool_at(self, joints: F64, velocity: F64) -> F64:
        """Return the tool's position (3,); that of the newest proposal is known."""
        n = self._limiter.n_arm
        if not velocity[:n].any():
            return self._tool
        known, frames = self._forward
        if known is not joints or frames is None:
            frames = self._kinematics.frames(joints[:n])
            self._forward = joints, frames
        tool: F64 = frames[-1, :3, 3]
        return tool
