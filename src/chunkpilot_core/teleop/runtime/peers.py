"""Other teleoperators at the same arm: whoever has control keeps it, and a second one waits."""

from collections import deque

from chunkpilot_core.types import Intervention, nanoseconds, seconds

SOURCE = 'teleop'
"""What every teleoperator is called on ``intervention``."""
FRESH_S = 2.0
"""A teleoperator in control repeats itself; silent for longer, it is not waited for."""
LISTENS_S = 1.0
"""For so long nobody is told that nobody drives: somebody else may, who was not heard yet."""
AHEAD_S = 0.05
"""Clocks of two machines differ by less."""


class Peers:
    """What is heard on ``intervention``, of others and of oneself."""

    def __init__(self) -> None:
        self._own: deque[tuple[int, bool]] = deque(maxlen=64)
        self._other: Intervention | None = None
        self._since_ns = 0

    def said(self, word: Intervention) -> None:
        """Remember one's own words, which come back."""
        self._own.append((word.stamp_ns, word.active))

    def heard(self, word: Intervention) -> None:
        """Take a word."""
        if word.source != SOURCE or (word.stamp_ns, word.active) in self._own:
            return
        if not word.active:
            self._other = None
            return
        if self._other is None:
            self._since_ns = word.stamp_ns
        self._other = word

    def in_control(self, now_ns: int, since_ns: int | None) -> str:
        """
        Return who else has control, '' for nobody.

        :param since_ns: when control was taken here, None = it was not: the earlier one keeps it
        """
        other = self._other
        if other is None or not -AHEAD_S <= seconds(now_ns - other.stamp_ns) <= FRESH_S:
            self._other = None
            return ''
        if since_ns is not None and since_ns <= self._since_ns:
            return ''
        return other.operator_name or 'another teleoperator'


class Announcer:
    """Tells who has control, when that changes and again and again."""

    def __init__(self, peers: Peers, interval_s: float, operator_name: str) -> None:
        self._peers, self._interval_ns = peers, nanoseconds(interval_s)
        self._operator_name = operator_name
        self._began_ns: int | None = None
        self._told_ns: int | None = None

    def tell(
        self, now_ns: int, engaged: bool, was_engaged: bool, reason: str
    ) -> Intervention | None:
        """Return what is to be told in this tick, if anything."""
        if self._began_ns is None or now_ns < self._began_ns:
            self._began_ns = now_ns
        since_ns = None if self._told_ns is None else now_ns - self._told_ns
        due = since_ns is None or not 0 <= since_ns < self._interval_ns
        new = seconds(now_ns - self._began_ns) < LISTENS_S
        if engaged == was_engaged and (not due or (new and not engaged)):
            return None
        return self._word(now_ns, engaged, reason)

    def end(self, now_ns: int, was_engaged: bool, reason: str) -> Intervention | None:
        """Return that control is given back, where it was not somebody else's."""
        if not was_engaged and self._told_ns is None:
            return None
        return self._word(now_ns, False, reason)

    def _word(self, now_ns: int, engaged: bool, reason: str) -> Intervention | None:
        # The guard knows teleoperators by name only: 'nobody drives' would be believed.
        if not engaged and self._peers.in_control(now_ns, None):
            return None
        self._told_ns = now_ns
        # A release is of what was sent in the tick before, not of what this one may begin.
        word = Intervention(
            now_ns,
            SOURCE,
            engaged,
            operator_name=self._operator_name,
            reason='' if engaged else reason,
        )
        self._peers.said(word)
        return word
