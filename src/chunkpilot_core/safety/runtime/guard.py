"""
The guard: runs the checks in order, lets the state machine decide, and moves the setpoint.

Nothing here reads a clock or logs, and the same inputs give the same outputs: a recorded run can
be replayed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.base import Finding, Situation, Stage
from chunkpilot_core.safety.runtime import arming
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.homing import Homing
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.safety.runtime.mover import Aim, Mover
from chunkpilot_core.safety.runtime.report import Reporter, Setpoint
from chunkpilot_core.safety.runtime.rows import RowRecorder
from chunkpilot_core.safety.runtime.target import Stream, TargetSolver
from chunkpilot_core.types import (
    ActionSpace,
    ArmState,
    Command,
    ExecutedRows,
    F64,
    GuardEvent,
    GuardStatus,
    JointState,
    NS_PER_S,
    Observation,
    Reaction,
    SafetyVerdict,
    seconds,
)
import numpy as np

LIVE = (ArmState.ARMED, ArmState.HOLD)
LATCHED = (ArmState.STOPPED, ArmState.ESTOP)


@dataclass(frozen=True, slots=True)
class GuardTick:
    """What a tick gives: ``positions`` (J,) to publish, in the robot's order; None = silence."""

    verdict: SafetyVerdict
    positions: F64 | None
    events: tuple[GuardEvent, ...]
    status: GuardStatus
    status_changed: bool
    speed_scale: float


