"""
Rows run only as far as somebody has looked at them before: the judgements of predict_node.

Slowing keeps the path: the arm comes to rest before the row that may not run, and goes on where it
stopped when the verdict comes. Nothing here waits for a peer: a slow or dead one costs speed only.
"""

from collections import deque
from dataclasses import dataclass
import math

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.safety.runtime.mover import FALL_S
from chunkpilot_core.types import ChunkVerdict as Verdict
from chunkpilot_core.types import Command, Id, Reaction, seconds

LEFT = 8  # chunks; verdicts of older ones are not kept
GUIDED = 'guided'  # source of a command made of rows that a verdict names, not of the chunk's own


class ChunkVerdict(Check):
    """
    Slows before rows that nobody has judged, stops before bad ones, and asks for another chunk.

    Rows without a verdict are counted from the last verdict of a chunk that ran: a policy that is
    asked ever anew does not crawl on blindly.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """What runs without a verdict, and what a verdict does."""

        require: bool = option(
            False, 'rows beyond the first few of a chunk run only when its verdict has come'
        )
        free_rows: int = option(4, 'rows that run before the verdict', min=1, max=1000)
        risk_from: float = option(0.5, 'a risk above this slows', min=0.0, max=0.99)
        risk_scale: float = option(0.3, 'speed scale at a risk of 1', min=0.05, max=1.0)
        end_weight: float = option(0.5, 'of the risk at the end of a chunk', min=0.0, max=1.0)
        beyond_weight: float = option(0.25, 'of the risk beyond it', min=0.0, max=1.0)
        escalate_s: float = option(
            3.0, 'at rest for so long for want of good rows, a human should look',
            unit='s', min=0.1, max=600.0,
        )  # fmt: skip

    name = 'chunk_verdict'
    order = 12
    stage = Stage.INPUT
    config: Config

    def __init__(self, config: 'ChunkVerdict.Config | None' = None) -> None:
        super().__init__(config)
        self.reset()

    def reset(self) -> None:
        """Forget what ran."""
        self._chunk, self._row = Id(), -1
        self._first = 0  # row of the chunk that ran first
        self._spent = 0  # rows that ran without a verdict before this chunk
        self._left: deque[tuple[Id, int]] = deque(maxlen=LEFT)
        """Chunks that ran unjudged, oldest first, and the rows spent when each of them ended."""
        self._passed_s = 0.0  # of the row, in plan time
        self._length = 0  # of the chunk, 0 = not known
        self._told: Verdict | None = None
        self._blocked_s = 0.0

    def check(self, situation: Situation) -> Finding | None:
        """Compare the row that runs with what is known of its chunk."""
        command = situation.flow.accepted
        if command is None or command.row < 0 or not command.chunk_id:
            self._leave()
            self._catch_up(situation)
            return self._news(situation) or self._used_up(command, situation)
        verdict = verdict_of(situation, command.chunk_id)
        self._follow(command, situation)
        if verdict is not None:
            self._spent, self._first = 0, command.row + 1
            self._left.clear()
        else:
            self._catch_up(situation)
        found = self._judged(command, verdict, situation)
        if found is None or found.scale > 0.0:
            self._blocked_s = 0.0
        return found or self._news(situation)

    def _follow(self, command: Command, situation: Situation) -> None:
        """Keep count of where in which row the plan is."""
        passed_s = seconds(situation.now_ns - situation.last_ns) if situation.last_ns else 0.0
        if command.chunk_id != self._chunk:
            self._leave()
            self._chunk, self._first, self._length = command.chunk_id, command.row, 0
        elif command.row == self._row:
            self._passed_s += max(passed_s, 0.0) * situation.speed_scale
            return
        self._row, self._passed_s = command.row, 0.0

    def _leave(self) -> None:
        """Count the rows of the chunk that ran, and forget it."""
        if self._chunk:
            self._spent += max(self._row + 1 - self._first, 0)
            self._left.append((self._chunk, self._spent))
        self._chunk = Id()

    def _catch_up(self, situation: Situation) -> None:
        """
        Count from the end of the newest chunk that ran and has been judged by now.

        A policy that is asked ever anew has a newer chunk running whenever a verdict comes.
        """
        for chunk_id, spent in reversed(self._left):
            if verdict_of(situation, chunk_id) is not None:
                self._spent -= spent
                left = [(newer, more - spent) for newer, more in self._left if more > spent]
                self._left = deque(left, maxlen=LEFT)
                return

    def _used_up(self, command: Command | None, situation: Situation) -> Finding | None:
        """Stand still between chunks, too, when no row may run without a verdict any more."""
        config = self.config
        waits = config.require and self._spent >= config.free_rows and situation.policy_drives
        if command is None or not waits:
            return None
        reason = f'{self._spent} rows ran without a verdict, and none has come'
        value, limit = float(self._spent), float(config.free_rows)
        escalate = self._waits(0.0, situation)
        return Finding(Reaction.SLOW, reason, 'chunk', value, limit, scale=0.0, escalate=escalate)

    def _judged(
        self, command: Command, verdict: Verdict | None, situation: Situation
    ) -> Finding | None:
        if verdict is None:
            if not self.config.require:
                return None
            end = self._first + max(self.config.free_rows - self._spent, 0)
            return self._before(end, 'no verdict has come', command, situation)
        if command.source == GUIDED or (not verdict.ok and verdict.best_sample >= 0):
            return self._guided(command, verdict, situation)
        if not verdict.ok:
            self._told = verdict
            reason = f'{verdict.check}: {verdict.reason}'
            scale = min(self._room(verdict.executable_rows, command, situation), 1.0)
            return self._wish(verdict, reason, scale, self._waits(scale, situation))
        slowed = self._slowed(verdict, command, situation)
        end = verdict.executable_rows
        if end >= self._horizon(command.chunk_id, situation):
            return slowed
        before = self._before(end, 'the verdict goes no further', command, situation)
        if before is None or (slowed is not None and slowed.scale < before.scale):
            return slowed
        return before

    def _guided(self, command: Command, verdict: Verdict, situation: Situation) -> Finding | None:
        """
        Let the rows run that the verdict names, which were judged whole, and not the chunk's own.

        Execution changes over by itself; only one that doesn't is asked for another chunk.
        """
        named = not verdict.ok and verdict.best_sample >= 0
        if command.source == GUIDED:
            why = 'the verdict is not about the rows that run'
            return None if named else self._before(command.row, why, command, situation)
        end = verdict.executable_rows
        found = self._before(end, f'{verdict.check}: {verdict.reason}', command, situation)
        if found is None or found.scale > 0.0:
            return found
        self._told = verdict
        return self._wish(verdict, found.reason, 0.0, found.escalate)

    def _before(
        self, end: int, why: str, command: Command, situation: Situation
    ) -> Finding | None:
        """Slow down so that the arm rests before row ``end``."""
        scale = self._room(end, command, situation)
        escalate = self._waits(scale, situation)
        if scale >= 1.0:
            return None
        reason = f'row {end} of the chunk may not begin: {why}'
        return Finding(
            Reaction.SLOW, reason, 'chunk', float(command.row), float(end), scale=scale,
            escalate=escalate, chunk_id=command.chunk_id,
        )  # fmt: skip

    def _slowed(self, verdict: Verdict, command: Command, situation: Situation) -> Finding | None:
        config = self.config
        risks = (
            (verdict.risk, 'inside the chunk'),
            (config.end_weight * verdict.risk_end, 'at its end'),
            (config.beyond_weight * verdict.risk_beyond, 'beyond it'),
        )
        risk, where = max(risks)
        share = max(risk - config.risk_from, 0.0) / (1.0 - config.risk_from)
        scale = 1.0 - min(share, 1.0) * (1.0 - config.risk_scale)
        if verdict.speed_scale < scale:
            ahead = self._room(verdict.first_slow_row, command, situation)
            asked = math.hypot(verdict.speed_scale, ahead)  # in time, and not before
            if asked < scale:
                value = float(verdict.speed_scale)
                return Finding(Reaction.SLOW, verdict.reason, 'chunk', value, 1.0, scale=asked)
        if scale >= 1.0:
            return None
        reason = f'risk {risk:.2f} {where}, nearest {verdict.clearance_pair}'
        return Finding(Reaction.SLOW, reason, 'chunk', risk, config.risk_from, scale=scale)

    def _news(self, situation: Situation) -> Finding | None:
        """Ask for another chunk as soon as one is known to be bad, whether it runs or waits."""
        newest = situation.verdicts[-1] if situation.verdicts else None
        if newest is None or newest.ok or newest is self._told or newest.best_sample >= 0:
            return None
        self._told = newest
        return self._wish(newest, f'{newest.check}: {newest.reason}', 1.0, escalate=False)

    @staticmethod
    def _wish(verdict: Verdict, reason: str, scale: float, escalate: bool) -> Finding:
        return Finding(
            Reaction.REPLAN, reason, 'chunk', float(verdict.first_bad_row),
            float(verdict.executable_rows), scale=scale, escalate=escalate,
            chunk_id=verdict.chunk_id, keep_rows=verdict.executable_rows,
        )  # fmt: skip

    def _room(self, end: int, command: Command, situation: Situation) -> float:
        """Return the speed scale from which the fall to 0 ends before row ``end``."""
        row_s = _row_s(command.chunk_id, situation)
        left_s = (end - command.row) * row_s - self._passed_s - 2.0 * situation.period_s
        return math.sqrt(max(2.0 * left_s / FALL_S, 0.0))

    def _waits(self, scale: float, situation: Situation) -> bool:
        """Count how long nothing may run; returns whether that is too long."""
        self._blocked_s += situation.period_s if scale <= 0.0 else 0.0
        return self._blocked_s > self.config.escalate_s

    def _horizon(self, chunk_id: Id, situation: Situation) -> float:
        """
        Return the rows of the chunk that runs, infinity while it was never heard.

        It may outlive the newest ones.
        """
        for heard in situation.chunks:
            if heard.chunk.id == chunk_id:
                self._length = heard.chunk.horizon
        return self._length or math.inf


def verdict_of(situation: Situation, chunk_id: Id) -> Verdict | None:
    """Return the newest verdict of a chunk."""
    for verdict in reversed(situation.verdicts):
        if verdict.chunk_id == chunk_id:
            return verdict
    return None


def _row_s(chunk_id: Id, situation: Situation) -> float:
    for heard in situation.chunks:
        if heard.chunk.id == chunk_id:
            return heard.chunk.dt_s
    return situation.row_s
