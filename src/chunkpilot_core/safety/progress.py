"""
Episodes in which nothing has come of it for longer than normal (D16).

Milestones are what every policy shows: the gripper's changes, and the end. The policy may name its
own: each change of the diagnostic ``stage`` is one, instead of the gripper's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.types import Reaction
import numpy as np

DIAGNOSTIC = 'stage'
QUANTILE = 0.95


class Progress(Detector):
    """Asks for another chunk, then calls somebody; once each between two milestones."""

    @dataclass(frozen=True)
    class Config(Detector.Config):
        """How late is too late."""

        trigger: int = option(1, 'chunks in a row over the threshold that alarm', min=1, max=100)
        factor: float = option(
            1.5, 'of the time in which 95 of 100 episodes get there', min=1.0, max=100.0
        )
        escalate: float = option(2.0, 'of it that calls somebody', min=1.0, max=100.0)

    name = 'progress'
    conformal = False
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self._stage: float | None = None
        self._since_s = 0.0
        self._told = 0  # asked for another chunk, called somebody

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return the longest normal time between milestones."""
        longest = []
        for record in records:
            times = [0.0, *_milestones(record.moments), record.duration_s]
            longest.append(float(np.diff(times).max()))
        return {'longest_s': float(np.quantile(longest, QUANTILE))}

    def own_threshold(self) -> float:
        """Return the factor."""
        return self.config.factor

    def score(self, moment: Moment) -> float:
        """Return the time since the last milestone in normal longest times."""
        self.said(moment, DIAGNOSTIC)
        stage = stage_of(moment, self._stage)
        if self._stage is None or stage != self._stage or moment.elapsed_s < self._since_s:
            self._since_s = moment.elapsed_s  # what was before an interruption does not count
            self._stage, self._told = stage, 0
        fitted = self.part.statistics if self.part else None
        if not fitted or not moment.elapsed_s:
            return float('nan')
        return (moment.elapsed_s - self._since_s) / float(fitted['longest_s'])

    def judge(self, moment: Moment) -> Finding | None:
        """Say it once, not with every chunk."""
        found = super().judge(moment)
        if found is None or self._told >= (2 if self.newest > self.config.escalate else 1):
            return None
        self._told = 2 if self.newest > self.config.escalate else 1
        return found

    def object(self, score: float, threshold: float) -> Finding:
        """Ask for another chunk; call somebody later."""
        reason = f'no milestone for {score:.1f} times what is normal'
        late = score > self.config.escalate
        reaction = Reaction.PASS if late else Reaction.REPLAN
        return Finding(reaction, reason, 'episode', score, threshold, escalate=late)

    def reset(self) -> None:
        """Forget the stage."""
        super().reset()
        self._stage, self._since_s, self._told = None, 0.0, 0


def stage_of(moment: Moment, before: float | None) -> float:
    """
    Return what changes at a milestone.

    :param before: the stage so far: a diagnostic that is no number is no milestone
    """
    own = moment.chunk.diagnostics.get(DIAGNOSTIC)
    if own is not None and math.isfinite(own):
        return own
    return float(moment.grip > 0.0) if own is None or before is None else before


def _milestones(moments: Sequence[Moment]) -> list[float]:
    """Return when the stage changed [s]."""
    stages: list[float] = []
    for moment in moments:
        stages.append(stage_of(moment, stages[-1] if stages else None))
    return [
        moment.elapsed_s
        for moment, now, then in zip(moments[1:], stages[1:], stages, strict=False)
        if now != then
    ]
