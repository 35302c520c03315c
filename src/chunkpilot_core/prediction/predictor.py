"""
Judges a chunk before it runs: would it keep the limits, and how near would it come to what?

A kinematic sweep along the rows, the cheap extrapolation of what comes after them as in SafePred
(short-term risk inside the chunk, at its end, long-term beyond it), and the fraction of its speed
at which the same path keeps the limits. It knows the shapes of the arm and of its surroundings,
and that execution follows; it knows nothing of the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.runtime.plan import known_rows, with_residual
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.prediction import candidates, flaws
from chunkpilot_core.prediction.dynamics import Dynamics
from chunkpilot_core.prediction.flaws import CLEARANCE, Flaw
from chunkpilot_core.prediction.path import Path, PathMaker
from chunkpilot_core.prediction.rates import Rates, time_scale
from chunkpilot_core.prediction.sweep import Sweeper, Swept, worse
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    ChunkVerdict,
    F32,
    F64,
    Id,
    JointState,
    seconds,
)
import numpy as np

BEYOND_ROWS = 4
ENOUGH = 0.3  # a detour of less risk needs no better one


@dataclass(frozen=True, slots=True)
class Outlook:
    """What rows would do: the first flaw, the time-scale they need, and distances if known."""

    flaw: Flaw | None
    rates: Rates
    executable_rows: int
    swept: Swept | None
    path: Path | None = None


class Predictor:
    """Judges the chunks of one policy on one robot; told the time by its caller."""

    @dataclass(frozen=True)
    class Config:
        """What is bad, and what is only slow."""

        accept_scale: float = option(
            0.8, 'a chunk that keeps its limits at this fraction of its speed runs as it is',
            min=0.1, max=1.0,
        )  # fmt: skip
        reject_scale: float = option(
            0.3, 'one that needs less is rejected, between the two it is slowed', min=0.01, max=1.0
        )
        max_observation_age_s: float = option(
            1.5, 'of the observation behind a chunk', unit='s', min=0.05, max=60.0
        )
        workspace_m: float = option(
            0.05, 'farther out of the workspace no row may ask for', unit='m', min=0.0, max=1.0
        )
        reached_m: float = option(
            0.01, 'inverse kinematics may leave so much', unit='m', min=1e-5, max=0.1
        )
        reached_rad: float = option(
            0.05, 'inverse kinematics may leave so much', unit='rad', min=1e-5, max=1.0
        )
        spacing_m: float = option(
            0.01, 'no point of the arm moves farther between two samples, where it matters',
            unit='m', min=0.001, max=0.1,
        )  # fmt: skip
        max_rows: int = option(32, 'of a longer chunk so many rows are looked at', min=4, max=1000)
        max_samples: int = option(64, 'looked at between the rows', min=0, max=4096)
        beyond_s: float = option(
            0.3, 'extrapolated with the velocity of the last row', unit='s', min=0.0, max=2.0
        )
        candidates: int = option(
            4, 'samples of a bad chunk that are looked at for a better one', min=0, max=64
        )
        detours: bool = option(
            False,
            'where no sample of a bad chunk will do, look for a way over or beside what is in the '
            'way: rows that the policy did not predict',
        )
        dynamics: bool = option(
            False, 'look at where simulated drives would bring the arm, too: needs PyBullet'
        )

    def __init__(
        self, robot: Robot, config: 'Predictor.Config | None' = None,
        clearance: Clearance | None = None,
    ) -> None:  # fmt: skip
        """
        Judge for a robot.

        :param clearance: distances; None = limits and workspace only
        :raises ConfigError: dynamics are asked for and can't be simulated here
        """
        self.config = config or self.Config()
        self.robot = robot
        self.clearance = clearance
        self._limiter = Limiter(robot, robot.position_margin)
        self._paths = PathMaker(Kinematics(robot), self._limiter, self.config.max_rows)
        self._sweeper: Sweeper | None = None
        if clearance is not None:
            self._sweeper = Sweeper(clearance, self.config.spacing_m, self.config.max_samples)
        self._dynamics = Dynamics(robot) if self.config.dynamics else None
        self.space: ActionSpace | None = None
        self._answer = Id(), Id()  # request of the newest chunk, and its first part
        self._in_parts = False  # it came in more than one message
        self._side = 0.0  # of the last detour: the next one goes the same way if it can

    def surroundings_changed(self) -> None:
        """Follow :meth:`Clearance.set_obstacles`."""
        if self._sweeper is not None:
            self._sweeper.surroundings_changed()

    def judge(self, chunk: ActionChunk, present: JointState, now_ns: int) -> ChunkVerdict:
        """
        Judge a chunk that would run from now on; never raises on what a policy may send.

        Parts of one answer are judged under the id that commands carry: the first one's.

        :param present: the setpoint in force and its velocity, in the robot's order, finite
        """
        if chunk.request_id != self._answer[0] or not chunk.request_id:
            self._answer, self._in_parts = (chunk.request_id, chunk.id), False
        self._in_parts |= len(chunk.parts) > 1 or not chunk.final
        named = replace(chunk, id=self._answer[1])
        wrong = self._unfit(named, now_ns)
        if wrong is not None:
            return _refused(named, *wrong, now_ns)
        rows = with_residual(named)[: max(known_rows(named), 1)]
        outlook = self.outlook(named, rows, present, now_ns)
        verdict = self._verdict(named, outlook, now_ns)
        if verdict.ok or self._in_parts:
            return verdict  # of parts the others don't know the same rows
        near = outlook.flaw is not None and outlook.flaw.check == CLEARANCE
        best = self._best(named, len(rows), present, now_ns, near and self.config.detours)
        return replace(verdict, best_sample=best)

    def outlook(
        self,
        chunk: ActionChunk,
        rows: F32,
        present: JointState,
        now_ns: int,
        detour: bool = False,
    ) -> Outlook:
        """
        Return what rows (H, A), the chunk's own or those of a candidate, would do.

        :param detour: whether they are such that the policy has not predicted
        """
        assert self.space is not None
        path = self._paths.make(self.space, chunk, rows, present, now_ns)
        lost = flaws.not_finite(path)
        if lost is not None:  # nothing else could be said of it
            return Outlook(lost, Rates(1.0), 0, None, path)
        config, limiter = self.config, self._limiter
        rates = time_scale(path, limiter, config.accept_scale)
        found: list[Flaw | None] = [
            flaws.out_of_reach(path, config.reached_m, config.reached_rad),
            flaws.beyond_joints(path, limiter),
            flaws.beyond_workspace(path, self.robot, config.workspace_m),
            flaws.no_room_to_stop(path, limiter),
        ]
        if rates.scale < config.reject_scale:
            found.append(Flaw(rates.worst, 'time_scale', rates.reason))
        swept = self._swept(path, path.positions, detour)
        if self._dynamics is not None:
            rolled = self._swept(path, self._dynamics.follow(path), detour)
            swept = worse(swept, rolled) if swept and rolled else swept
        found.append(swept.flaw if swept else None)
        first = min((flaw for flaw in found if flaw), key=lambda flaw: flaw.row, default=None)
        executable = self._executable(path, chunk.dt_s, first) if first else len(rows)
        return Outlook(first, rates, executable, swept, path)

    def _swept(self, path: Path, positions: F64, detour: bool) -> Swept | None:
        """Return the distances along positions (M + 1, J) and beyond the end of the path."""
        if self._sweeper is None:
            return None
        ahead = self._ahead(path)
        return self._sweeper.sweep(
            np.vstack((positions, ahead)),
            np.append(path.row, path.row[-1] + 1 + np.arange(len(ahead))),
            len(path.row),
            detour,
        )

    def _unfit(self, chunk: ActionChunk, now_ns: int) -> tuple[str, str] | None:
        """Return check and reason why nothing of a chunk can be looked at."""
        if self.space is None:
            return 'space', 'the action space of the policy is not known'
        try:
            chunk.validate(self.space)
        except InvalidDataError as error:
            return 'chunk', str(error)
        age_s = seconds(now_ns - chunk.observation_stamp_ns)
        limit_s = min(self.config.max_observation_age_s, self.robot.max_row_age_s)
        if age_s > limit_s:
            return 'age', f'rests on an observation {age_s:.2f} s old, allowed {limit_s:.2f} s'
        return None

    def _ahead(self, path: Path) -> F64:
        """Return joints after the last row: where braking ends, then as if it went on."""
        limiter, n = self._limiter, self._limiter.n_arm
        rest = flaws.stop_after(path, limiter)
        steps = self.config.beyond_s / BEYOND_ROWS * np.arange(1, BEYOND_ROWS + 1)
        drift = path.velocities[-1].copy()
        drift[n:] = 0.0
        beyond = path.positions[-1] + steps[:, None] * drift
        ahead: F64 = np.vstack((rest, beyond))
        return np.minimum(np.maximum(ahead, limiter.hard_lower), limiter.hard_upper)

    def _executable(self, path: Path, dt_s: float, flaw: Flaw) -> int:
        """Return how many rows may run for braking after them to end before a flaw."""
        before = min(int(np.searchsorted(path.row, flaw.row)), len(path.row) - 1)
        speed = path.velocities[max(before - 1, 0)]
        brake_rows = int(np.ceil(flaws.brake_s(speed, self._limiter) / 2.0 / dt_s))
        return max(int(path.begins[before]) - brake_rows, 0)

    def _verdict(self, chunk: ActionChunk, outlook: Outlook, now_ns: int) -> ChunkVerdict:
        flaw, swept, scale = outlook.flaw, outlook.swept, outlook.rates.scale
        risk, risk_end, risk_beyond = 0.0, 0.0, 0.0
        if swept is not None:
            inside, ahead = swept.risks[: -BEYOND_ROWS - 1], swept.risks[-BEYOND_ROWS - 1 :]
            risk, risk_end = float(inside.max(initial=0.0)), float(ahead[0])
            risk_beyond = float((ahead[1:] * np.linspace(1.0, 0.25, BEYOND_ROWS)).max())
        slowed = flaw is None and scale < self.config.accept_scale
        return ChunkVerdict(
            stamp_ns=now_ns,
            chunk_id=chunk.id,
            ok=flaw is None,
            first_bad_row=flaw.row if flaw else outlook.rates.row if slowed else -1,
            executable_rows=outlook.executable_rows,
            speed_scale=scale if slowed else 1.0,
            revision=_revision(chunk),
            check=flaw.check if flaw else 'time_scale' if slowed else '',
            reason=_reason(flaw, outlook.rates) if flaw or slowed else '',
            risk=1.0 if flaw else risk,
            risk_end=risk_end,
            risk_beyond=risk_beyond,
            min_clearance=swept.min_clearance if swept else float('nan'),
            clearance_pair=swept.pair if swept else '',
        )

    def _best(
        self, chunk: ActionChunk, known: int, present: JointState, now_ns: int, detours: bool
    ) -> int:
        """
        Return the candidate to run instead, -1 if there is none: all of it may run as it is.

        That is the safest sample; or else the first detour that is safe enough, or the safest.

        :param detours: whether to look at these: they cost many times a judgement, and are for
            what is in the way
        """
        best, least = -1, np.inf
        for number in self._in_order(chunk, detours):
            detour = candidates.is_detour(chunk, number)
            if detour and best >= 0 and (least <= ENOUGH or not candidates.is_detour(chunk, best)):
                break
            risk = self._risk(chunk, number, known, present, now_ns)
            if risk < least:
                best, least = number, risk
        if best >= 0 and candidates.side(chunk, best):
            self._side = candidates.side(chunk, best)
        return best

    def _risk(
        self, chunk: ActionChunk, number: int, known: int, present: JointState, now_ns: int
    ) -> float:
        """Return the risk of a candidate, inf if it has a flaw or would have to be slowed."""
        assert self.space is not None
        rows = candidates.rows_of(chunk, self.space, number)
        if rows is None:
            return np.inf
        detour = candidates.is_detour(chunk, number)
        outlook = self.outlook(chunk, rows[:known], present, now_ns, detour)
        if outlook.flaw is not None or outlook.rates.scale < self.config.accept_scale:
            return np.inf
        return _worst(outlook.swept.risks if outlook.swept else ())

    def _in_order(self, chunk: ActionChunk, detours: bool) -> list[int]:
        """Return the candidates; those to the other side than that taken last come at the end."""
        assert self.space is not None
        found = candidates.numbers(chunk, self.space, self.config.candidates, detours)
        return sorted(found, key=lambda n: candidates.side(chunk, n) * self._side < 0.0)


def _refused(chunk: ActionChunk, check: str, reason: str, now_ns: int) -> ChunkVerdict:
    return ChunkVerdict(
        now_ns,
        chunk.id,
        ok=False,
        first_bad_row=0,
        revision=_revision(chunk),
        check=check,
        reason=reason,
        risk=1.0,
        risk_end=1.0,
        risk_beyond=1.0,
    )


def _reason(flaw: Flaw | None, rates: Rates) -> str:
    if flaw is not None:
        return f'row {flaw.row}: {flaw.reason}'
    return f'row {rates.worst}: {rates.reason}'


def _revision(chunk: ActionChunk) -> int:
    return max((part.revision for part in chunk.parts), default=0)


def _worst(risks: Sequence[float] | F64) -> float:
    return max((float(risk) for risk in risks), default=0.0)
