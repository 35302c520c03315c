"""
Judges every tick of a guard from outside: limits, and what the guard promises whatever comes in.

It knows the robot's limits and what it was told, nothing of how the guard works.
"""

from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.guard import GuardTick
from chunkpilot_core.types import ArmState, F64, Reaction
import numpy as np

LATCHED = (ArmState.STOPPED, ArmState.ESTOP)
LIVE = (ArmState.ARMED, ArmState.HOLD)
EXACT = 1e-9  # relative, of velocity and acceleration limits
LAG = 1.2  # periods by which stamps may be behind, and the motion with them
BUGS = ('internal_error', 'output_assert')  # checks that find defects of the guard itself


class Judge:
    """Compares each tick with the one before."""

    def __init__(self, robot: Robot, period_s: float) -> None:
        self._period_s = period_s
        self._names = robot.joints
        self._n_arm = len(robot.arm_joints)
        self._lower = robot.limit_array('min_position')
        self._upper = robot.limit_array('max_position')
        self._fastest = robot.limit_array('max_velocity')
        self._strongest = robot.limit_array('max_acceleration')
        self._position: F64 | None = None
        self._velocity = np.zeros(len(self._names))
        self._state = ArmState.DISARMED
        self.ticks = 0
        self._budget_s = 0.0  # time in which the arm may have moved, since it was armed
        self._spent_s = 0.0  # time that it needed at least, at its fastest
        self._resting = False

    def look(self, tick: GuardTick, passed_s: float, jumped: bool, asked: set[str]) -> list[str]:
        """
        Return what is wrong with a tick; what begins with ``limit`` is a violated limit.

        :param passed_s: ROS time since the tick before
        :param jumped: whether the clock did
        :param asked: requests that succeeded since the tick before
        """
        wrong = [*self._machine(tick, asked), *self._words(tick)]
        longest_s = min(max(passed_s, 0.0) + LAG * self._period_s, 3.0 * self._period_s)
        self._budget_s += longest_s if jumped else min(max(passed_s, 0.0), 3.0 * self._period_s)
        if tick.positions is None:
            self._position = None
        else:
            wrong += self._limits(tick, longest_s)
        self._state = tick.verdict.state
        return wrong

    def _limits(self, tick: GuardTick, longest_s: float) -> list[str]:
        position, velocity = tick.positions, tick.verdict.sent_velocity
        assert position is not None
        before, self._position = self._position, position
        velocity_before, self._velocity = self._velocity, velocity
        if not (np.isfinite(position).all() and np.isfinite(velocity).all()):
            return [f'limit: not finite: {position}, {velocity}']
        wrong = []
        beyond = np.maximum(position - self._upper, self._lower - position)
        self._note(wrong, 'position', beyond, np.full(len(beyond), 1e-9))
        if before is None:  # just armed: there is nothing to compare with
            self._budget_s, self._spent_s = self._period_s, 0.0
            return wrong
        speed = self._fastest * (1 + EXACT)
        self._note(wrong, 'velocity', np.abs(velocity), speed)
        moved = np.abs(position - before)
        self._note(wrong, 'step', moved, speed * longest_s * (1 + 1e-6) + 1e-12)
        change = np.abs(velocity - velocity_before)
        self._note(wrong, 'acceleration', change, self._strongest * longest_s * (1 + 1e-6) + 1e-9)
        self._spent_s += float((moved / self._fastest).max())
        if self._spent_s > self._budget_s + 2.0 * self._period_s:
            wrong.append(f'limit: moved {self._spent_s:.3f} s within {self._budget_s:.3f} s')
        return wrong

    def _note(self, wrong: list[str], what: str, values: F64, limits: F64) -> None:
        for i in np.flatnonzero(~(values <= limits)):
            wrong.append(f'limit: {what} of {self._names[i]} {values[i]!r}, allowed {limits[i]!r}')

    def _machine(self, tick: GuardTick, asked: set[str]) -> list[str]:
        wrong = []
        state, before = tick.verdict.state, self._state
        if tick.status.state is not state:
            wrong.append(f'verdict says {state.name}, status {tick.status.state.name}')
        if state in LIVE and tick.positions is None:
            wrong.append(f'silent in {state.name}')
        if state is ArmState.DISARMED and tick.positions is not None:
            wrong.append('sends while DISARMED')
        if before in LATCHED and state not in LATCHED and 'reset' not in asked:
            wrong.append(f'{before.name} -> {state.name} without a reset')
        if before is ArmState.ESTOP and state is ArmState.STOPPED and 'reset' not in asked:
            wrong.append('ESTOP -> STOPPED')
        if before in (*LATCHED, ArmState.DISARMED) and state in LIVE and 'arm' not in asked:
            wrong.append(f'{before.name} -> {state.name} without arming')
        if 'pressed' in asked and state is not ArmState.ESTOP:
            wrong.append(f'emergency stop pressed, but {state.name}')
        wrong += self._standstill(tick)
        return wrong

    def _standstill(self, tick: GuardTick) -> list[str]:
        """Once at rest in a hold or stop, the setpoint is constant."""
        still = tick.verdict.state in (ArmState.HOLD, *LATCHED) and tick.positions is not None
        rested, before = self._resting, self._position
        self._resting = still and not tick.verdict.sent_velocity.any()
        if not (still and rested) or before is None or tick.positions is None:
            return []
        if np.array_equal(tick.positions, before):
            return []
        return [f'moves again in {tick.verdict.state.name}']

    def _words(self, tick: GuardTick) -> list[str]:
        verdict = tick.verdict
        self.ticks += 1
        wrong = []
        if sum(verdict.counters) != self.ticks or verdict.tick != self.ticks:
            wrong.append(f'counters {verdict.counters} after {self.ticks} ticks')
        if verdict.reaction is not Reaction.PASS and not (verdict.check and verdict.reason):
            wrong.append(f'{verdict.reaction.name} without a reason')
        if verdict.check in BUGS:
            wrong.append(f'{verdict.check}: {verdict.reason}')
        return wrong
