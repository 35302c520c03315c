"""Events for humans: one per transition or rejection; repeated ones are counted, not repeated."""

from dataclasses import replace

from chunkpilot_core.types import GuardEvent, NS_PER_S


class EventLog:
    """Collects events of a tick and keeps equal ones apart by at least ``interval_s``."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ns = round(interval_s * NS_PER_S)
        self._last: dict[tuple[str, str, str], int] = {}
        self._suppressed: dict[tuple[str, str, str], int] = {}
        self._events: list[GuardEvent] = []

    def add(self, event: GuardEvent, steady_ns: int) -> None:
        """Take an event; transitions are never suppressed."""
        key = (event.kind, event.check, event.joint)
        last = self._last.get(key)
        if (
            event.kind != 'transition'
            and last is not None
            and steady_ns - last < self._interval_ns
        ):
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        self._last[key] = steady_ns
        self._events.append(replace(event, suppressed=self._suppressed.pop(key, 0)))

    def take(self) -> tuple[GuardEvent, ...]:
        """Return what is to be published, and forget it."""
        events, self._events = tuple(self._events), []
        return events
