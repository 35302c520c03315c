"""
Drives the arm by hand, through the guard: gamepad, keyboard, leader arm, or a scripted operator.

Topics in: what the source listens to (``joy``, ``leader/joint_states``, ``sim/scene``, or the
keys of the terminal that the node runs in), ``joint_states``, ``guard/state``,
``guard/speed_scale``, ``verdict``, ``intervention`` (of other teleoperators), ``episode``,
``policy/info``. Out: ``teleop/command``,
``intervention``, and ``policy/info`` where no policy is there to tell the action space. Service:
``teleop/enable``. All the thinking is in
:class:`chunkpilot_core.teleop.runtime.teleoperation.Teleoperation`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import secrets
import time
from typing import Any

from chunkpilot.msg import (
    Command,
    EpisodeEvent,
    GuardState,
    Intervention,
    PolicyInfo,
    SafetyVerdict,
    SimScene,
)
from chunkpilot_core import registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.teleop.base import Joystick
from chunkpilot_core.teleop.runtime.teleoperation import Teleoperation, TeleoperationConfig
from chunkpilot_core.types import JointState as JointStateData
from chunkpilot_core.types import PolicySpec
from chunkpilot_nodes import convert, params, qos, spin
from chunkpilot_nodes.terminal import Terminal
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Float64
from std_srvs.srv import SetBool


@dataclass(frozen=True)
class Config:
    """Who drives which robot, and how often."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    source: str = option('joy', 'plug-in of the family teleop')
    period_s: float = option(0.01, 'between commands', unit='s', min=0.002, max=0.1)
    announce_space: bool = option(
        False,
        'there is no policy: tell the action space in policy/info, of the shipped policies and '
        'of row_s per row',
    )
    row_s: float = option(
        0.04, 'time of a row where announce_space is set', unit='s', min=0.005, max=1.0
    )


