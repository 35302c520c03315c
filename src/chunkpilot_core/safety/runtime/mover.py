"""Owns the setpoint: how far a tick moves it, and what the motion checks make of that."""

from dataclasses import dataclass

from chunkpilot_core.safety.base import Finding, Proposal, Situation, Stage
from chunkpilot_core.safety.runtime import arming
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.limiter import Step
from chunkpilot_core.types import Command, F64, nanoseconds, Reaction, seconds
import numpy as np


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
        self.slow = 1.0  # speed scale that the checks ask for
        self._tool = np.zeros(3)
        self._forward = self.position, self._tool  # joints and tool of the newest kinematics
        self._moved_ns = 0  # until when the setpoint was moved

    @property
    def at_rest(self) -> bool:
        """Whether nothing is commanded to move."""
        return self._limiter.at_rest(self.velocity)

    @property
    def arm_speed(self) -> float:
        """Largest commanded joint speed of the arm [rad/s]."""
        return float(np.abs(self.velocity[: self._limiter.n_arm]).max())

    def start(self, position: F64, now_ns: int) -> None:
        """Begin at ``position`` (J,), at rest."""
        self.position, self.velocity = position, np.zeros_like(position)
        self._tool = self._kinematics.forward(position[: self._limiter.n_arm]).position
        self.slow, self._moved_ns = 1.0, now_ns

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
        step = self._towards(aim, aim.velocity, dt, scale)
        situation.proposal = self._propose(aim, step, dt)
        for found in self._checks.findings(Stage.MOTION, situation):
            if aim.homing and found.reaction is Reaction.CLAMP:
                continue
            findings.append(found)
            slowest = min(slowest, found.scale)
            if found.brake:
                step = self._detour(aim, dt, scale)
            elif found.scale < 1.0:
                wish = step.velocities * found.scale
                step = self._limiter.limited(self.position, self.velocity, wish, dt)
            else:
                continue
            situation.proposal = self._propose(aim, step, dt)
        self.slow = min(slowest, self.slow + dt / max(self._recovery_s, dt), 1.0)
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
        stop = self._limiter.stop_position(step.positions, step.velocities, dt)
        stop_tool = self._tool_at(stop, step.velocities)
        return Proposal(
            self.position,
            self.velocity,
            aim.target,
            aim.clipped,
            *step,
            stop,
            self._tool,
            self._tool_at(step.positions, step.velocities),
            stop_tool,
        )

    def _tool_at(self, joints: F64, velocity: F64) -> F64:
        """Return the tool's position (3,); one is kept, as most of the tick's cost is here."""
        n = self._limiter.n_arm
        if not velocity[:n].any():
            return self._tool
        known, tool = self._forward
        if known is not joints:
            tool = self._kinematics.forward(joints[:n]).position
            self._forward = joints, tool
        return tool
