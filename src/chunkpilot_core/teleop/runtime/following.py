"""What following another arm takes: whether a hand moves it, and how fast it is followed."""

from chunkpilot_core.safety.runtime.limiter import stopping_speed
from chunkpilot_core.types import F64, JointState, seconds
import numpy as np

REST_S = 0.5
"""Without motion for so long an arm is at rest; of one at rest nothing is taken after this."""


def positions(state: JointState, names: tuple[str, ...]) -> F64:
    """Return the positions (n,) of joints."""
    return np.array([state.positions[state.names.index(name)] for name in names])


def velocities(state: JointState, names: tuple[str, ...]) -> F64:
    """Return the velocities (n,) of joints, zero where they are not known."""
    if len(state.velocities) != len(state.names) or not np.isfinite(state.velocities).all():
        return np.zeros(len(names))
    return np.array([state.velocities[state.names.index(name)] for name in names])


class Motion:
    """Tells an arm that a hand moves from one that lies there, or was moved since before."""

    def __init__(self, moved_rad: float) -> None:
        """
        Begin without knowledge.

        :param moved_rad: a joint that moved by more within :data:`REST_S` was moved
        """
        self._moved_rad = moved_rad
        self._anchor: tuple[int, F64] | None = None
        self.forget()

    def forget(self) -> None:
        """Ask for rest, and motion after it, anew."""
        self._rested, self._moved_ns = False, None
        self._anchor = None

    def __call__(self, pose: F64, now_ns: int) -> None:
        """Take where the arm is, joints (n,) [rad]."""
        if self._anchor is None or now_ns < self._anchor[0]:
            self._anchor = now_ns, pose
            return
        since_ns, where = self._anchor
        if np.abs(pose - where).max(initial=0.0) > self._moved_rad:
            self._anchor = now_ns, pose
            if self._rested:
                self._moved_ns = now_ns
        elif seconds(now_ns - since_ns) > REST_S:
            self._anchor = now_ns, pose
            self._rested = True

    def why_not(self, now_ns: int) -> str:
        """Return why nobody takes control with this arm, '' where a hand does."""
        if not self._rested:
            return f'let the leader rest for {REST_S:g} s, then move it'
        if self._moved_ns is None or not 0 <= seconds(now_ns - self._moved_ns) <= REST_S:
            return 'the leader is at rest: move it'
        return ''

    _moved_ns: int | None
    _rested: bool


class Follower:
    """Joints that go after others with limited speed and acceleration."""

    def __init__(self, speed: float, acceleration: float) -> None:
        """
        Begin nowhere.

        :param speed: [rad/s]
        :param acceleration: [rad/s2]
        """
        self._speed, self._acceleration = speed, acceleration
        self.at: F64 | None = None
        """Where they are (n,) [rad], None before :meth:`start`."""
        self._velocity = np.zeros(0)

    def forget(self) -> None:
        """Be nowhere."""
        self.at = None

    def start(self, joints: F64, velocity: F64) -> None:
        """Begin here, as fast (n,) as the arm moves, within what is allowed."""
        self.at = joints.copy()
        self._velocity = np.clip(velocity, -self._speed, self._speed)

    def __call__(self, goal: F64, passed_s: float) -> None:
        """Go on towards ``goal`` (n,)."""
        if passed_s <= 0.0 or self.at is None:
            return
        way, gain = goal - self.at, self._acceleration * passed_s
        direct = way / passed_s
        acceleration = np.full(len(way), self._acceleration)
        closing = np.minimum(stopping_speed(np.abs(way), acceleration, passed_s), self._speed)
        wish = np.sign(way) * closing
        self._velocity = self._velocity + np.clip(wish - self._velocity, -gain, gain)
        arrives = np.abs(direct - self._velocity) <= 1e-9
        self.at = np.where(arrives, goal, self.at + self._velocity * passed_s)
