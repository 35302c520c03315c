"""Whether the arm may be moved now, and what has to be forgotten when that changes."""

from enum import Enum

from chunkpilot_core.types import ArmState, GuardStatus


class Change(Enum):
    """What a change of guard, episode or task does to what is planned."""

    NONE = 0
    DROP = 1  # hold where the arm is, and plan anew
    RESTART = 2  # no command before a new first chunk, which counts from the measured pose


class Gate:
    """Follows guard, episode and task; commands flow only while all three allow it."""

    def __init__(self) -> None:
        self.status: GuardStatus | None = None
        self.task_id = ''
        self.episode_id = ''
        self.armed_ns = 0
        self.not_before_ns = 0  # older observations must not be acted on
        self._episode = False

    @property
    def open(self) -> bool:
        """Whether commands may flow."""
        return self._episode and _ready(self.status)

    @property
    def arm_epoch(self) -> int:
        """Epoch in force, 0 before the guard was heard."""
        return self.status.arm_epoch if self.status else 0

    def guard(self, status: GuardStatus, now_ns: int) -> Change:
        """Follow the guard."""
        old, self.status = self.status, status
        if old is not None and (old.arm_epoch, _ready(old)) == (status.arm_epoch, _ready(status)):
            return Change.NONE
        if _ready(status):
            self.armed_ns = now_ns
        if _ready(old):  # what was observed since the stop began may be acted on, if it was seen
            stop_ns = now_ns if _ready(status) else min(status.since_ns, now_ns)
            self.not_before_ns = max(self.not_before_ns, stop_ns)
        return Change.RESTART

    def episode(self, running: bool, task_id: str, now_ns: int, episode_id: str) -> Change:
        """Follow episodes; one without a task does not run."""
        running = running and bool(task_id)
        same = self._episode and running and episode_id == self.episode_id
        if (same and task_id == self.task_id) or not (running or self._episode):
            return Change.NONE
        self._episode, self.task_id = running, task_id if running else ''
        if running:
            self.episode_id = episode_id
            self.not_before_ns = max(self.not_before_ns, now_ns)
        return Change.DROP if same else Change.RESTART

    def clock_jumped(self, now_ns: int) -> None:
        """Start over after a jump of the clock: stamps from before it mean nothing."""
        self.not_before_ns = now_ns
        self.armed_ns = min(self.armed_ns, now_ns)


def _ready(status: GuardStatus | None) -> bool:
    return status is not None and status.state is ArmState.ARMED and not status.moving
