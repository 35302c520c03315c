"""What the detectors of behaviour have in common (order 12)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any, ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, NAN, Situation, Stage
from chunkpilot_core.safety.runtime.hysteresis import Hysteresis
from chunkpilot_core.safety.runtime.moments import Moment, moment_of, Record
from chunkpilot_core.types import Reaction

FULL_SPEED = 0.99  # speed scale


@dataclass(frozen=True, slots=True)
class Part:
    """
    What a calibration says of one detector.

    ``threshold`` by bins of ``bin_s`` of the episode, one value = constant, none = the detector's
    own; ``expected`` false alarms per episode; ``statistics`` are the detector's business.
    """

    threshold: tuple[float, ...] = ()
    bin_s: float = 0.0
    expected: float = NAN
    statistics: Mapping[str, Any] | None = None

    def at(self, elapsed_s: float) -> float:
        """Return the threshold in force."""
        if self.bin_s <= 0.0:
            return self.threshold[0]
        last = len(self.threshold) - 1
        return self.threshold[min(max(int(elapsed_s / self.bin_s), 0), last)]


class Detector(Check):
    """
    Gives each chunk a score and objects when several in a row are above the threshold.

    Without a calibration for the policy in force it only tells: nobody knows what is normal.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Hysteresis."""

        trigger: int = option(2, 'chunks in a row over the threshold that alarm', min=1, max=100)
        release: int = option(2, 'chunks in a row below it that end that', min=1, max=100)

    order = 12
    stage = Stage.CHUNK
    varying: ClassVar[bool] = False  # whether the threshold follows the course of an episode
    paced: ClassVar[bool] = False  # whether a slowed plan makes the score mean nothing
    conformal: ClassVar[bool] = True  # whether it comes from scores at all
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self.part: Part | None = None
        self.newest = NAN
        """Score of the newest chunk, NaN = it has none."""
        self.complaint = ''
        """Why that is not what it should be, '' = it is."""
        self.hysteresis = Hysteresis(self.config.trigger, self.config.release)
        self._epoch = 0

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return what has to be known of normal episodes to score a chunk."""
        return {}

    @abstractmethod
    def score(self, moment: Moment) -> float:
        """Return how odd a chunk is, NaN where that can't be said."""

    @abstractmethod
    def object(self, score: float, threshold: float) -> Finding:
        """Return what is to be done about an alarm."""

    def own_threshold(self) -> float:
        """Return the threshold that needs no calibration, infinity where there is none."""
        return float('inf')

    def threshold(self, elapsed_s: float) -> float:
        """Return the threshold in force."""
        part = self.part
        return part.at(elapsed_s) if part and part.threshold else self.own_threshold()

    def check(self, situation: Situation) -> Finding | None:
        """Score the newest chunk."""
        if situation.epoch != self._epoch:  # what came before was another motion
            self._epoch = situation.epoch
            self.reset()
        moment = moment_of(situation)
        if moment is None or not moment.chunk.final:
            return None
        if self.paced and situation.speed_scale < FULL_SPEED:
            return None
        return self._with_complaint(self.told(self.judge(moment), situation))

    def judge(self, moment: Moment) -> Finding | None:
        """Score a chunk; returns what is to be done if it is one too many."""
        self.complaint = ''
        self.newest = score = self.score(moment)
        if score != score:
            return None
        threshold = self.threshold(moment.elapsed_s)
        if not self.hysteresis.update(score > threshold):
            return None
        return self.object(score, threshold)

    def said(self, moment: Moment, diagnostic: str) -> float | None:
        """
        Return a diagnostic of the policy, None where it has none.

        One that is no number is as odd as can be, and somebody is called.
        """
        value = moment.chunk.diagnostics.get(diagnostic)
        if value is None or math.isfinite(value):
            return value
        self.complaint = f"the policy's diagnostic {diagnostic} is {value}"
        return math.inf

    def fits(self, what: str, size: int, fitted: int) -> bool:
        """Return whether something has the size that was calibrated; if not, say so."""
        if size != fitted:
            self.complaint = f'{what} {size} numbers, calibrated were {fitted}'
        return size == fitted

    def _with_complaint(self, found: Finding | None) -> Finding | None:
        if not self.complaint:
            return found
        if found is None:
            return Finding(Reaction.PASS, self.complaint, 'chunk', escalate=True)
        return replace(found, reason=f'{found.reason} ({self.complaint})', escalate=True)

    def alarms(self, record: Record, since: int = 0) -> list[float]:
        """
        Return when in an episode there would be an alarm [s].

        :param since: chunks that only lead up to it
        """
        self.reset()
        found = []
        for number, moment in enumerate(record.moments):
            if self.judge(moment) is not None and number >= since:
                found.append(moment.elapsed_s)
        return found

    def told(self, found: Finding | None, situation: Situation) -> Finding | None:
        """Return a finding; one that rests on no calibration is told only."""
        if found is None or (self.part is not None and situation.calibrated):
            return found
        return replace(found, reaction=Reaction.PASS, scale=1.0, escalate=False)

    @property
    def status(self) -> str:
        """Newest score, and what it is compared with."""
        score = 'no score' if self.newest != self.newest else f'{self.newest:.4g}'
        if self.part is None:
            return f'{score}, not calibrated'
        if self.complaint:
            return f'{score}, {self.complaint}'
        return f'{score}, {"ALARM" if self.hysteresis.on else "quiet"}'

    def reset(self) -> None:
        """Forget the chunks so far."""
        self.hysteresis.reset()
        self.newest, self.complaint = NAN, ''


def slowed(found: Finding, scale: float = 0.5) -> Finding:
    """Return a finding that asks for less speed."""
    return replace(found, reaction=Reaction.SLOW, scale=scale)
