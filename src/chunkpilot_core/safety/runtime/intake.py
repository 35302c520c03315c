"""
What the guard makes of chunks: each is looked at once, when it comes, before any of its rows.

The calibration is kept here, too, as its thresholds are for the chunks of one policy.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.safety.base import Finding, Situation, Stage
from chunkpilot_core.safety.runtime.calibration import GuardCalibration
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.chunks import Chunks
from chunkpilot_core.safety.runtime.moments import Moment, moment_of
from chunkpilot_core.safety.runtime.report import Reporter
from chunkpilot_core.types import ActionChunk, ActionSpace, ChunkVerdict, F64, Id, Reaction

VERDICTS = 8  # of the newest chunks; more are never of use


class Intake:
    """Chunks of this epoch, what predict_node says of them, and what the checks found in them."""

    def __init__(self, situation: Situation, checks: Checks, reporter: Reporter) -> None:
        """
        Begin without chunks.

        :param situation: where checks find chunks and verdicts
        """
        self._situation, self._checks, self._reporter = situation, checks, reporter
        self._chunks = Chunks(situation.kinematics)
        self._verdicts: deque[ChunkVerdict] = deque(maxlen=VERDICTS)
        situation.chunks, situation.verdicts = self._chunks.heard, self._verdicts
        self._calibration: GuardCalibration | None = None
        self.misfit = ''
        """Why the calibration is not for the policy in force."""
        self.witness: Callable[[Moment], None] | None = None
        """Told of each chunk that comes, to calibrate with."""
        self._found: list[Finding] = []  # for the next tick to react to
        self._slow: list[Finding] = []  # in force until another chunk comes

    def calibrate(self, calibration: GuardCalibration) -> None:
        """
        Let detectors react by the thresholds of a calibration.

        :raises ConfigError: it is for another robot
        :raises UnknownNameError: it names no detector of this guard
        """
        calibration.check_robot(self._situation.robot)
        detectors = self._checks.detectors
        for name, part in calibration.detectors.items():
            if name not in detectors:
                raise UnknownNameError('detector in the guard calibration', name, detectors)
            detectors[name].part = part
        self._calibration = calibration

    def set_space(self, space: ActionSpace, dt_s: float, policy: str) -> None:
        """Read rows of chunks in this space from now on."""
        self._situation.space = self._chunks.space = space
        self._situation.row_s = dt_s
        if self._calibration is not None:
            self.misfit = self._calibration.misfit(space, dt_s, policy)
            self._situation.calibrated = not self.misfit

    def begin(self, epoch: int) -> None:
        """Forget the chunks of another epoch, and what was said of them."""
        if self._chunks.begin(epoch):
            self._verdicts.clear()
            self._slow = []

    def take(self, chunk: ActionChunk, now_ns: int, commanded: F64) -> None:
        """
        Look at a chunk.

        :param commanded: joints sent last, shape (J,)
        """
        try:
            wrong = self._chunks.take(chunk, now_ns, commanded)
            found = [wrong] if wrong else list(self._checks.findings(Stage.CHUNK, self._situation))
            moment = moment_of(self._situation) if self.witness and not wrong else None
            if self.witness is not None and moment is not None:
                self.witness(moment)
        except Exception as error:
            reason = f'{type(error).__name__}: {error}'
            found = [Finding(Reaction.STOP, reason, check='internal_error')]
            wrong = None
        heard = self._chunks.heard
        newest = chunk.id if wrong or not heard else heard[-1].chunk.id
        found = [replace(finding, chunk_id=newest) for finding in found]
        for finding in found:
            if finding.reaction is Reaction.REJECT_CHUNK:
                self._chunks.refuse(newest, finding)
                self._reporter.reject(finding, None, self._situation)
        self._found += [f for f in found if f.reaction is not Reaction.SLOW]
        self._slow = [f for f in found if f.reaction is Reaction.SLOW]

    def take_verdict(self, verdict: ChunkVerdict) -> None:
        """Keep what predict_node makes of a chunk; nonsense judges it as bad."""
        shares = verdict.speed_scale, verdict.risk, verdict.risk_end, verdict.risk_beyond
        wrong = [share for share in shares if not 0.0 <= share <= 1.0]  # NaN is wrong, too
        if wrong:
            verdict = replace(
                verdict,
                ok=False,
                first_bad_row=0,
                executable_rows=0,
                best_sample=-1,
                check='verdict',
                reason=f'{wrong[0]} is no risk or speed scale, must be 0 to 1',
            )
        self._verdicts.append(verdict)

    def findings(self) -> list[Finding]:
        """
        Return what a tick has to react to, once, and what slows until another chunk comes.

        A chunk slows nobody but the policy whose it is.
        """
        found, self._found = self._found, []
        return [*found, *self._slow] if self._situation.policy_drives else found

    def begin_episode(self) -> None:
        """Forget what slowed the episode before."""
        self._slow = []

    def refusal(self, chunk_id: Id) -> Finding | None:
        """Return why no command of this chunk is accepted, None if they may be."""
        return self._chunks.refusal(chunk_id)

    def watched(self) -> dict[str, str]:
        """Return whose calibration is in force, and what each detector looks at."""
        made = self._calibration
        calibration = f'{made.policy}, {made.task}' if made else 'none: detectors only tell'
        told = {f'detector {name}': d.status for name, d in self._checks.detectors.items()}
        return {'calibration': self.misfit or calibration, **told}
