"""The guard's state machine: DISARMED, ARMED (ramping), HOLD, STOPPED, ESTOP."""

from collections import deque
from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.types import ArmState, seconds


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state and why."""

    before: ArmState
    after: ArmState
    check: str
    reason: str
    epoch: int


class Machine:
    """
    Knows which state follows from which cause; knows nothing of motion.

    Durations are measured on the steady clock, which no jump of ROS time disturbs.
    """

    @dataclass(frozen=True)
    class Config:
        """Times of the state machine."""

        ramp_s: float = option(1.0, 'speed scale 0 to 1 after arming', unit='s', min=0.0, max=30.0)
        release_s: float = option(
            0.5,
            'causes clear this long before a hold releases itself',
            unit='s',
            min=0.0,
            max=60.0,
        )
        hold_timeout_s: float = option(
            30.0, 'a hold becomes a stop', unit='s', min=1.0, max=3600.0
        )
        cooldown_s: float = option(0.5, 'last cause to reset', unit='s', min=0.0, max=60.0)
        ladder_count: int = option(3, 'holds by one cause that stop', min=1, max=100)
        ladder_s: float = option(10.0, 'time in which they count', unit='s', min=0.1, max=3600.0)

    def __init__(self, config: 'Machine.Config', epoch: int) -> None:
        self.config = config
        self.state = ArmState.DISARMED
        self.epoch = epoch
        self.causes: list[str] = []
        self.transitions: list[Transition] = []
        self.since_steady_ns = 0
        self.since_ns = 0
        self.epoch_steady_ns = 0
        self.manual = False
        self.disarming = False
        self._ramp_steady_ns = 0
        self._last_cause_ns = 0
        self._clear_ns: int | None = None
        self._history: dict[str, deque[int]] = {}
        self._now_ns = self._steady_ns = 0

    def tell_time(self, now_ns: int, steady_ns: int) -> None:
        """Take the time of the tick; requests between ticks count as at this time."""
        self._now_ns, self._steady_ns = now_ns, steady_ns

    @property
    def scale(self) -> float:
        """Speed scale of the ramp, 0 to 1; 0 unless armed."""
        if self.state is not ArmState.ARMED:
            return 0.0
        ramped_s = seconds(self._steady_ns - self._ramp_steady_ns)
        return min(1.0, ramped_s / self.config.ramp_s) if self.config.ramp_s > 0.0 else 1.0

    @property
    def cooled_down(self) -> bool:
        """Whether the last cause of a stop lies far enough back for a reset."""
        return seconds(self._steady_ns - self._last_cause_ns) >= self.config.cooldown_s

    def new_epoch(self) -> None:
        """Make everything that was planned so far invalid."""
        self.epoch += 1
        self.epoch_steady_ns = self._steady_ns

    def arm(self) -> None:
        """DISARMED to ARMED, ramping; the guard has checked the preconditions."""
        self.causes.clear()
        self._history.clear()
        self.new_epoch()
        self._ramp_steady_ns = self._steady_ns
        self._enter(ArmState.ARMED, 'arm', 'armed')

    def hold(self, check: str, reason: str, manual: bool = False) -> None:
        """Hold when armed; a cause that comes back too often stops."""
        self._clear_ns = None
        self.manual = self.manual or manual
        if self.state is ArmState.HOLD:
            self._add_cause(f'{check}: {reason}', check)
            return
        if self.state is not ArmState.ARMED:
            return
        self.manual, self.disarming = manual, False
        self.causes = [f'{check}: {reason}']
        self._enter(ArmState.HOLD, check, reason)
        if not manual:
            self._climb(check)

    def disarm(self) -> None:
        """Begin to disarm: hold, and DISARMED as soon as the arm stands."""
        if self.state is ArmState.ARMED:
            self._enter(ArmState.HOLD, 'disarm', 'disarming')
        self.causes = ['disarm: on request']
        self.disarming = True

    def stop(self, check: str, reason: str) -> None:
        """Stop from any state but ESTOP; latched."""
        self._last_cause_ns = self._steady_ns
        self._add_cause(f'{check}: {reason}', check)
        if self.state not in (ArmState.STOPPED, ArmState.ESTOP):
            self._enter(ArmState.STOPPED, check, reason)

    def estop(self, check: str, reason: str) -> None:
        """Emergency stop from any state; latched, causes add up."""
        self._last_cause_ns = self._steady_ns
        self._add_cause(f'{check}: {reason}', check)
        if self.state is not ArmState.ESTOP:
            self._enter(ArmState.ESTOP, check, reason)

    def reset(self) -> None:
        """STOPPED or ESTOP to DISARMED, never further; the guard has checked that it may."""
        self.causes.clear()
        self.new_epoch()
        self._enter(ArmState.DISARMED, 'reset', 'reset')

    def release(self, reason: str) -> None:
        """HOLD to ARMED, ramping, in a new epoch: what was planned before is void."""
        self.causes.clear()
        self.new_epoch()
        self._ramp_steady_ns = self._steady_ns
        self._enter(ArmState.ARMED, 'release', reason)

    def update(self, held: bool, at_rest: bool) -> bool:
        """
        Let time work on a hold.

        :param held: a check demands the hold in this tick
        :param at_rest: nothing is commanded to move
        :returns: whether the hold was released into ARMED
        """
        if self.state is not ArmState.HOLD:
            return False
        if self.disarming:
            if at_rest:
                self.causes.clear()
                self._enter(ArmState.DISARMED, 'disarm', 'at rest')
            return False
        held_s = seconds(self._steady_ns - self.since_steady_ns)
        if held_s > self.config.hold_timeout_s:
            self.stop('hold_timeout', f'held for {held_s:.0f} s')
            return False
        if held or self.manual or not at_rest:
            self._clear_ns = None
        elif self._clear_ns is None:
            self._clear_ns = self._steady_ns
        elif seconds(self._steady_ns - self._clear_ns) >= self.config.release_s:
            self.release('cause cleared')
            return True
        return False

    @property
    def clear(self) -> bool:
        """Whether no check demands the hold any more."""
        return self.state is ArmState.HOLD and (self._clear_ns is not None or self.manual)

    def _climb(self, check: str) -> None:
        times = self._history.setdefault(check, deque(maxlen=self.config.ladder_count))
        times.append(self._steady_ns)
        if len(times) == self.config.ladder_count:
            span_s = seconds(times[-1] - times[0])
            if span_s <= self.config.ladder_s:
                self.stop('ladder', f'{len(times)} holds by {check} within {span_s:.1f} s')

    def _add_cause(self, cause: str, check: str) -> None:
        """Keep one cause a check, with its newest wording, and no more than 16."""
        if any(known.startswith(f'{check}: ') for known in self.causes):
            return
        self.causes = [*self.causes, cause][-16:]

    def _enter(self, state: ArmState, check: str, reason: str) -> None:
        self.transitions.append(Transition(self.state, state, check, reason, self.epoch))
        self.state = state
        self.since_steady_ns, self.since_ns = self._steady_ns, self._now_ns
        self._clear_ns = None
        if state is not ArmState.HOLD:
            self.manual = self.disarming = False
