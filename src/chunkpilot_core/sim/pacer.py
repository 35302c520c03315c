"""
Real-time pacing against absolute deadlines: no drift, bounded bursts, and it says how late it is.
"""

from collections import deque


class Pacer:
    """
    Tells how many steps are due.

    A late wake-up is made up for by several steps at once; what can't be made up for within
    ``max_lag_s`` is given up, in whole periods, and counted.
    """

    def __init__(
        self, period_s: float, now_s: float, max_burst: int = 5, max_lag_s: float = 0.2
    ) -> None:
        """
        Start now; the first step is due one period later.

        :param now_s: any steady clock [s]
        :param max_burst: most steps of one wake-up
        """
        self.period_s = period_s
        self.slipped_s = 0.0
        self.lag_s = 0.0
        self._max_burst = max_burst
        self._max_lag_s = max_lag_s
        self._start_s = now_s
        self._done = 0
        self._history: deque[tuple[float, int]] = deque()
        self._total = 0

    def due(self, now_s: float) -> int:
        """Return how many steps are to be run now; they count as run."""
        behind = int((now_s - self._start_s) / self.period_s + 1e-9) - self._done
        steps = max(0, min(behind, self._max_burst))
        self._done += steps
        self._total += steps
        self.lag_s = max(0.0, now_s - self._start_s - (self._done + 1) * self.period_s)
        if self.lag_s > self._max_lag_s:
            periods = int(self.lag_s / self.period_s)
            self._done += periods
            self.slipped_s += periods * self.period_s
        self._history.append((now_s, self._total))
        while now_s - self._history[0][0] > 1.0 and len(self._history) > 2:
            self._history.popleft()
        return steps

    @property
    def rate_hz(self) -> float:
        """Steps per second over the last second."""
        if len(self._history) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._history[0], self._history[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
