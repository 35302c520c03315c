"""A guard that is too slow for its own period guards nothing (D19)."""

from collections import deque
from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction

RECENT = 10  # ticks


class Overrun(Check):
    """Tells of slow ticks, and holds after one that cost more than two periods."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Shares of the control period; what counts is the tick's own CPU time."""

        slow: float = option(0.5, 'costs that are told', unit='periods', min=0.05, max=10.0)
        slow_count: int = option(3, 'of the last 10 ticks that are slow', min=1, max=RECENT)
        hold: float = option(2.0, 'cost that holds', unit='periods', min=0.5, max=100.0)

    name = 'overrun'
    order = 2
    stage = Stage.INPUT
    config: Config

    def __init__(self, config: 'Config | None' = None) -> None:
        super().__init__(config)
        self._slow: deque[bool] = deque(maxlen=RECENT)

    def check(self, situation: Situation) -> Finding | None:
        """Look at the cost of the tick before."""
        cost_s, period_s = situation.tick_cpu_s, situation.period_s
        self._slow.append(cost_s > self.config.slow * period_s)
        if cost_s > self.config.hold * period_s:
            reason = f'the last tick took {cost_s * 1e3:.1f} ms of CPU time'
            limit = self.config.hold * period_s
            return Finding(Reaction.HOLD, reason, 'tick', cost_s, limit)
        if sum(self._slow) < self.config.slow_count:
            return None
        limit = self.config.slow * period_s
        reason = (
            f'{sum(self._slow)} of the last {RECENT} ticks took more than {limit * 1e3:.1f} ms'
        )
        return Finding(Reaction.PASS, reason, 'tick', cost_s, limit)

    def reset(self) -> None:
        """Forget the costs so far."""
        self._slow.clear()
