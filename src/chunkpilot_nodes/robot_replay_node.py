"""
Stands in for the robot: plays its joint states and cameras, and arms the guard for it.

The clock, the task and the episode come from the bag, too. What the live guard sends moves
nothing. The bag waits after its first moment until the guard is armed and its ramp is over, so
that the live graph has the whole episode.
"""

from dataclasses import dataclass

from chunkpilot.msg import GuardState, PolicyInfo
from chunkpilot.srv import GuardCommand
from chunkpilot_core.config import option
from chunkpilot_nodes import params, qos, spin
from chunkpilot_nodes.player_node import PlayerNode
from rclpy.clock import Clock, ClockType
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

PERIOD_S = 0.02


@dataclass(frozen=True)
class ArmConfig:
    """How the guard is armed."""

    lead_s: float = option(
        0.04,
        'what is played before the guard is armed; the arm must not move yet',
        unit='s',
        min=0.02,
        max=10.0,
    )


class RobotReplayNode(PlayerNode):
    """A player that waits for the graph."""

    def __init__(self) -> None:
        super().__init__()
        lead_s = params.declare(self, ArmConfig).lead_s
        self._lead_ticks = max(round(lead_s / PERIOD_S), 1)
        self._phase = 'waiting for guard and policy'
        self._can_arm = self._policy = False
        self._scale = 0.0
        subscribe = self.create_subscription
        subscribe(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        subscribe(Float64, 'guard/speed_scale', self._on_scale, qos.LATCHED)
        subscribe(PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED)
        self._arm = self.create_client(GuardCommand, 'guard/arm')
        self._pause(True)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._steps = self.create_timer(PERIOD_S, self._step, clock=steady)

    def _on_guard(self, msg: GuardState) -> None:
        self._can_arm = bool(msg.can_arm)
        if self._phase == 'arming' and msg.why_not:
            self.get_logger().warning(
                f'the guard can not be armed: {msg.why_not}', throttle_duration_sec=5.0
            )

    def _on_scale(self, msg: Float64) -> None:
        self._scale = float(msg.data)

    def _on_policy(self, msg: PolicyInfo) -> None:
        self._policy = bool(msg.ready)

    def _step(self) -> None:
        if self._phase.startswith('waiting') and self._policy and self._arm.service_is_ready():
            self._phase = 'leading'
            self._pause(False)
        elif self._phase == 'leading':
            self._lead_ticks -= 1
            if self._lead_ticks <= 0:
                self._phase = 'arming'
                self._pause(True)
        elif self._phase == 'arming' and self._can_arm:
            self._can_arm = False
            request = GuardCommand.Request(source='robot_replay_node', reason='replay')
            self._arm.call_async(request).add_done_callback(self._armed)
        elif self._phase == 'armed' and self._scale >= 1.0:
            self._phase = 'playing'
            self._pause(False)
            self.destroy_timer(self._steps)
            self.get_logger().info('the guard is armed: playing')

    def _armed(self, future: object) -> None:
        response = future.result()  # type: ignore[attr-defined]
        if response.success:
            self._phase = 'armed'
        else:
            self.get_logger().warning(f'guard/arm: {response.message}')

    def _pause(self, paused: bool) -> None:
        act = self._on_pause if paused else self._on_resume
        act(Trigger.Request(), Trigger.Response())


def main() -> None:
    """Run the node."""
    spin.main(RobotReplayNode)


if __name__ == '__main__':
    main()
