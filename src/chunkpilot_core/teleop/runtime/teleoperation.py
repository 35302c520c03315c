"""From a source's wishes to commands for the guard, and the announcement of who has control."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from chunkpilot_core import spaces
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.teleop.base import Aim, Arm, Source
from chunkpilot_core.teleop.runtime.bounds import bounded_target, bounded_velocity
from chunkpilot_core.teleop.runtime.peers import Announcer, Peers
from chunkpilot_core.types import (
    ActionSpace,
    ArmState,
    Command,
    F64,
    GuardStatus,
    Id,
    Intervention,
    JointState,
    seconds,
)
import numpy as np

LONGEST_TICK_S = 0.05
"""After a stall the arm goes on as if no more time had passed."""
MAX_AHEAD_S = 0.05
"""What is stamped further ahead of now is not of now: it would never get old."""


@dataclass(frozen=True)
class TeleoperationConfig:
    """How a teleoperator speaks to the guard."""

    max_state_age_s: float = option(
        0.25,
        'without a joint state newer than this nothing is commanded',
        unit='s',
        min=0.02,
        max=5.0,
    )
    announce_s: float = option(
        0.5, 'who has control is repeated so often', unit='s', min=0.05, max=5.0
    )
    operator_name: str = option('', 'whose hands these are, for the record')
    enabled: bool = option(
        True, 'drive from the start on, or only after the service teleop/enable was called'
    )


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick wants sent."""

    command: Command | None = None
    intervention: Intervention | None = None


