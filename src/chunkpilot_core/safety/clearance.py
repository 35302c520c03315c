"""
Neither the arm nor what it holds comes nearer to anything than its pair's threshold.

Judged where the setpoint goes next and where the arm would come to rest if it braked then. Only
motion by which a distance falls is slowed or refused: the way out is always free.
"""

from dataclasses import dataclass, replace

from chunkpilot_core.clearance.base import Clearance as Distances
from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Proposal, Situation, Stage
from chunkpilot_core.types import F64, Reaction
import numpy as np

NOISE_M = 2e-6  # of distances between meshes
CREEP_M = 1e-4  # a pair that is too near comes nearer by this in all, however slowly
BEYOND_M = 0.03  # above the distance that slows, nothing has to be known
NEAREST = 3  # pairs that are told in every verdict


@dataclass(frozen=True, slots=True)
class _Sunk:
    """
    How deep pairs have come in, under one list of obstacles.

    ``largest`` (P,) is the distance since a pair is nearer than its ``stop``, which it is for a
    pair that is not; ``last`` (P,) the newest one.
    """

    version: int
    names: tuple[str, ...]
    largest: F64
    last: F64

    def under(self, names: tuple[str, ...]) -> F64:
        """Return how much nearer the arm has brought each of these pairs (P,), whatever moved."""
        by = np.maximum(self.largest - self.last, 0.0)
        if names == self.names:
            return by
        known = dict(zip(self.names, by.tolist(), strict=True))
        return np.array([known.get(name, 0.0) for name in names])


class Clearance(Check):
    """Slows down on the way in, brakes where braking is due, and holds what insists."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How slow is slow."""

        least_scale: float = option(
            0.05, 'of the speed, just before the distance that stops', min=0.01, max=1.0
        )
        falling_m: float = option(
            1e-5,
            'a distance that falls by less in a tick is not slowed',
            unit='m',
            min=0.0,
            max=1e-3,
        )
        resting: float = option(
            0.02,
            'an arm slower than this that still insists is held',
            unit='rad/s',
            min=0.0,
            max=1.0,
        )

    name = 'clearance'
    order = 10
    stage = Stage.MOTION
    config: Config
    _known: tuple[F64, int, F64] | None = None
    _sunk: _Sunk | None = None

    def check(self, situation: Situation) -> Finding | None:
        """Compare the distances now, next and at rest, tightest pair first."""
        proposal, distances = situation.proposal, situation.clearance
        if proposal is None or distances is None:
            return None
        self._note_last(proposal)
        now, ahead = self._measure(proposal, distances)
        situation.nearest = _nearest(distances, now)
        if ahead is None:
            return None
        nearest = ahead.min(axis=0)
        tolerance = np.where(nearest < distances.stop, NOISE_M, self.config.falling_m)
        falls = nearest < now - tolerance
        spent = nearest < np.minimum(self._since_near(now, distances), distances.stop) - CREEP_M
        falls |= spent & (nearest < now)  # the way out is free from wherever braking has ended
        watched = falls & (nearest < distances.slow)
        if not watched.any():
            return None
        room = (nearest - distances.stop) / (distances.slow - distances.stop)
        worst = int(np.argmin(np.where(watched, room, np.inf)))
        return self._object(worst, float(room[worst]), ahead[:, worst], situation)

    def reset(self) -> None:
        """Measure anew: the arm starts from somewhere else."""
        self._known = self._sunk = None

    def _since_near(self, now: F64, distances: Distances) -> F64:
        """
        Return the distances (P,); of a pair that is too near the largest since it came so.

        A list of obstacles that moves them moves that, too: what the arm has used up stays so.
        """
        before, largest = self._sunk, now
        if before is not None:
            known = before.largest
            if before.version != distances.version:
                known = now + before.under(distances.names)
            largest = np.maximum(now, known)
        largest = np.where(now < distances.stop, largest, distances.stop)
        self._sunk = _Sunk(distances.version, distances.names, largest, now)
        return largest

    def _note_last(self, proposal: Proposal) -> None:
        """Keep how far away everything was at the setpoint, before another list moves it."""
        known, sunk = self._known, self._sunk
        if known is None or sunk is None:
            return
        if known[0] is proposal.position and known[1] == sunk.version:
            self._sunk = replace(sunk, last=known[2])

    def _measure(self, proposal: Proposal, distances: Distances) -> tuple[F64, F64 | None]:
        """Return the distances now, (P,), and next and at rest, (1 or 2, P); None = no motion."""
        known, (poses, frames) = self._known, _ahead(proposal)
        moves_on = len(poses) == 2
        rows = []
        if known and known[0] is proposal.position and known[1] == distances.version:
            rows.append(known[2])
        else:
            poses, frames = [proposal.position, *poses], None
        if poses:
            reach = np.empty((len(poses), len(distances.pairs)))
            reach[:] = distances.slow + BEYOND_M
            if moves_on:
                reach[-1] = distances.slow  # where the arm would rest nothing else matters
            rows.extend(distances.sweep(np.array(poses), frames, reach))
        self._known = proposal.next_position, distances.version, rows[:2][-1]
        return rows[0], np.array(rows[1:]) if len(rows) > 1 else None

    def _object(self, worst: int, room: float, ahead: F64, situation: Situation) -> Finding:
        distances, proposal = situation.clearance, situation.proposal
        assert distances is not None
        assert proposal is not None
        pair, stop = distances.names[worst], float(distances.stop[worst])
        nearest = float(ahead.min())
        if room >= 0.0:
            slow = float(distances.slow[worst])
            scale = min(max(room, self.config.least_scale), 1.0)
            reason = f'{pair} nears {nearest:.4f} m, slow below {slow:.4f} m'
            return Finding(Reaction.SLOW, reason, pair, nearest, slow, scale=scale)
        speed = float(np.abs(proposal.velocity[: situation.limiter.n_arm]).max())
        insists = ahead[0] < stop or speed < self.config.resting
        where = 'would be' if len(ahead) == 1 or ahead[0] <= ahead[1] else 'would come to rest at'
        reason = f'{pair} {where} {nearest:.4f} m, not below {stop:.4f} m'
        reaction = Reaction.HOLD if insists else Reaction.SLOW
        return Finding(reaction, reason, pair, nearest, stop, brake=True)


def _ahead(proposal: Proposal) -> tuple[list[F64], F64 | None]:
    """Return where the arm goes next and would rest, with its frames; nothing if it stands."""
    poses, frames = [proposal.next_position, proposal.stop_position], proposal.frames
    if np.array_equal(poses[0], proposal.position):
        return [], None
    if np.array_equal(poses[0], poses[1]):
        return poses[:1], frames if frames is None else frames[:1]
    return poses, frames


def _nearest(distances: Distances, found: F64) -> dict[str, float]:
    """Return the pairs that are nearest to what stops the arm, with their distance."""
    margin = np.where(found < distances.slow + BEYOND_M, found - distances.stop, np.inf)
    order = np.argsort(margin)[:NEAREST].tolist()
    return {distances.names[i]: float(found[i]) for i in order if margin[i] < np.inf}
