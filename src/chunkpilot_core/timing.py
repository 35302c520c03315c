"""Estimates of time that need no clock: inference delay, and lateness of a periodic loop."""

from collections import deque
from collections.abc import Iterable
import math

from chunkpilot_core.types import NS_PER_S


class DelayEstimator:
    """
    Sliding-window quantile of the delay from request to chunk.

    The first answer after a (re)start pays for loading and compiling: it is kept apart as
    ``cold_start_s`` and stands in only until a warm answer is known.
    """

    def __init__(self, window: int = 64, quantile: float = 0.95, initial_s: float = 0.1) -> None:
        self.cold_start_s = math.nan
        self._quantile = quantile
        self._initial_s = initial_s
        self._delays: deque[float] = deque(maxlen=window)
        self._cold = True
        self._value = initial_s

    def restart(self) -> None:
        """Take the next answer for a cold one: another policy serves, or it was reloaded."""
        self._cold = True

    def add(self, delay_s: float) -> None:
        """Count one answer."""
        if self._cold:
            self._cold = False
            self.cold_start_s = delay_s
        else:
            self._delays.append(delay_s)
        self._value = self.at(self._quantile)

    def remember(self, delays_s: Iterable[float]) -> None:
        """Take delays that were measured earlier, oldest first; the next answer is not cold."""
        self._delays.extend(delays_s)
        self._cold = self._cold and not self._delays
        self._value = self.at(self._quantile)

    @property
    def warm(self) -> bool:
        """Whether any answer but a cold one is known."""
        return bool(self._delays)

    @property
    def value_s(self) -> float:
        """Delay to plan with [s]."""
        return self._value

    def at(self, quantile: float) -> float:
        """
        Return a quantile of the window [s].

        Rounded up as in conformal prediction, so that few samples give their largest.
        """
        if not self._delays:
            return self._initial_s if math.isnan(self.cold_start_s) else self.cold_start_s
        ordered = sorted(self._delays)
        rank = math.ceil(quantile * (len(ordered) + 1))
        return ordered[min(max(rank, 1), len(ordered)) - 1]


class Pacer:
    """
    Lateness of ticks against absolute deadlines on the steady clock.

    The grid's phase follows the earliest tick; after an overrun the missed deadlines are skipped,
    not made up for.
    """

    def __init__(self, period_s: float) -> None:
        self._period_ns = round(period_s * NS_PER_S)
        self._deadline_ns: int | None = None

    def lateness_s(self, steady_ns: int) -> float:
        """Return how late a tick at ``steady_ns`` is [s], and expect the next one."""
        if self._deadline_ns is None or steady_ns < self._deadline_ns:
            self._deadline_ns = steady_ns
        late = steady_ns - self._deadline_ns
        self._deadline_ns += self._period_ns * (1 + late // self._period_ns)
        return late / NS_PER_S