class Teleoperation:
    """One source, one arm; told the time by its caller."""

    def __init__(
        self, source: Source, robot: Robot, config: TeleoperationConfig, session: int
    ) -> None:
        """
        Begin without control.

        :param session: id of this run in commands
        """
        self.source, self.config = source, config
        self.enabled = config.enabled
        self.engaged = False
        self.idle = 'nothing was heard from the guard'
        """Why nobody drives, '' while somebody does."""
        self._robot, self._session = robot, session
        self._kinematics = Kinematics(robot)
        self._space: ActionSpace | None = None
        self._dt_s = 0.0
        self._status: GuardStatus | None = None
        self._scale = 0.0
        self._joints: JointState | None = None
        self._in_episode = False
        self._in_force: tuple[F64, JointState] | None = None
        self._taken_ns: int | None = None
        self._seq = 0
        self._ticked_ns = 0
        self._peers = Peers()
        self._announcer = Announcer(self._peers, config.announce_s, config.operator_name)

    def set_space(self, space: ActionSpace, dt_s: float) -> None:
        """Speak this action space from now on, with this time between rows."""
        if self._space != space:
            self._let_go()
        self._space, self._dt_s = space, dt_s

    def on_guard(self, status: GuardStatus) -> None:
        """Follow the guard: a new epoch ends what is under way."""
        before, self._status = self._status, status
        if before is not None and before.arm_epoch != status.arm_epoch:
            self._let_go()

    def on_speed_scale(self, scale: float) -> None:
        """
        Drive at a fraction of full speed.

        :raises InvalidDataError: not in 0 to 1
        """
        if not 0.0 <= scale <= 1.0:
            raise InvalidDataError(f'speed scale {scale}, allowed 0 to 1')
        self._scale = scale

    def on_joint_state(self, state: JointState) -> None:
        """
        Take what is measured.

        :raises InvalidDataError: a joint of the arm is missing or not finite, or sizes differ
        """
        self._joints = None
        missing = [name for name in self._robot.joints if name not in state.names]
        if missing:
            raise InvalidDataError(f'joint state lacks {missing}')
        if len(state.positions) != len(state.names) or len(set(state.names)) < len(state.names):
            raise InvalidDataError(
                f'joint state: {len(state.positions)} positions of {list(state.names)}'
            )
        if not np.isfinite(state.positions).all():
            raise InvalidDataError('joint state is not finite')
        self._joints = state

    def on_intervention(self, word: Intervention) -> None:
        """Take who says to have control: of two teleoperators the second one waits."""
        self._peers.heard(word)

    def on_episode(self, running: bool) -> None:
        """Follow episodes."""
        if running != self._in_episode and self.source.episodes_only:
            self._let_go()
        self._in_episode = running

    def tick(
        self, now_ns: int, steady_ns: int, sent: Callable[[], JointState | None] = lambda: None
    ) -> Tick:
        """
        Do one control period.

        :param steady_ns: steady clock, by which latency is measured
        :param sent: gives what the guard has sent last, asked when control is taken; None where
            nobody knows, then it is taken from where the arm is measured
        """
        passed_s = min(max(seconds(now_ns - self._ticked_ns), 0.0), LONGEST_TICK_S)
        self._ticked_ns = now_ns
        why_not = self._why_not(now_ns)
        aim = why_not or self._aim(now_ns, passed_s, sent)
        was_engaged, self.engaged = self.engaged, isinstance(aim, Aim)
        command = None
        if isinstance(aim, Aim):
            self.idle = ''
            if self._taken_ns is None:
                self._taken_ns = now_ns
            command = self._command(aim, now_ns, steady_ns)
        else:
            self.idle = aim
            # What counts from here on is where the arm is when control is taken, not now.
            self._in_force = self._taken_ns = None
            if was_engaged or why_not:  # what is pressed meanwhile means nothing later
                self._let_go()
        return Tick(command, self._announcer.tell(now_ns, self.engaged, was_engaged, self.idle))

    def end(self, now_ns: int) -> Tick:
        """
        Give control back, e.g. when the process ends or after a fault.

        Where it goes on, somebody has to take control anew.
        """
        was_engaged, self.enabled, self.engaged = self.engaged, False, False
        self.idle = 'ended'
        self._let_go()
        return Tick(None, self._announcer.end(now_ns, was_engaged, self.idle))

    def _why_not(self, now_ns: int) -> str:
        """Return why the source need not be asked, '' where it is."""
        status, joints = self._status, self._joints
        if not self.enabled:
            return 'not enabled'
        if status is None:
            return 'nothing was heard from the guard'
        if status.state is not ArmState.ARMED or status.moving:
            return f'the guard is {"moving the arm" if status.moving else status.state.name}'
        if self._space is None:
            return 'nobody has told the action space'
        if joints is None or not self._of_now(joints, now_ns):
            return 'no joint state of now'
        if self.source.episodes_only and not self._in_episode:
            return 'no episode is running'
        other = self._peers.in_control(now_ns, self._taken_ns)
        return f'{other} has control' if other else ''

    def _of_now(self, state: JointState, now_ns: int) -> bool:
        age_s = seconds(now_ns - state.stamp_ns)
        return -MAX_AHEAD_S <= age_s <= self.config.max_state_age_s

    def _aim(
        self, now_ns: int, passed_s: float, sent: Callable[[], JointState | None]
    ) -> Aim | str:
        """Ask the source; what it may not ask for is cut off."""
        space, joints = self._space, self._joints
        assert space is not None
        assert joints is not None

        def look() -> tuple[F64, JointState]:
            if self._in_force is None:
                known = sent() or joints
                target = spaces.from_joints(space, self._kinematics, known)
                self._in_force = target, known
            return self._in_force

        passed_s *= self._scale
        arm = Arm(
            now_ns,
            self._robot,
            self._kinematics,
            space,
            self._dt_s,
            look,
            joints,
            passed_s,
            self._scale,
            self._in_episode,
        )
        aim = self.source.aim(arm)
        if isinstance(aim, str):
            return aim
        if self._taken_ns is None and not self._of_now(arm.taken, now_ns):
            self._let_go()  # the source has begun already, from where nobody knows to be
            return 'nothing was heard from the guard for a while'
        if not (np.isfinite(aim.target).all() and np.isfinite(aim.velocity).all()):
            raise InvalidDataError(f'{self.source.name} aims at {aim.target.tolist()}')
        bounds = self.source.bounds
        target = bounded_target(space, arm.commanded, aim.target, passed_s, bounds)
        velocity = bounded_velocity(space, aim.velocity, bounds)
        self._in_force = target, arm.taken
        return replace(aim, target=target, velocity=velocity)

    def _command(self, aim: Aim, now_ns: int, steady_ns: int) -> Command:
        assert self._space is not None
        assert self._status is not None
        self._seq += 1
        return Command(
            id=Id(self._session, self._seq),
            stamp_ns=now_ns,
            arm_epoch=self._status.arm_epoch,
            groups=spaces.command_groups(self._space, aim.target, aim.velocity),
            source=aim.source,
            row=aim.row,
            row_ns=aim.end_ns,
            observation_stamp_ns=aim.seen_ns,
            space_hash=self._space.hash,
            tick_steady_ns=steady_ns,
        )

    def _let_go(self) -> None:
        self._in_force = self._taken_ns = None
        self.source.let_go()
