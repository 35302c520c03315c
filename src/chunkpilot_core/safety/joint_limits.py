"""Says what the limiter changed: which joint, by which limit. Nothing is clamped silently."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Proposal, Situation, Stage
from chunkpilot_core.types import Reaction
import numpy as np


class JointLimits(Check):
    """
    Reports arm joints whose setpoint is not the one asked for.

    The limiter itself always runs. A gripper's width is a goal that it goes to at its own speed,
    so that on the way there is no clamping to report; sent and requested are in the verdict.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """What counts as changed."""

        tolerance: float = option(1e-6, 'rounding', unit='rad', min=0.0, max=0.01)

    name = 'joint_limits'
    order = 8
    stage = Stage.MOTION
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Compare the next setpoint with the request."""
        proposal, limiter = situation.proposal, situation.limiter
        if proposal is None:
            return None
        n = limiter.n_arm
        asked = proposal.requested[:n]
        beyond = np.maximum(asked - limiter.upper[:n], limiter.lower[:n] - asked)
        worst = int(np.argmax(beyond))
        if beyond[worst] > self.config.tolerance:
            value = float(asked[worst])
            limit = float(limiter.upper[worst] if value > 0.0 else limiter.lower[worst])
            return Finding(
                Reaction.CLAMP,
                f'asked for {value:.4f} rad, soft position limit {limit:.4f} rad',
                limiter.joints[worst],
                value,
                limit,
            )
        changed = np.abs(proposal.next_position[:n] - asked)
        worst = int(np.argmax(changed))
        if changed[worst] <= self.config.tolerance:
            return None
        return self._rate(proposal, situation, worst)

    def _rate(self, proposal: Proposal, situation: Situation, joint: int) -> Finding:
        limiter, dt = situation.limiter, situation.dt_s
        name = limiter.joints[joint]
        asked = float(proposal.requested[joint] - proposal.position[joint]) / dt
        speed = float(limiter.speed_limits(proposal.position, dt)[joint])
        if abs(asked) > speed:
            reason = f'asked for {asked:.3f} rad/s, velocity limit {speed:.3f} rad/s'
            return Finding(Reaction.CLAMP, reason, name, asked, speed)
        rate = (asked - float(proposal.velocity[joint])) / dt
        limit = float(limiter.max_acceleration[joint])
        reason = f'asked for {rate:.1f} rad/s2, acceleration limit {limit:.1f} rad/s2'
        return Finding(Reaction.CLAMP, reason, name, rate, limit)
