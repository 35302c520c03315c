"""
Who drives: of those who send commands, the one of the highest priority, as in twist_mux.

A source that falls silent gives control back. An announced intervention is a lock: it keeps those
of lower priority out although nothing is commanded, and one whose announcer falls silent stays
locked, as nobody knows what the human there expects.
"""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.types import Command, Intervention, nanoseconds, NS_PER_S, seconds

POLICY, TELEOP = 10, 100
PRIORITIES = {'teleop': TELEOP, 'human': TELEOP, 'disturbance': TELEOP}
"""By source of a command; whoever is not named here speaks for the policy."""
MAX_LOCKS = 16


def priority_of(source: str) -> int:
    """Return the priority of a command's source."""
    return PRIORITIES.get(source, POLICY)


class Arbiter:
    """Decides command by command; told the time by its caller."""

    @dataclass(frozen=True)
    class Config:
        """When control goes back."""

        teleop_timeout_s: float = option(
            0.2,
            'a teleoperator silent for longer, and not announced as intervening, has let go',
            unit='s',
            min=0.02,
            max=5.0,
        )

    def __init__(self, config: 'Arbiter.Config | None' = None) -> None:
        self.config = config or self.Config()
        self._timeout_ns = nanoseconds(self.config.teleop_timeout_s)
        self.reset()

    def reset(self) -> None:
        """Forget everybody: nobody has control."""
        self.holder = 0
        """Priority of who has control, 0 = nobody."""
        self._heard_ns = self._stamp_ns = 0  # of the holder's newest command
        self._locks: dict[str, tuple[int, int]] = {}  # priority and stamp
        self._let_go_ns: dict[int, int] = {}

    @property
    def locked(self) -> int:
        """Highest priority of an announced intervention, 0 = none."""
        return max((priority for priority, _ in self._locks.values()), default=0)

    @property
    def by_hand(self) -> bool:
        """Whether somebody above the policy drives, or has announced it."""
        return max(self.holder, self.locked) > POLICY

    def intervene(self, word: Intervention) -> bool:
        """
        Take an announcement.

        :returns: whether the holder of control has let go by it
        """
        priority, since_ns = self._locks.get(word.source, (word.priority, 0))
        if word.stamp_ns < since_ns:
            return False
        if word.active:
            if word.source in self._locks or len(self._locks) < MAX_LOCKS:
                self._locks[word.source] = word.priority, word.stamp_ns
            return False
        self._locks.pop(word.source, None)
        # Commands come on a topic of their own: older ones may still be on their way, and newer
        # ones, of somebody who has taken control again, may be there already.
        self._let_go_ns[priority] = max(word.stamp_ns, self._let_go_ns.get(priority, 0))
        if self.holder == priority and word.stamp_ns < self._stamp_ns:
            return False
        return self._give_back(priority)

    def expire(self, now_ns: int) -> str:
        """Return why the holder has lost control by now, '' where that is not so."""
        if self.holder <= POLICY or self.locked >= self.holder:
            return ''
        silent_ns = now_ns - self._heard_ns
        if 0 <= silent_ns <= self._timeout_ns:
            return ''
        self._give_back(self.holder)
        return f'silent for {seconds(silent_ns):.2f} s'

    def admit(self, command: Command, now_ns: int) -> bool:
        """Return whether a command may drive; it has control from then on."""
        priority = priority_of(command.source)
        if self.locked > priority or self.holder > priority:
            return False
        # A clock that was set back makes earlier announcements mean nothing.
        if command.stamp_ns <= self._let_go_ns.get(priority, 0) < now_ns + NS_PER_S:
            return False
        self.holder, self._heard_ns, self._stamp_ns = priority, now_ns, command.stamp_ns
        return True

    def _give_back(self, priority: int) -> bool:
        held = self.holder == priority and priority > POLICY
        if held:
            self.holder = 0
        return held
