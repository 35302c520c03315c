"""
A policy that goes on answering and does nothing, although its task is not done (D13).

Attacks do that (FreezeVLA, arXiv 2509.19870), and observations that were never seen in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Finding, HeardChunk, Situation, Stage
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment, moment_of, Record
from chunkpilot_core.types import ArmState, Reaction, seconds
import numpy as np

OWN_MEDIAN = 1.0  # way of a chunk in fractions of the velocity limits times rows, uncalibrated
DONE = 'done'


class Freeze(Detector):
    """
    Asks for another chunk, calls somebody, and holds in the end; it never stops.

    It looks every tick: what counts is how long nothing has moved, neither in the chunks nor in
    reality. A finished episode, the policy's own diagnostic ``done``, an arm that holds or is
    driven by hand are no freeze.
    """

    @dataclass(frozen=True)
    class Config(Detector.Config):
        """How long."""

        share: float = option(
            0.005, 'of the way of a normal chunk, below which it is none', min=1e-6, max=0.5
        )
        still: float = option(
            0.01, 'joint speed below which nothing moves', unit='rad/s', min=1e-4, max=1.0
        )
        replan_s: float = option(
            3.0, 'until another chunk is asked for', unit='s', min=0.1, max=600.0
        )
        hold_s: float = option(10.0, 'until the arm holds', unit='s', min=0.2, max=600.0)

    name = 'freeze'
    stage = Stage.INPUT
    conformal = False
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self._heard: HeardChunk | None = None
        self._since_ns = 0
        self._asked = 0

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return the median way of a chunk, and the longest time without motion."""
        ways = [moment.way for record in records for moment in record.moments]
        median = float(np.median(ways))
        longest = max(
            (_longest_pause(record, self.config.share * median) for record in records), default=0.0
        )
        return {'way': median, 'pause_s': longest}

    def score(self, moment: Moment) -> float:
        """Return the way of a chunk in shares of a normal one; the gripper's counts too."""
        fitted = self.part.statistics if self.part else None
        return moment.way / (float(fitted['way']) if fitted else OWN_MEDIAN)

    def object(self, score: float, threshold: float) -> Finding:
        """Return the mildest answer; later ones are those of :meth:`check`."""
        reason = f'nothing has been done for {score:.1f} s, and the task is not done'
        return Finding(Reaction.REPLAN, reason, 'policy', score, threshold, escalate=True)

    def alarms(self, record: Record, since: int = 0) -> list[float]:
        """Return when another chunk would be asked for the first time."""
        fitted = (self.part.statistics if self.part else None) or {}
        limit_s = self.config.replan_s + float(fitted.get('pause_s', 0.0))
        found, since_s = [], None
        for moment in record.moments[since:]:
            if self.score(moment) >= self.config.share:
                since_s = None
                continue
            since_s = moment.elapsed_s if since_s is None else since_s
            if moment.elapsed_s - since_s >= limit_s:
                found.append(moment.elapsed_s)
        return found[:1]

    def check(self, situation: Situation) -> Finding | None:
        """Measure the time without motion."""
        newest = situation.chunks[-1] if situation.chunks else None
        idle = situation.episode_over or situation.state is not ArmState.ARMED
        if newest is None or idle or not situation.policy_drives:
            self.reset()
            return None
        if newest is not self._heard:
            self._heard = newest
            moment = moment_of(situation)
            self.newest = self.score(moment) if moment is not None else float('nan')
            if newest.chunk.diagnostics.get(DONE, 0.0) > 0.5:
                self.newest = float('nan')
        if not self.newest < self.config.share or self._moves(situation):
            self._since_ns, self._asked = 0, 0
            return None
        self._since_ns = self._since_ns or situation.now_ns
        still_s = seconds(situation.now_ns - self._since_ns)
        return self.told(self._overdue(still_s), situation)

    def _overdue(self, still_s: float) -> Finding | None:
        config = self.config
        pause_s = float((self.part.statistics or {}).get('pause_s', 0.0)) if self.part else 0.0
        late_s = still_s - pause_s  # tasks that pause may do so
        if late_s >= config.hold_s:
            found = self.object(still_s, config.hold_s)
            self._since_ns, self._asked = 0, 0  # the hold makes a new beginning
            return Finding(Reaction.HOLD, found.reason, 'policy', still_s, config.hold_s)
        if late_s >= config.replan_s * (self._asked + 1):
            self._asked += 1
            return self.object(still_s, config.replan_s)
        return None

    def _moves(self, situation: Situation) -> bool:
        measured, n = situation.measured, situation.limiter.n_arm
        if measured is None:
            return False
        return float(np.abs(measured.velocities[:n]).max()) > self.config.still

    def reset(self) -> None:
        """Begin anew."""
        super().reset()
        self._heard, self._since_ns, self._asked = None, 0, 0


def _longest_pause(record: Record, way: float) -> float:
    """Return the longest time of a record in which chunks had less than this way."""
    longest, since_s = 0.0, None
    for moment in record.moments:
        if moment.way >= way:
            since_s = None
            continue
        since_s = moment.elapsed_s if since_s is None else since_s
        longest = max(longest, moment.elapsed_s - since_s)
    return longest