class TeleopNode(spin.SupervisedNode):
    """Thin adapter around :class:`Teleoperation` and its source."""

    def __init__(self) -> None:
        super().__init__('teleop_node')
        self._config = params.declare(self, Config)
        config = params.declare(self, TeleoperationConfig)
        plugin = registry.get('teleop', self._config.source)
        options = params.declare(self, plugin.Config, f'{self._config.source}.')
        robot = robots.load(self._config.robot)
        self._source = plugin(robot, options)
        self._terminal = Terminal(self._hear_keys) if 'keys' in plugin.listens else None
        self._core = Teleoperation(self._source, robot, config, secrets.randbits(63) + 1)
        self._session = secrets.randbits(64)
        self._verdict: bytes | None = None
        self._idle = ''
        self._connect(plugin.listens)
        # Simulated time may run at any speed, and the control period is a time of the robot.
        simulated = bool(self.get_parameter('use_sim_time').value)
        clock = self.get_clock() if simulated else Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(self._config.period_s, self._on_tick, clock=clock)
        if self._config.announce_space:
            self._announce_space()
        self.get_logger().info(f'{self._config.source}: {options}, robot {robot.name}')
        if self._terminal is not None:
            self._terminal.say(plugin.help)

    def _connect(self, listens: tuple[str, ...]) -> None:
        self._commands = self.create_publisher(Command, 'teleop/command', qos.COMMAND)
        self._words = self.create_publisher(Intervention, 'intervention', qos.RELIABLE_10)
        self._info = None
        subscribe = self.create_subscription
        if self._config.announce_space:
            self._info = self.create_publisher(PolicyInfo, 'policy/info', qos.LATCHED)
        else:
            subscribe(PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED)
        subscribe(JointState, 'joint_states', self._on_joint_state, qos.SENSOR)
        subscribe(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        subscribe(Float64, 'guard/speed_scale', self._on_scale, qos.LATCHED)
        subscribe(Intervention, 'intervention', self._on_word, qos.RELIABLE_10)
        subscribe(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        subscribe(SafetyVerdict, 'verdict', self._keep_verdict, qos.SENSOR, raw=True)
        if 'joy' in listens:
            subscribe(Joy, 'joy', self._hear('joy', self._joystick), qos.SENSOR)
        if 'leader' in listens:
            read = convert.joint_state_from_msg
            subscribe(JointState, 'leader/joint_states', self._hear('leader', read), qos.SENSOR)
        if 'scene' in listens:
            read = convert.scene_from_msg
            subscribe(SimScene, 'sim/scene', self._hear('scene', read), qos.SENSOR)
        self.create_service(SetBool, 'teleop/enable', self._on_enable)

    def _announce_space(self) -> None:
        """Tell in whose terms rows are recorded, as the node of a policy would."""
        assert self._info is not None
        space, dt_s = spaces.ee_delta_space(), self._config.row_s
        self._core.set_space(space, dt_s)
        msg = convert.policy_info_to_msg(
            PolicySpec('teleop', self._config.source, 0, space, 1, dt_s),
            session=self._session,
            stamp_ns=self.now_ns(),
            state='ready',
            warm_inference_s=0.0,
        )
        self._info.publish(msg)

    # ---- what comes in --------------------------------------------------------------------------

    def _hear(self, what: str, read: Callable[[Any], Any]) -> Callable[[Any], None]:
        return lambda msg: self._source.take(what, read(msg), self.now_ns())

    def _hear_keys(self, text: str) -> None:
        self._source.take('keys', text, self.now_ns())

    @staticmethod
    def _joystick(msg: Joy) -> Joystick:
        axes = tuple(float(value) for value in msg.axes)
        return Joystick(convert.to_ns(msg.header.stamp), axes, tuple(map(bool, msg.buttons)))

    def _on_policy(self, msg: PolicyInfo) -> None:
        if msg.ready:
            spec = convert.policy_info_from_msg(msg)
            self._core.set_space(spec.space, spec.dt_s)

    def _on_joint_state(self, msg: JointState) -> None:
        self._core.on_joint_state(convert.joint_state_from_msg(msg))

    def _on_guard(self, msg: GuardState) -> None:
        self._core.on_guard(convert.guard_state_from_msg(msg))

    def _on_scale(self, msg: Float64) -> None:
        self._core.on_speed_scale(float(msg.data))

    def _on_word(self, msg: Intervention) -> None:
        self._core.on_intervention(convert.intervention_from_msg(msg))

    def _on_episode(self, msg: EpisodeEvent) -> None:
        self._core.on_episode(msg.event == EpisodeEvent.START)

    def _keep_verdict(self, data: bytes) -> None:
        self._verdict = data

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> Any:
        self._core.enabled = bool(request.data)
        response.success = True
        response.message = 'enabled' if request.data else 'control is given back'
        return response

    def _sent(self) -> JointStateData | None:
        """Return what the guard has sent last; read only when control is taken."""
        if self._verdict is None:
            return None
        verdict = convert.verdict_from_msg(deserialize_message(self._verdict, SafetyVerdict))
        return JointStateData(
            verdict.stamp_ns, verdict.joint_names, verdict.sent, verdict.sent_velocity
        )

    # ---- the tick -------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if self._terminal is not None:
            self._terminal.read()
        tick = self._core.tick(self.now_ns(), time.monotonic_ns(), self._sent)
        if tick.command is not None:
            self._commands.publish(convert.command_to_msg(tick.command))
        if tick.intervention is not None:
            self._words.publish(convert.intervention_to_msg(tick.intervention))
        if self._core.idle != self._idle:
            self._idle = self._core.idle
            text = f'not driving: {self._idle}' if self._idle else 'driving'
            if self._terminal is not None:
                self._terminal.say(text)
            else:
                self.get_logger().info(text, throttle_duration_sec=1.0)

    def on_fault(self, error: Exception) -> None:
        """Give control back: an exception left wishes in an unknown state."""
        self._give_back()

    def _give_back(self) -> None:
        enabled, tick = self._core.enabled, self._core.end(self.now_ns())
        self._core.enabled = enabled
        if tick.intervention is not None:
            self._words.publish(convert.intervention_to_msg(tick.intervention))

    def shutdown(self) -> None:
        """Give control back, and the terminal too."""
        self._give_back()
        self.wait_until_heard(self._words)
        if self._terminal is not None:
            self._terminal.restore()

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return who drives, or why nobody does."""
        core = self._core
        numbers = {'source': self._config.source, 'enabled': core.enabled, 'driving': core.engaged}
        return DiagnosticStatus.OK, core.idle or 'driving', numbers


def main() -> None:
    """Run the node."""
    spin.main(TeleopNode, executor='events')


if __name__ == '__main__':
    main()