class Guard:
    """Stands between commands and a robot; told the time by its caller."""

    @dataclass(frozen=True)
    class Config:
        """Rates and counts; limits come from the robot's file only."""

        period_s: float = option(0.01, 'control period', unit='s', min=0.001, max=0.1)
        coast_s: float = option(
            0.03,
            'a moving target goes on this long when its next command is late',
            unit='s',
            min=0.0,
            max=0.1,
        )
        reject_hold: int = option(5, 'more faulty commands within 1 s hold', min=1, max=1000)
        reject_stop: int = option(20, 'more faulty commands within 1 s stop', min=1, max=1000)
        home_fraction: float = option(
            0.3, 'of the velocity and acceleration limits, for move_to', min=0.01, max=1.0
        )
        event_interval_s: float = option(
            1.0, 'equal events are counted, not repeated, this long', unit='s', min=0.0, max=60.0
        )
        row_tolerance: float = option(
            0.001,
            'a row off by more was altered by the guard',
            unit='row units',
            min=1e-6,
            max=1.0,
        )

    def __init__(
        self,
        robot: Robot,
        config: 'Guard.Config | None' = None,
        *,
        machine: Machine.Config | None = None,
        checks: Mapping[str, Any] | None = None,
        extra_checks: Sequence[str] = (),
        epoch: int = 1,
        session: int = 1,
    ) -> None:
        """
        Build the guard of a robot, disarmed.

        :param checks: configurations of checks by name; the others have their defaults
        :param extra_checks: plug-ins run beside the mandatory ones, which can't be left out
        :param epoch: first arm epoch; the node takes the wall clock
        :param session: id of this run in executed rows
        :raises ConfigError: an unknown check, or a limit that is not usable
        """
        self.config = config or self.Config()
        self.robot = robot
        self.kinematics = Kinematics(robot)
        self.limiter = Limiter(robot, robot.position_margin)
        self.machine = Machine(machine or Machine.Config(), epoch)
        self._checks = Checks(extra_checks, checks)
        self._stream = Stream(self.config.period_s, self.config.coast_s)
        self._solver = TargetSolver(robot, self.kinematics)
        self._reporter = Reporter(self.config.event_interval_s)
        self._situation = Situation(
            robot, self.kinematics, self.limiter, self._stream, self.config.period_s
        )
        self._session = session
        self._limits_hash = robot.limits_hash  # 1.5 ms: too dear for every tick
        self._rows: RowRecorder | None = None
        self._mover = Mover(self._situation, self._checks, self.machine.config.ramp_s)
        self._fingers = np.zeros(len(robot.joints) - self.limiter.n_arm)
        self._active = False  # armed since it was disarmed last: the setpoint means something
        self._squeeze: tuple[F64, F64] | None = None
        self._pending: Command | None = None
        self._unreadable = ''
        self._homing: Homing | None = None
        self._at_target = False
        self._estops: dict[str, tuple[bool, int]] = {}
        self._faults: deque[int] = deque(maxlen=self.config.reject_stop + 1)
        self._episode: bool | None = None  # None: nobody announces episodes
        self._tags = ('', '')

    # ---- inputs ---------------------------------------------------------------------------------

    def on_joint_state(self, state: JointState, now_ns: int) -> None:
        """Take a measurement; one that is not whole is kept as an error only."""
        measured = arming.measure(state, self.robot, self._situation.measured)
        if isinstance(measured, str):
            self._situation.joint_error = measured
        else:
            self._situation.joint_error, self._situation.measured = '', measured

    def on_joint_error(self, reason: str, now_ns: int) -> None:
        """Take note of a joint state that could not even be read."""
        self._situation.joint_error = reason

    def on_command(self, command: Command, now_ns: int) -> None:
        """Take a command; the next tick judges it. A newer one replaces it."""
        self._pending = command

    def on_unreadable(self, reason: str, now_ns: int) -> None:
        """Take note of a command that could not even be read: it counts as faulty."""
        self._unreadable = reason

    def on_observation(self, observation: Observation, now_ns: int) -> None:
        """Take the health of an observation."""
        self._situation.observation = observation

    def on_estop(self, asserted: bool, source: str, now_ns: int) -> None:
        """Take an emergency stop message or heartbeat."""
        self._estops[source] = (asserted, self._situation.steady_ns)
        if asserted:  # at once, so that no release before the next tick hides it
            self.machine.estop('estop', f'emergency stop pressed: {source}')
            self._leave_armed()

    def set_space(self, space: ActionSpace, dt_s: float) -> None:
        """Map executed rows into this action space, with this time between rows."""
        rows = self._rows
        if rows is not None and (rows.space, rows.dt_s) == (space, dt_s):
            return
        tolerance = self.config.row_tolerance
        self._rows = RowRecorder(space, dt_s, self.kinematics, tolerance, self._session)
        self._tag_rows()

    def set_episode(self, running: bool, episode_id: str = '', task_id: str = '') -> None:
        """Follow episodes: outside of them a silent sender is normal."""
        if running and not self._episode:
            self._stream.flowed = False
        self._episode = running
        self._tags = (task_id, episode_id) if running else ('', '')
        self._tag_rows()

    # ---- requests -------------------------------------------------------------------------------

    def arm(self, now_ns: int) -> tuple[bool, str]:
        """Arm from where the robot is measured; answers with what stands in the way."""
        why_not = self._why_not_arm()
        measured = self._situation.measured
        if why_not or measured is None:
            return False, why_not
        n = self.limiter.n_arm
        start = arming.start_position(measured.positions, self._squeeze, self.limiter)
        self._mover.start(start, now_ns)
        self._fingers = start[n:].copy()
        self._pending = None
        self._at_target = False
        self._situation.not_before_ns = 0
        self._stream.reset()
        self._faults.clear()
        self._checks.reset()
        self._active = True
        self.machine.arm()
        self._tag_rows()
        return True, 'armed, ramping'

    def disarm(self, now_ns: int) -> tuple[bool, str]:
        """Decelerate, then fall silent."""
        if self.machine.state in LATCHED:
            return False, f'is {self.machine.state.name}, reset instead'
        if self.machine.state is ArmState.DISARMED:
            return True, 'is disarmed'
        self.machine.disarm()
        self._leave_armed()
        self._update_machine(held=False)
        return True, 'disarmed' if self.silent else 'decelerating, then disarmed'

    def hold(self, now_ns: int, reason: str = 'on request') -> tuple[bool, str]:
        """Hold until resumed."""
        if self.machine.state not in LIVE or self.machine.disarming:
            return False, f'is {self.machine.state.name}, only an armed arm can hold'
        self.machine.hold('request', reason, manual=True)
        self._leave_armed()
        return True, 'holding until resumed'

    def resume(self, now_ns: int) -> tuple[bool, str]:
        """End a hold whose causes are gone."""
        machine = self.machine
        if machine.state is not ArmState.HOLD or machine.disarming:
            return False, f'is {machine.state.name}, there is no hold to end'
        held = _holding(self._checks.findings(Stage.INPUT, self._situation))
        if held is not None:
            return False, f'still held by {held.check}: {held.reason}'
        if not self._mover.at_rest:
            return False, 'still decelerating'
        since_ns = machine.since_ns
        machine.release('resumed on request')
        self._released(since_ns)
        return True, 'resumed, ramping'

    def stop(self, now_ns: int, reason: str = 'on request') -> tuple[bool, str]:
        """Stop, latched."""
        self.machine.stop('request', reason)
        self._leave_armed()
        return True, f'is {self.machine.state.name}'

    def reset(self, now_ns: int) -> tuple[bool, str]:
        """Leave STOPPED or ESTOP for DISARMED; never arms."""
        why_not = self._why_not_reset()
        if why_not:
            return False, why_not
        self.machine.reset()
        self._fall_silent()
        self._tag_rows()
        return True, 'disarmed'

    def move_to(self, joints: F64 | None, fraction: float, now_ns: int) -> tuple[bool, str]:
        """
        Move the armed arm to a pose, through the same limiter and checks as everything.

        :param joints: arm joints (n,) or all (J,); None = the robot's home pose
        :param fraction: of the velocity and acceleration limits, 0 = default
        """
        if self.machine.state is not ArmState.ARMED:
            return False, f'is {self.machine.state.name}, must be ARMED'
        fraction = fraction or self.config.home_fraction
        homing = Homing.plan(joints, fraction, self.robot, self.limiter, self._fingers)
        if isinstance(homing, str):
            return False, homing
        self._leave_armed()
        self._homing, self._at_target = homing, False
        self._fingers = homing.goal[self.limiter.n_arm :].copy()
        return True, 'moving'

    def executed(self) -> list[ExecutedRows]:
        """Return the batches of executed rows since the last call."""
        return self._rows.take() if self._rows else []

    @property
    def silent(self) -> bool:
        """Whether nothing is sent to the robot; also when stopped without ever being armed."""
        return not self._active

    # ---- the tick -------------------------------------------------------------------------------

    def tick(self, now_ns: int, steady_ns: int, on_timer: bool = False) -> GuardTick:
        """
        Do one control period; never raises, and never falls silent while armed.

        :param now_ns: ROS time, for stamps and ages
        :param steady_ns: steady clock, for durations
        :param on_timer: no command came in time
        """
        self._tell_time(now_ns, steady_ns)
        findings: list[Finding] = []
        setpoint, command = self._standing(), None
        try:
            held = self._react_to_inputs(findings)
            command = self._take_command(findings)
            if not self.silent:
                setpoint = self._move(command, findings)
            self._update_machine(held or self._recent_faults() > self.config.reject_hold)
        except Exception as error:
            # Whatever is wrong, the arm stops and the robot goes on getting setpoints.
            reason = f'{type(error).__name__}: {error}'
            findings.append(Finding(Reaction.STOP, reason, check='internal_error'))
            self.machine.stop('internal_error', reason)
            self._leave_armed()
            self._mover.brake_blindly()
            setpoint = self._standing()
        return self._report(findings, setpoint, command, on_timer)

    def _tell_time(self, now_ns: int, steady_ns: int) -> None:
        situation, machine = self._situation, self.machine
        situation.last_ns, situation.last_steady_ns = situation.now_ns, situation.steady_ns
        situation.now_ns, situation.steady_ns = now_ns, steady_ns
        machine.tell_time(now_ns, steady_ns)
        situation.state, situation.epoch = machine.state, machine.epoch
        situation.epoch_age_s = seconds(steady_ns - machine.epoch_steady_ns)
        situation.silence_matters = self._stream.flowed and self._episode is not False
        situation.commanded_speed = self._mover.arm_speed
        situation.estops = self._estops

    def _react_to_inputs(self, findings: list[Finding]) -> bool:
        """Run the input checks; returns whether one of them demands a hold."""
        machine = self.machine
        found = list(self._checks.findings(Stage.INPUT, self._situation))
        for finding in found:
            if finding.flush:
                self._flush()
            if finding.reaction is Reaction.ESTOP:
                machine.estop(finding.check, finding.reason)
            elif machine.state in LIVE and finding.reaction is Reaction.STOP:
                machine.stop(finding.check, finding.reason)
            elif machine.state in LIVE and finding.reaction is Reaction.HOLD:
                machine.hold(finding.check, finding.reason)
        if machine.state is not ArmState.ARMED and self._situation.state is ArmState.ARMED:
            self._leave_armed()
        findings.extend(found)
        return _holding(found) is not None

    def _take_command(self, findings: list[Finding]) -> Command | None:
        """Judge the pending command, return it if it is accepted."""
        command, self._pending = self._pending, None
        unreadable, self._unreadable = self._unreadable, ''
        situation, state = self._situation, self.machine.state
        if state not in LIVE or self._homing or self.machine.disarming:
            return None
        if unreadable:
            self._reject(
                None, Finding(Reaction.REJECT_CHUNK, unreadable, check='command'), findings
            )
        if command is None:
            return None
        situation.command = command
        objection = next(self._checks.findings(Stage.COMMAND, situation), None)
        situation.command = None
        if objection is None and state is ArmState.ARMED:
            objection = self._accept(command)
            if objection is None:
                return command
        if objection is not None:
            self._reject(command, objection, findings)
        return None

    def _reject(
        self, command: Command | None, objection: Finding, findings: list[Finding]
    ) -> None:
        findings.append(objection)
        self._reporter.reject(objection, command, self._situation)
        if objection.fault:
            self._count_fault(objection)

    def _accept(self, command: Command) -> Finding | None:
        n, limiter = self.limiter.n_arm, self.limiter
        target = self._solver.solve(command, self._mover.position[:n], self._fingers)
        if isinstance(target, Finding):
            return target
        self._fingers = np.clip(target.joints[n:], limiter.lower[n:], limiter.upper[n:])
        self._stream.accept(command, target, self._situation.now_ns)
        return None

    def _count_fault(self, objection: Finding) -> None:
        self._faults.append(self._situation.steady_ns)
        count = self._recent_faults()
        reason = f'{count} faulty commands within 1 s, newest: {objection.reason}'
        if count > self.config.reject_stop:
            self.machine.stop(objection.check, reason)
        elif count > self.config.reject_hold:
            self.machine.hold(objection.check, reason)
        if self.machine.state is not ArmState.ARMED:
            self._leave_armed()

    def _recent_faults(self) -> int:
        while self._faults and self._situation.steady_ns - self._faults[0] > NS_PER_S:
            self._faults.popleft()
        return len(self._faults)

    def _move(self, command: Command | None, findings: list[Finding]) -> Setpoint:
        """Advance the setpoint by one tick."""
        mover, situation = self._mover, self._situation
        dt = mover.tick_length(command)
        if dt <= 0.0:  # a burst of ticks: the setpoint is repeated, so that nothing speeds up
            return self._standing()
        situation.dt_s = dt
        before, scale = mover.position, self._scale
        source = 'homing' if self._homing else command.source if command else ''
        aim = self._aim(command) if self.machine.state is ArmState.ARMED else None
        step = mover.follow(aim, dt, scale, findings) if aim else mover.brake(dt)
        wrong = mover.send(step, dt)
        if wrong is not None:
            findings.append(wrong)
            self.machine.stop(wrong.check, wrong.reason)
            self._leave_armed()
            return self._standing()
        measured = situation.measured.positions if situation.measured else None
        if command is not None and self._rows is not None:
            self._rows.feed(command, before, mover.position, measured)
        if self._homing is not None and measured is not None:
            done = self._homing.arrived(mover.position, measured, situation.steady_ns)
            if done is not None:
                self._homing, self._at_target = None, done
        requested = aim.target if aim else before
        changed = step.direction_changed
        return Setpoint(requested, mover.position, mover.velocity, changed, scale, source)

    def _aim(self, command: Command | None) -> Aim | None:
        """Return where to go in this tick, None for nowhere."""
        if self._homing is not None:
            still = np.zeros_like(self._homing.goal)
            return Aim(self._homing.goal, still, None, self._homing.fraction, homing=True)
        going = self._stream.at(self._situation.now_ns, exact=command is not None)
        if going is None or self._stream.target is None:
            return None
        return Aim(*going, self._stream.target.clipped)

    # ---- state ----------------------------------------------------------------------------------

    def _update_machine(self, held: bool) -> None:
        since_ns = self.machine.since_ns
        if self.machine.update(held, self._mover.at_rest):
            self._released(since_ns)
        if self.machine.state is ArmState.DISARMED:
            self._fall_silent()

    def _released(self, since_ns: int) -> None:
        """Begin anew after a hold: only what was seen after its start may move the arm."""
        self._situation.not_before_ns = since_ns
        self._stream.pause()
        self._stream.flowed = False
        self._faults.clear()
        self._mover.slow, self._pending = 1.0, None
        self._tag_rows()

    def _leave_armed(self) -> None:
        self._homing = None
        self._stream.pause()
        if self._rows is not None:
            self._rows.interrupt()

    def _flush(self) -> None:
        """Forget what is stamped with a time that no longer counts."""
        situation = self._situation
        situation.measured = situation.observation = None
        situation.not_before_ns = 0
        self._pending = None
        self._mover.restart_clock(situation.now_ns)
        self._stream.pause()
        self.machine.new_epoch()

    def _fall_silent(self) -> None:
        measured, n = self._situation.measured, self.limiter.n_arm
        if self._active and measured is not None:
            self._squeeze = self._mover.position[n:].copy(), measured.positions[n:].copy()
        self._active = False

    def _tag_rows(self) -> None:
        if self._rows is not None:
            self._rows.tag(*self._tags, self.machine.epoch)

    @property
    def _scale(self) -> float:
        return min(self.machine.scale, self._mover.slow)

    def _pressed(self) -> list[str]:
        return [source for source, (asserted, _) in self._estops.items() if asserted]

    def _why_not_arm(self) -> str:
        if self.machine.state is not ArmState.DISARMED:
            return f'is {self.machine.state.name}, must be DISARMED'
        obstacle = self._checks.obstacles(self._situation)
        return obstacle or arming.why_not(self._situation, self._pressed(), limits=True)

    def _why_not_reset(self) -> str:
        machine = self.machine
        if machine.state not in LATCHED:
            return f'is {machine.state.name}, there is nothing to reset'
        why_not = arming.why_not(self._situation, self._pressed(), limits=False)
        if why_not:
            return why_not
        if not machine.cooled_down:
            return f'the last cause is less than {machine.config.cooldown_s:g} s ago'
        return '' if self._mover.at_rest else 'still decelerating'

    # ---- what is told ---------------------------------------------------------------------------

    def _standing(self) -> Setpoint:
        mover = self._mover
        return Setpoint(mover.position, mover.position, mover.velocity, False, self._scale, '')

    def _report(
        self, findings: list[Finding], setpoint: Setpoint, command: Command | None, on_timer: bool
    ) -> GuardTick:
        reporter, situation, machine = self._reporter, self._situation, self.machine
        verdict = reporter.verdict(findings, setpoint, command, on_timer, situation, machine)
        reporter.transitions(machine, situation)
        status, changed = reporter.status(self.status())
        positions = None if self.silent else self._mover.position
        return GuardTick(verdict, positions, reporter.events.take(), status, changed, self._scale)

    def status(self) -> GuardStatus:
        """Return the latched state."""
        machine = self.machine
        disarmed, latched = machine.state is ArmState.DISARMED, machine.state in LATCHED
        why_not = self._why_not_arm() if disarmed else self._why_not_reset() if latched else ''
        return GuardStatus(
            stamp_ns=self._situation.now_ns,
            state=machine.state,
            arm_epoch=machine.epoch,
            since_ns=machine.since_ns,
            ramping=machine.state is ArmState.ARMED and machine.scale < 1.0,
            causes=tuple(machine.causes),
            estop_sources=tuple(self._pressed()),
            can_arm=disarmed and not why_not,
            can_reset=latched and not why_not,
            why_not=why_not,
            moving=self._homing is not None,
            at_target=self._at_target,
            limits_hash=self._limits_hash,
            robot=self.robot.name,
        )


def _holding(findings: Any) -> Finding | None:
    return next((found for found in findings if found.reaction >= Reaction.HOLD), None)
