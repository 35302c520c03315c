"""Moving to a pose on request, through the same limiter and checks as everything else."""

from dataclasses import dataclass

from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import F64, seconds
import numpy as np

ARRIVED = 0.02  # [rad] measured arm joints this near count as there
PATIENCE_S = 1.0  # for the measured arm to come after the commanded one


@dataclass(slots=True)
class Homing:
    """One motion on a straight line in joint space to ``goal`` (J,)."""

    goal: F64
    fraction: float
    n_arm: int
    _commanded_at_ns: int = 0

    @classmethod
    def plan(
        cls, joints: F64 | None, fraction: float, robot: Robot, limiter: Limiter, fingers: F64
    ) -> 'Homing | str':
        """
        Check a request.

        :param joints: arm joints (n,), all joints (J,), or None for home
        :param fingers: finger targets kept where none are given
        :returns: the motion, or why it is refused
        """
        goal = np.array(robot.home) if joints is None else np.asarray(joints, float)
        if goal.shape == (limiter.n_arm,):
            goal = np.concatenate((goal, fingers))
        if goal.shape != limiter.lower.shape:
            return f'{goal.size} positions, expected {limiter.n_arm} or {len(limiter.joints)}'
        if not np.isfinite(goal).all() or not 0.0 < fraction <= 1.0:
            return f'positions and speed fraction must be finite, fraction in 0 to 1: {fraction}'
        beyond = np.maximum(goal - limiter.upper, limiter.lower - goal)
        worst = int(np.argmax(beyond))
        if beyond[worst] > 1e-9:
            low, high = float(limiter.lower[worst]), float(limiter.upper[worst])
            joint, value = limiter.joints[worst], float(goal[worst])
            return f'{joint} = {value:.4f} is outside its soft limits {low:.4f} to {high:.4f}'
        return cls(goal, fraction, limiter.n_arm)

    def arrived(self, position: F64, measured: F64, steady_ns: int) -> bool | None:
        """Return True when the arm is there, False if it did not follow, None while under way."""
        if not np.array_equal(position, self.goal):
            return None
        self._commanded_at_ns = self._commanded_at_ns or steady_ns
        off = np.abs(measured[: self.n_arm] - self.goal[: self.n_arm])
        if float(off.max()) <= ARRIVED:
            return True
        late = seconds(steady_ns - self._commanded_at_ns) > PATIENCE_S
        return False if late else None
