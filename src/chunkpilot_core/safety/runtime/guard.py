"""
The guard: runs the checks in order, lets the state machine decide, and moves the setpoint.

Nothing here reads a clock or logs, and the same inputs give the same outputs: a recorded run can
be replayed.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any

from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.clearance.runtime.bodies import ObstacleList
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.base import Finding, Situation, Stage
from chunkpilot_core.safety.runtime import arming, calibration
from chunkpilot_core.safety.runtime.arbiter import Arbiter, POLICY
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.gate import Gate
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.safety.runtime.homing import Homing
from chunkpilot_core.safety.runtime.intake import Intake
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.safety.runtime.moments import Moment
from chunkpilot_core.safety.runtime.mover import Aim, Mover
from chunkpilot_core.safety.runtime.report import Reporter, Setpoint
from chunkpilot_core.safety.runtime.rows import RowRecorder
from chunkpilot_core.safety.runtime.target import Stream, TargetSolver
from chunkpilot_core.safety.runtime.tightening import Tightening
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    ArmState,
    ChunkVerdict,
    Command,
    ExecutedRows,
    F64,
    GuardEvent,
    GuardStatus,
    Intervention,
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
REPLANS = (Reaction.REJECT_CHUNK, Reaction.REPLAN)


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
        calibration: str = option(
            '',
            'file of `chunkpilot calibrate guard`, or a name in config/guard; without one the '
            'detectors of behaviour only tell',
        )
        distances: str = option(
            'auto',
            "how distances are computed, a plug-in of the family clearance; 'auto': pybullet "
            'where it is there and the robot has a URDF, else capsules',
        )

    def __init__(
        self,
        robot: Robot,
        config: 'Guard.Config | None' = None,
        *,
        machine: Machine.Config | None = None,
        arbiter: Arbiter.Config | None = None,
        gate: GateConfig | None = None,
        tightening: Tightening | None = None,
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
        self._arbiter = Arbiter(arbiter)
        self._held: Finding | None = None  # what demanded a hold in the last tick
        self._checks = Checks(extra_checks, checks)
        self._stream = Stream(self.config.period_s, self.config.coast_s)
        self._solver = TargetSolver(robot, self.kinematics)
        self._reporter = Reporter(self.config.event_interval_s)
        self._situation = Situation(
            robot, self.kinematics, self.limiter, self._stream, self.config.period_s
        )
        self._situation.clearance = choice.make(self.config.distances, robot)
        self._gate = Gate(gate, self._situation)
        self._session = session
        self._limits_hash = robot.limits_hash  # 1.5 ms: too dear for every tick
        self._rows: RowRecorder | None = None
        self._intake = Intake(self._situation, self._checks, self._reporter)
        if self.config.calibration:
            self._intake.calibrate(calibration.load(self.config.calibration))
        self._mover = Mover(self._situation, self._checks, self.machine.config.ramp_s)
        self._fingers = np.zeros(len(robot.joints) - self.limiter.n_arm)
        self._withheld = False  # something of the newest command
        self.tightening = Tightening()
        self.tighten(tightening or Tightening(), 0)
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
        self._done: tuple[list[Finding], Setpoint, Command | None] = [], self._standing(), None

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

    def on_command(self, command: Command, now_ns: int) -> bool:
        """
        Take a command; the next tick judges it. A newer one replaces it.

        :returns: whether its sender has control; otherwise it is dropped without a fault, as
            whoever is overridden does nothing wrong by going on
        """
        before = self._arbiter.holder
        if not self._arbiter.admit(command, now_ns):
            return False
        if self._arbiter.holder not in (before, POLICY):
            self._change_hands(f'{command.source} has control')
        self._pending = command
        return True

    def on_intervention(self, word: Intervention, now_ns: int) -> None:
        """Take the announcement that somebody takes control or gives it back."""
        if self._arbiter.intervene(word):
            self._let_go(f'{word.source} has given control back')

    def on_unreadable(self, reason: str, now_ns: int) -> None:
        """Take note of a command that could not even be read: it counts as faulty."""
        self._unreadable = reason

    def on_observation(self, observation: Observation, now_ns: int) -> None:
        """Take the health of an observation."""
        self._situation.observation = observation

    def on_obstacles(self, told: ObstacleList | str, now_ns: int) -> None:
        """Take all obstacles there are, or why they can't be read: then the old ones stay."""
        situation = self._situation
        try:
            if isinstance(told, str):
                raise InvalidDataError(told)
            if situation.clearance is None:
                raise InvalidDataError(f'the shape of {self.robot.name} is not known')
            situation.clearance.set_obstacles(told.obstacles)
            situation.obstacles, situation.obstacles_error = told, ''
            situation.nearest = {}  # to what may be gone; measured anew with the next motion
        except InvalidDataError as error:
            situation.obstacles_error = str(error)
            reason = f'obstacles refused, the old ones stay: {error}'
            self._reporter.tell(Finding(Reaction.PASS, reason, check='obstacles'), situation)

    def on_chunk(self, chunk: ActionChunk, now_ns: int) -> None:
        """
        Take a chunk: the checks look at it once, and the next tick reacts, before any of its rows.

        Chunks of another epoch are nobody's business: no command of them is accepted either.
        """
        if chunk.arm_epoch != self.machine.epoch or self.machine.state not in LIVE or self.silent:
            return
        self._intake.begin(self.machine.epoch)
        self._intake.take(chunk, now_ns, self._mover.position)

    def on_chunk_verdict(self, verdict: ChunkVerdict, now_ns: int) -> None:
        """Take what predict_node makes of a chunk."""
        self._intake.begin(self.machine.epoch)
        self._intake.take_verdict(verdict)

    def tell_of_chunks(self, witness: Callable[[Moment], None] | None) -> None:
        """Tell somebody of each chunk that comes, to calibrate with."""
        self._intake.witness = witness

    def on_cost(self, cpu_s: float, now_ns: int) -> None:
        """Take what the last tick cost; it is an input, as nothing here reads a clock."""
        self._situation.tick_cpu_s = cpu_s

    def on_estop(self, asserted: bool, source: str, now_ns: int) -> None:
        """Take an emergency stop message or heartbeat."""
        self._estops[source] = (asserted, self._situation.steady_ns)
        if asserted:  # at once, so that no release before the next tick hides it
            self.machine.estop('estop', f'emergency stop pressed: {source}')
            self._leave_armed()

    def set_space(self, space: ActionSpace, dt_s: float, policy: str = '') -> None:
        """
        Map executed rows into this action space, with this time between rows.

        :param policy: name of whose rows they are, for the calibration
        :raises InvalidDataError: a time that rows can't have
        """
        if not (math.isfinite(dt_s) and dt_s >= self.config.period_s / 2.0):
            raise InvalidDataError(
                f'{dt_s} s between rows, at least half a period of the guard is allowed'
            )
        self._intake.set_space(space, dt_s, policy)
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
        if running and (not self._episode or (task_id, episode_id) != self._tags):
            self._situation.episode_ns = self._situation.now_ns
            self._intake.begin_episode()
            for detector in self._checks.detectors.values():
                detector.reset()
        self._situation.episode_over = not running
        self._episode = running
        self._tags = (task_id, episode_id) if running else ('', '')
        self._tag_rows()

    # ---- requests -------------------------------------------------------------------------------

    def arm(self, now_ns: int) -> tuple[bool, str]:
        """Arm from where the robot is measured; answers with what stands in the way."""
        return self._arm(now_ns, arming.ROUNDING)

    def recover(self, now_ns: int) -> tuple[bool, str]:
        """
        Arm an arm that is a little outside its hard limits: joints that are may move inwards only.

        Everything else is as after :meth:`arm`; go on with :meth:`move_to`.
        """
        return self._arm(now_ns, arming.RECOVERABLE)

    def _arm(self, now_ns: int, beyond: float) -> tuple[bool, str]:
        why_not = self._why_not_arm(beyond)
        measured = self._situation.measured
        if why_not or measured is None:
            return False, why_not
        n = self.limiter.n_arm
        start = arming.start_position(measured.positions, self._squeeze, self.limiter, beyond)
        self._mover.start(start, now_ns)
        self._fingers = start[n:].copy()
        self._pending = None
        self._at_target = False
        self._situation.not_before_ns = 0
        self._stream.reset()
        self._arbiter.reset()
        self._faults.clear()
        self._checks.reset()
        self._gate.reset()
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
        if self._held is not None:
            return False, f'still held by {self._held.check}: {self._held.reason}'
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

    def approve(
        self, channel: str, approved: bool, now_ns: int, operator: str = ''
    ) -> tuple[bool, str]:
        """
        Let an irreversible action that waits for a human happen, or deny it.

        :param channel: what waits, '' for the only one that does
        """
        return self._gate.approve(channel, approved, operator)

    def tighten(self, wanted: Tightening, now_ns: int) -> tuple[bool, str]:
        """Make limits stricter; the arm slows down to them without a jump. Never looser."""
        looser = wanted.looser_than(self.tightening)
        if looser:
            return False, f'{looser}: limits are loosened by a restart only'
        self.tightening = wanted
        self._mover.ceiling = wanted.velocity_fraction
        self._situation.tool_speed_limit = wanted.tool_limit
        limit = min(wanted.tool_limit, self.robot.max_tool_speed)
        return (
            True,
            f'speed at most {wanted.velocity_fraction:g} of its limits, tool {limit:g} m/s',
        )

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Channels of which an irreversible action waits."""
        return self._gate.waits_for

    def executed(self) -> list[ExecutedRows]:
        """Return the batches of executed rows since the last call."""
        return self._rows.take() if self._rows else []

    @property
    def silent(self) -> bool:
        """Whether nothing is sent to the robot; also when stopped without ever being armed."""
        return not self._active

    def watched(self) -> dict[str, str]:
        """Return what the checks of contact and behaviour look at, and what they do not."""
        measured = self._situation.measured
        efforts = (
            'checked' if self.robot.max_effort else 'not checked: the robot file has no limit'
        )
        if self.robot.max_effort and (measured is None or measured.efforts is None):
            efforts = 'not checked: the driver reports none'
        return {'efforts': efforts, **self._intake.watched()}

    # ---- the tick -------------------------------------------------------------------------------

    def tick(self, now_ns: int, steady_ns: int, on_timer: bool = False) -> GuardTick:
        """Do one control period: :meth:`advance`, then :meth:`report`."""
        self.advance(now_ns, steady_ns)
        return self.report(on_timer)

    def advance(self, now_ns: int, steady_ns: int) -> tuple[F64 | None, Command | None]:
        """
        Move on by one control period; never raises, and never falls silent while armed.

        :param now_ns: ROS time, for stamps and ages
        :param steady_ns: steady clock, for durations
        :returns: positions (J,) to send at once, None = silence, and the command followed, if any
        """
        silent = self._arbiter.expire(now_ns)
        if silent:
            self._let_go(f'control is given back: {silent}')
        self._tell_time(now_ns, steady_ns)
        findings: list[Finding] = []
        setpoint, command = self._standing(), None
        try:
            if self._gate.active:
                self._gate.watch(self._mover.position, self._mover.tool)
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
        self._done = findings, setpoint, command
        return None if self.silent else self._mover.position, command

    def _tell_time(self, now_ns: int, steady_ns: int) -> None:
        situation, machine = self._situation, self.machine
        situation.last_ns, situation.last_steady_ns = situation.now_ns, situation.steady_ns
        situation.now_ns, situation.steady_ns = now_ns, steady_ns
        machine.tell_time(now_ns, steady_ns)
        if machine.epoch != situation.epoch:
            self._intake.begin(machine.epoch)
        situation.state, situation.epoch = machine.state, machine.epoch
        situation.epoch_age_s = seconds(steady_ns - machine.epoch_steady_ns)
        situation.speed_scale = self._scale
        situation.silence_matters = self._stream.flowed and self._episode is not False
        situation.policy_drives = self._homing is None and not self._arbiter.by_hand
        situation.commanded = None if self.silent else self._mover.position
        situation.commanded_speed = self._mover.arm_speed
        situation.estops = self._estops

    def _react_to_inputs(self, findings: list[Finding]) -> bool:
        """Run the input checks; returns whether one of them demands a hold."""
        machine = self.machine
        found = self._intake.findings()
        found += self._checks.findings(Stage.INPUT, self._situation)
        for told in (finding for finding in found if finding.reaction is Reaction.PASS):
            self._reporter.tell(told, self._situation)
        found = [finding for finding in found if finding.reaction is not Reaction.PASS]
        for finding in found:
            if finding.flush:
                self._flush()
            if finding.reaction in REPLANS and machine.state is ArmState.ARMED:
                self._reporter.replan(finding, self._situation)
            if finding.reaction is Reaction.ESTOP:
                machine.estop(finding.check, finding.reason)
            elif machine.state in LIVE and finding.reaction is Reaction.STOP:
                machine.stop(finding.check, finding.reason)
            elif machine.state in LIVE and finding.reaction is Reaction.HOLD:
                machine.hold(finding.check, finding.reason)
        if machine.state is not ArmState.ARMED and self._situation.state is ArmState.ARMED:
            self._leave_armed()
        findings.extend(found)
        self._held = _holding(found)
        return self._held is not None

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
        objection = objection or self._intake.refusal(command.chunk_id)
        if objection is None and state is ArmState.ARMED:
            objection = self._accept(command, findings)
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

    def _accept(self, command: Command, findings: list[Finding]) -> Finding | None:
        n, limiter, mover = self.limiter.n_arm, self.limiter, self._mover
        passed = self._gated(command, findings) if self._gate.active else command
        self._withheld = passed is not command
        target = self._solver.solve(passed, mover.position[:n], self._fingers, mover.frames)
        if isinstance(target, Finding):
            return target
        self._fingers = np.clip(target.joints[n:], limiter.lower[n:], limiter.upper[n:])
        now_ns = self._situation.now_ns
        self._stream.accept(passed, target, now_ns, mover.position, mover.velocity)
        return None

    def _gated(self, command: Command, findings: list[Finding]) -> Command:
        """Return a command without what may not happen (yet), and tell of it."""
        passed, withheld = self._gate.judge(command, self._mover.position, self._fingers)
        for found in withheld:
            if found.reaction is Reaction.REPLAN:
                self._reporter.replan(found, self._situation)
        findings += withheld
        return passed

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
        aim = self._aim(command) if self.machine.state is ArmState.ARMED else None
        mover.settle(() if aim else findings)  # who sends a plan slows it down without a jump
        before, scale = mover.position, self._scale
        source = 'homing' if self._homing else command.source if command else ''
        known = len(findings)
        step = mover.follow(aim, dt, scale, findings) if aim else mover.brake(dt)
        for found in findings[known:]:
            if found.reaction in REPLANS:
                self._reporter.replan(found, situation)
            elif found.reaction >= Reaction.HOLD:
                self._halt(found)
        wrong = mover.send(step, dt)
        if wrong is not None:
            findings.append(wrong)
            self.machine.stop(wrong.check, wrong.reason)
            self._leave_armed()
            return self._standing()
        measured = situation.measured.positions if situation.measured else None
        if command is not None and self._rows is not None:
            self._rows.feed(command, before, mover.position, measured, self._withheld)
        if self._homing is not None and measured is not None:
            done = self._homing.arrived(mover.position, measured, situation.steady_ns)
            if done is not None:
                self._homing, self._at_target = None, done
        requested = aim.target if aim else before
        changed = step.direction_changed
        return Setpoint(requested, mover.position, mover.velocity, changed, scale, source)

    def _halt(self, found: Finding) -> None:
        """Hold or stop for what a check of the motion demands."""
        if found.reaction is Reaction.HOLD:
            self.machine.hold(found.check, found.reason)
        else:
            self.machine.stop(found.check, found.reason)
        self._leave_armed()

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
        self._mover.restart_scale()
        self._pending = None
        self._tag_rows()

    def _change_hands(self, reason: str) -> None:
        """Follow another sender from now on, from where the arm is."""
        self._stream.hand_over(self._arbiter.holder)
        self._gate.drop()
        self._pending = None
        if self._rows is not None:
            self._rows.interrupt()
        self._reporter.control(reason, self._arbiter.holder > POLICY, self._situation)

    def _let_go(self, reason: str) -> None:
        """
        Let those of lower priority drive again.

        In a new epoch: what they planned was for an arm that is somewhere else now.
        """
        self._change_hands(reason)
        self._situation.not_before_ns = self._situation.now_ns
        self._mover.restart_scale()
        self.machine.new_epoch()
        self._tag_rows()

    def _leave_armed(self) -> None:
        self._homing = None
        # Closing goes on with the next motion, as a grip may need it; opening has to be asked for.
        self._fingers = np.minimum(self._fingers, self._mover.position[self.limiter.n_arm :])
        self._gate.drop()
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

    def _why_not_arm(self, beyond: float = arming.ROUNDING) -> str:
        if self.machine.state is not ArmState.DISARMED:
            return f'is {self.machine.state.name}, must be DISARMED'
        obstacle = self._intake.misfit or self._checks.obstacles(self._situation)
        return obstacle or arming.why_not(self._situation, self._pressed(), beyond)

    def _why_not_reset(self) -> str:
        machine = self.machine
        if machine.state not in LATCHED:
            return f'is {machine.state.name}, there is nothing to reset'
        why_not = arming.why_not(self._situation, self._pressed(), None)
        if why_not:
            return why_not
        if not machine.cooled_down:
            return f'the last cause is less than {machine.config.cooldown_s:g} s ago'
        return '' if self._mover.at_rest else 'still decelerating'

    # ---- what is told ---------------------------------------------------------------------------

    def _standing(self) -> Setpoint:
        mover = self._mover
        return Setpoint(mover.position, mover.position, mover.velocity, False, self._scale, '')

    def report(self, on_timer: bool = False) -> GuardTick:
        """
        Say what the last :meth:`advance` did.

        :param on_timer: no command came in time
        """
        findings, setpoint, command = self._done
        reporter, situation, machine = self._reporter, self._situation, self.machine
        verdict = reporter.verdict(findings, setpoint, command, on_timer, situation, machine)
        reporter.transitions(machine, situation)
        reporter.gated(self._gate, command, situation)
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
