"""
The robot goes where it is sent, and nothing pushes it (D14, D18).

A servo lags: a joint is compared with all places it was sent to within the last ``lag_s``, and a
way commanded until then with the way it went up to now. Efforts are compared with the robot's file
where the driver reports them; where it does not, contact shows in these two rules only.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Measured, Situation, Stage
from chunkpilot_core.types import F64, Reaction, seconds
import numpy as np

WINDOWS_S = (0.2, 1.0)  # the short one is for fast motion, where waiting costs most


class Tracking(Check):
    """Holds an arm that is stuck, pushed or in a protective stop, until it is where it is sent."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How far the robot may be from where it is sent."""

        deviation: float = option(
            0.10, 'of a joint from where it was sent', unit='rad', min=0.005, max=1.0
        )
        deviation_s: float = option(0.2, 'for this long', unit='s', min=0.0, max=5.0)
        lag_s: float = option(0.1, 'by which the servo may lag', unit='s', min=0.0, max=1.0)
        way: float = option(
            0.05, 'commanded way of a joint that it has to follow', unit='rad', min=0.01, max=1.0
        )
        share: float = option(0.2, 'of it that it has to go at least', min=0.0, max=0.9)
        released: float = option(
            0.03, 'deviation below which the hold ends', unit='rad', min=0.001, max=1.0
        )
        stale_s: float = option(0.1, 'older states say nothing', unit='s', min=0.01, max=10.0)
        effort_ticks: int = option(2, 'states above the upper effort that hold', min=1, max=100)

    name = 'tracking'
    order = 11
    stage = Stage.INPUT
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self._sent = self._seen = np.zeros((0, 0))  # newest ``_size`` ticks, ring buffers (N, n)
        self._lag = self._size = self._count = 0
        self._windows: tuple[int, ...] = ()
        self.reset()

    def reset(self) -> None:
        """Forget the way so far."""
        self._count = 0
        self._apart_ns = 0  # since when a joint is too far away
        self._held: Finding | None = None
        self._strong, self._effort_ns = 0, 0

    def check(self, situation: Situation) -> Finding | None:
        """Compare where the arm is sent with where it is."""
        sent, measured = situation.commanded, situation.measured
        if sent is None or measured is None:
            self.reset()
            return None
        if seconds(situation.now_ns - measured.stamp_ns) > self.config.stale_s:
            return None  # another check's business
        n = situation.limiter.n_arm
        self._remember(sent[:n], measured.positions[:n], situation.period_s)
        found = self._effort(situation, measured) or self._apart(situation) or self._stuck()
        if found is not None:
            self._held = self._named(found, situation)
        elif self._held is not None and self._still_apart():
            return self._held
        else:
            self._held = None
        return self._held

    def _remember(self, sent: F64, seen: F64, period_s: float) -> None:
        if self._sent.shape[1] != len(sent):
            self._lag = round(self.config.lag_s / period_s)
            self._windows = tuple(round(window_s / period_s) for window_s in WINDOWS_S)
            self._size = self._lag + max(self._windows) + 1
            self._sent, self._seen = np.zeros((2, self._size, len(sent)))
        place = self._count % self._size
        self._sent[place], self._seen[place] = sent, seen
        self._count += 1

    def _last(self, buffer: F64, ticks: int) -> F64:
        """Return the newest entries of a ring buffer, shape (ticks, n), in any order."""
        end = self._count % self._size
        if end >= ticks:
            return buffer[end - ticks : end]
        return np.concatenate((buffer[:end], buffer[end - ticks :]))

    def _deviation(self) -> F64:
        """Return how far each joint is from all places it was lately sent to, shape (n,)."""
        recent = self._last(self._sent, min(self._lag + 1, self._count))
        seen = self._seen[(self._count - 1) % self._size]
        beyond: F64 = np.maximum(recent.min(axis=0) - seen, seen - recent.max(axis=0))
        return beyond

    def _still_apart(self) -> bool:
        newest = (self._count - 1) % self._size
        return bool(np.abs(self._sent[newest] - self._seen[newest]).max() > self.config.released)

    def _apart(self, situation: Situation) -> Finding | None:
        newest = (self._count - 1) % self._size
        if np.abs(self._sent[newest] - self._seen[newest]).max() <= self.config.deviation:
            self._apart_ns = 0  # the usual case, at a tenth of the cost
            return None
        beyond = self._deviation()
        worst = int(np.argmax(beyond))
        if beyond[worst] <= self.config.deviation:
            self._apart_ns = 0
            return None
        self._apart_ns = self._apart_ns or situation.now_ns
        if seconds(situation.now_ns - self._apart_ns) < self.config.deviation_s:
            return None
        value = float(beyond[worst])
        reason = f'is {value:.3f} rad from where it was sent'
        return Finding(Reaction.HOLD, reason, str(worst), value, self.config.deviation)

    def _stuck(self) -> Finding | None:
        for window in self._windows:
            ticks = window + self._lag
            if self._count <= ticks:
                return None
            first = (self._count - 1 - ticks) % self._size
            until = (self._count - 1 - self._lag) % self._size
            asked = np.abs(self._sent[until] - self._sent[first])
            if asked.max() <= self.config.way:
                continue
            limit = np.where(asked > self.config.way, self.config.share * asked, -1.0)
            newest = (self._count - 1) % self._size
            if np.all(np.abs(self._seen[newest] - self._seen[first]) >= limit):
                continue
            went = np.abs(self._last(self._seen, ticks) - self._seen[first]).max(axis=0)
            worst = int(np.argmax(limit - went))
            if limit[worst] > went[worst]:
                reason = f'went {went[worst]:.4f} rad of {asked[worst]:.4f} rad commanded'
                least = float(limit[worst])
                return Finding(Reaction.HOLD, reason, str(worst), float(went[worst]), least)
        return None

    def _effort(self, situation: Situation, measured: Measured) -> Finding | None:
        upper = situation.robot.max_effort
        if not upper or measured.efforts is None or measured.stamp_ns == self._effort_ns:
            return None
        self._effort_ns = measured.stamp_ns
        efforts = np.abs(measured.efforts[: len(upper)])
        over = efforts / np.array(upper)
        worst = int(np.argmax(over))
        self._strong = self._strong + 1 if over[worst] > 1.0 else 0
        if self._strong < self.config.effort_ticks:
            return None
        value, limit = float(efforts[worst]), upper[worst]
        reason = f'effort {value:.1f} Nm, at most {limit:.1f} Nm'
        return Finding(Reaction.HOLD, reason, str(worst), value, limit)

    @staticmethod
    def _named(found: Finding, situation: Situation) -> Finding:
        joint = situation.limiter.joints[int(found.joint)]
        return Finding(found.reaction, f'{joint} {found.reason}', joint, found.value, found.limit)
