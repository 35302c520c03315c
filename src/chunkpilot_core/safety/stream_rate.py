"""
Commands that come too seldom, or in bursts, move the arm in fits: it is slowed down (row 20).

With less speed there is less to brake and to catch up between two of them; silence is another
check's business.
"""

from collections import deque
from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction


class StreamRate(Check):
    """Compares the ticks that had a new command with all ticks of a window."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """How many of them are few."""

        window_s: float = option(0.5, 'time that is looked at', unit='s', min=0.1, max=10.0)
        share: float = option(
            0.4, 'of the ticks with a new command, below which it is slow', min=0.0, max=0.9
        )
        scale: float = option(0.3, 'speed scale then', min=0.05, max=1.0)

    name = 'stream_rate'
    order = 5
    stage = Stage.INPUT
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self._fresh: deque[bool] = deque()
        self._last_ns = self._count = 0

    def check(self, situation: Situation) -> Finding | None:
        """Count."""
        flow = situation.flow
        if flow.accepted is None or not situation.silence_matters:
            self.reset()
            return None
        window = max(round(self.config.window_s / situation.period_s), 2)
        fresh = flow.accepted_ns != self._last_ns
        self._fresh.append(fresh)
        self._count += fresh
        self._last_ns = flow.accepted_ns
        if len(self._fresh) > window:
            self._count -= self._fresh.popleft()
        share = self._count / len(self._fresh)
        if len(self._fresh) < window or share >= self.config.share:
            return None
        reason = f'only {share:.0%} of the ticks of {self.config.window_s:g} s had a new command'
        return Finding(
            Reaction.SLOW, reason, 'command', share, self.config.share, scale=self.config.scale
        )

    def reset(self) -> None:
        """Begin a new window."""
        self._fresh.clear()
        self._last_ns = self._count = 0
