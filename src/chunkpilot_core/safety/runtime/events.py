"""Events for humans: one per transition or rejection; repeated ones are counted, not repeated."""

from dataclasses import replace

from chunkpilot_core.types import GuardEvent, Id, NS_PER_S

KEPT = 256  # kinds of events whose repetitions are counted: names of obstacles may be ever new
REPLAN_NS = NS_PER_S // 10  # between wishes for another chunk: each costs an inference


class EventLog:
    """Collects events of a tick and keeps equal ones apart by at least ``interval_s``."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ns = round(interval_s * NS_PER_S)
        self._last: dict[tuple[str, str, str], tuple[int, Id]] = {}
        self._suppressed: dict[tuple[str, str, str], int] = {}
        self._events: list[GuardEvent] = []

    def add(self, event: GuardEvent, steady_ns: int) -> None:
        """Take an event; transitions are never suppressed."""
        key = (event.kind, event.check, event.joint)
        last = self._last.get(key)
        repeated = last is not None and steady_ns - last[0] < self._apart_ns(event, last[1])
        if repeated and event.kind != 'transition':
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        self._last.pop(key, None)  # newest last
        self._last[key] = (steady_ns, event.chunk_id)
        if len(self._last) > KEPT:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._suppressed.pop(oldest, None)
        self._events.append(replace(event, suppressed=self._suppressed.pop(key, 0)))

    def _apart_ns(self, event: GuardEvent, last: Id) -> int:
        """Return how long equal events are kept apart; another bad chunk is other news."""
        if event.kind == 'replan' and event.chunk_id != last:
            return min(REPLAN_NS, self._interval_ns)
        return self._interval_ns

    def take(self) -> tuple[GuardEvent, ...]:
        """Return what is to be published, and forget it."""
        events, self._events = tuple(self._events), []
        return events
