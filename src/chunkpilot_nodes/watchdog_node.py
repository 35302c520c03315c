"""
Stops the driver when the guard is dead: a process of its own, with nothing else in it.

Topics in: ``verdict`` (heartbeat, not decoded), ``guard/state``. Out: ``estop``, ``/diagnostics``.
Clients: ``driver/stop``, ``driver/clear``. It trips when verdicts stay away while the guard's
last state was ARMED or HOLD; an idle guard never trips it. Once tripped:

* a restarted guard comes up DISARMED, which lets the driver go on;
* a guard that had only slept is stopped by ``estop``, and the driver goes on after its reset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import time

from chunkpilot.msg import EStop, GuardState, SafetyVerdict
from chunkpilot_core.config import option
from chunkpilot_core.types import ArmState, NS_PER_S, seconds
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.task import Future
from std_srvs.srv import Trigger

SOURCE = 'watchdog'
RETRY_S = 0.1


@dataclass(frozen=True)
class Config:
    """How long the guard may be silent."""

    period_s: float = option(0.01, 'period of the verdicts', unit='s', min=0.001, max=0.1)
    periods: int = option(25, 'missing verdicts that count as death', min=3, max=1000)


class WatchdogNode(spin.SupervisedNode):
    """Hears the guard, and calls the driver when it does not."""

    def __init__(self) -> None:
        super().__init__('watchdog_node')
        config = params.declare(self, Config)
        self._limit_s = config.period_s * config.periods
        self._state: GuardState | None = None
        self._heard_ns = self._looked_ns = time.monotonic_ns()
        self._tripped_session = 0  # of the guard that was silent, 0 = not tripped
        self._asserted = False
        self._trips = 0
        self._worst_s = 0.0
        self._call: Future | None = None
        self._called_ns = 0
        self._done = True  # whether the driver did what was asked last
        self.create_subscription(
            SafetyVerdict, 'verdict', self._on_heartbeat, qos.COMMAND, raw=True
        )
        self.create_subscription(GuardState, 'guard/state', self._on_state, qos.LATCHED)
        self._estop = self.create_publisher(EStop, 'estop', qos.LATCHED)
        self._driver = {
            name: self.create_client(Trigger, f'driver/{name}') for name in ('stop', 'clear')
        }
        self._tick_s = self._limit_s / 5.0
        self.create_timer(self._tick_s, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self.get_logger().info(f'trips after {self._limit_s:.2f} s without a verdict')

    def _on_heartbeat(self, verdict: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._live():
            self._worst_s = max(self._worst_s, seconds(now_ns - self._heard_ns))
        self._heard_ns = now_ns

    def _on_state(self, msg: GuardState) -> None:
        state = convert.member(ArmState, msg.state)
        self._state = msg
        if not self._tripped_session:
            return
        awake = msg.session == self._tripped_session
        if awake and state in (ArmState.ARMED, ArmState.HOLD) and not self._silent_s() > 0.05:
            self._assert(True)
        elif awake and state is ArmState.ESTOP:
            self._assert(False)
        elif state is ArmState.DISARMED:
            self._assert(False)
            self.get_logger().info('the guard is back and DISARMED: driver/clear')
            self._tripped_session = 0
            self._ask('clear')

    def _live(self) -> bool:
        return self._state is not None and ArmState(self._state.state) in (
            ArmState.ARMED,
            ArmState.HOLD,
        )

    def _silent_s(self) -> float:
        return seconds(time.monotonic_ns() - self._heard_ns)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        slept_s, self._looked_ns = seconds(now_ns - self._looked_ns), now_ns
        if slept_s > 2.0 * self._tick_s:
            return  # this process was not running: verdicts may wait in its own queue
        if self._live() and not self._tripped_session and self._silent_s() > self._limit_s:
            assert self._state is not None
            self._tripped_session = int(self._state.session)
            self._trips += 1
            self.get_logger().error(
                f'no verdict for {self._silent_s():.3f} s while the guard was '
                f'{ArmState(self._state.state).name}: driver/stop'
            )
            self._ask('stop')
        elif not self._done and now_ns - self._called_ns > RETRY_S * NS_PER_S:
            self._ask('stop' if self._tripped_session else 'clear')

    def _ask(self, name: str) -> None:
        self._done, self._called_ns = False, time.monotonic_ns()
        client = self._driver[name]
        if not client.service_is_ready():
            self.get_logger().error(f'{client.srv_name} is not there', throttle_duration_sec=1.0)
            return
        self._call = client.call_async(Trigger.Request())
        self._call.add_done_callback(self._on_answer)

    def _on_answer(self, future: Future) -> None:
        if future is self._call and future.exception() is None and future.result().success:
            self._done = True

    def _assert(self, asserted: bool) -> None:
        if asserted == self._asserted:
            return
        self._asserted = asserted
        reason = 'the guard fell silent while it was armed'
        msg = EStop(asserted=asserted, source=SOURCE, reason=reason)
        msg.header.stamp = convert.to_time(self.now_ns())
        self._estop.publish(msg)

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return whether it tripped, and how near it came."""
        numbers: dict[str, object] = {
            'trips': self._trips,
            'limit_s': round(self._limit_s, 3),
            'longest_silence_s': round(self._worst_s, 3),
            'guard_state': ArmState(self._state.state).name if self._state else 'unknown',
        }
        if self._tripped_session:
            return DiagnosticStatus.ERROR, 'the guard fell silent: driver stopped', numbers
        return DiagnosticStatus.OK, 'watching', numbers


def main() -> None:
    """Run the node."""
    spin.main(WatchdogNode)


if __name__ == '__main__':
    main()
