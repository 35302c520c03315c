"""
Makes things go wrong on purpose: relays topics with the faults of a file, kills and stops nodes.

A topic ``joint_states`` is published by its node as ``clean/joint_states`` (a remap, in the launch
file) and by this one as ``joint_states``; any message type will do. Without a fault in force the
bytes pass as they are. What the faults do is in :mod:`chunkpilot_core.faults`. How often each of
them took place is on topic ``faults``, which the task node puts into its summary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import os
import signal
import time
from typing import Any

from chunkpilot.msg import GuardState
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, ConfigError, hint, nearest, UnknownNameError
from chunkpilot_core.faults import plan as plans
from chunkpilot_core.faults import processes
from chunkpilot_core.faults.processes import ProcessFault, Sleep
from chunkpilot_core.faults.stream import Stream
from chunkpilot_core.types import ArmState, nanoseconds, seconds
from chunkpilot_nodes import params, qos, raw, spin
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.publisher import Publisher
from rclpy.serialization import deserialize_message, serialize_message

LOOK_S = 0.1  # for topics that are not relayed yet
MISSED_S = 5.0  # a faulted topic that nobody publishes for so long is told of
SEND_S = 0.002  # how exactly what is held back leaves
ACT_S = 0.01  # how exactly processes are hit
TELL_S = 0.2  # how soon it is known what took place


@dataclass(frozen=True)
class Config:
    """What is relayed, and the file of faults."""

    file: str = option('', 'faults, see docs/faults.md')
    relays: tuple[str, ...] = option(
        ('joint_states', 'command', 'chunk'), 'topics whose publishers are remapped to clean/TOPIC'
    )
    prefix: str = option('clean/', 'of the topics without faults')
    process_faults: bool = option(
        False, 'allow kill and sigstop, of nodes that were started by the same launcher'
    )


@dataclass(slots=True)
class Relay:
    """One topic; the publisher is there once the clean one has been found."""

    topic: str
    stream: Stream
    message_class: type[Any] | None = None
    publisher: Publisher | None = None
    passed: int = 0


@dataclass(slots=True)
class Hit:
    """A process fault that is due at a time; ``pidfd`` of the process while it sleeps."""

    fault: ProcessFault
    due_ns: int = 0
    pidfd: int = -1
    done: bool = False


class FaultInjectorNode(spin.SupervisedNode):
    """Thin adapter around :class:`Stream` and the faults of processes."""

    def __init__(self) -> None:
        super().__init__('fault_injector_node')
        self._config = params.declare(self, Config)
        if not self._config.file:
            raise ConfigError('file: say which faults are to be injected')
        self._plan = plan = plans.load(self._config.file)
        for topic in plan.topics:
            if topic not in self._config.relays:
                raise UnknownNameError('relayed topic', topic, self._config.relays)
        if plan.processes and not self._config.process_faults:
            raise ConfigError(
                f'{self._config.file} hits processes: allow it by process_faults:=true'
            )
        self._relays = {
            topic: Relay(topic, Stream(plan.topics.get(topic, ()), plan.seed + number))
            for number, topic in enumerate(self._config.relays)
        }
        self._hits = [Hit(fault) for fault in plan.processes]
        self._began_ns = 0
        self._started_ns = time.monotonic_ns()
        self._told_of_missing = False
        self._told: list[int] | None = None
        self._out = self.create_publisher(DiagnosticStatus, 'faults', qos.LATCHED)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._looking = self.create_timer(LOOK_S, self._look, clock=steady)
        self._sending = self.create_timer(SEND_S, self._send_due, clock=steady)
        self._sending.cancel()
        self.create_timer(TELL_S, self._tell, clock=steady)
        if self._hits:
            self.create_timer(ACT_S, self._act, clock=steady)
        if plan.begin == 'start':
            self._begin()
        else:
            self.create_subscription(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        self._look()
        self._tell()
        self.get_logger().warning(
            f'{len(self._applied())} faults of {self._config.file} on {list(plan.topics)}, '
            f'processes {[fault.node for fault in plan.processes]}, seed {plan.seed}, '
            f'time begins: {plan.begin}'
        )

    # ---- when -----------------------------------------------------------------------------------

    def _on_guard(self, msg: GuardState) -> None:
        if not self._began_ns and msg.state == int(ArmState.ARMED):
            self._begin()
            self.get_logger().warning('the guard is armed: the time of the faults begins')

    def _begin(self) -> None:
        self._began_ns = time.monotonic_ns()
        for relay in self._relays.values():
            relay.stream.begin(self._began_ns)
        for hit in self._hits:
            hit.due_ns = self._began_ns + nanoseconds(hit.fault.at_s)

    # ---- topics ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Relay what is published by now, with what its publisher offers."""
        for relay in self._relays.values():
            if relay.publisher is None:
                self._connect(relay)
        if all(relay.publisher is not None for relay in self._relays.values()):
            self._looking.cancel()
        elif seconds(time.monotonic_ns() - self._started_ns) > MISSED_S:
            self._tell_of_missing()

    def _tell_of_missing(self) -> None:
        """Warn once of faults on topics that nobody publishes: they prove nothing."""
        if self._told_of_missing:
            return
        self._told_of_missing = True
        known = [name for name, _ in self.get_topic_names_and_types()]
        for topic in self._plan.topics:
            if self._relays[topic].publisher is not None:
                continue
            clean = self.resolve_topic_name(self._config.prefix + topic)
            there = [name for name in known if name != clean and self.count_publishers(name)]
            unmapped = self.resolve_topic_name(topic)
            # Its publisher may be there, and was not remapped.
            near = unmapped if unmapped in there else nearest(clean, there)
            self.get_logger().warning(
                f'nobody publishes {clean!r} after {MISSED_S:g} s: no fault on {topic!r} is '
                f'injected until somebody does.{hint(near)}'
            )

    def _connect(self, relay: Relay) -> None:
        clean = self.resolve_topic_name(self._config.prefix + relay.topic)
        publishers = self.get_publishers_info_by_topic(clean)
        if not publishers:
            return
        relay.message_class = raw.message_class(publishers[0].topic_type)
        profile = qos.matching(publishers[0].qos_profile)
        relay.publisher = self.create_publisher(relay.message_class, relay.topic, profile)
        self.create_subscription(
            relay.message_class,
            clean,
            lambda cdr: self._take(relay, cdr),
            profile,
            raw=True,
        )

    def _take(self, relay: Relay, cdr: bytes) -> None:
        now_ns, stream = time.monotonic_ns(), relay.stream
        assert relay.publisher is not None
        if not stream.in_force(now_ns):
            relay.publisher.publish(cdr)
            relay.passed += 1
            return
        try:
            stream.push(deserialize_message(cdr, relay.message_class), now_ns)
        except ChunkpilotError as error:
            # What was to be proved with this fault is not proved: nobody may believe it is.
            self._give_up(f'{relay.topic}: {error}')
            return
        self._send_due()

    def _send_due(self) -> None:
        now_ns, waiting = time.monotonic_ns(), False
        for relay in self._relays.values():
            if relay.publisher is None:
                continue
            for message in relay.stream.due(now_ns):
                relay.publisher.publish(serialize_message(message))
                relay.passed += 1
            waiting = waiting or relay.stream.waiting > 0
        if waiting == self._sending.is_canceled():
            (self._sending.reset if waiting else self._sending.cancel)()

    # ---- processes ------------------------------------------------------------------------------

    def _act(self) -> None:
        now_ns = time.monotonic_ns()
        for hit in self._hits:
            if hit.done or not hit.due_ns or now_ns < hit.due_ns:
                continue
            if hit.pidfd >= 0:
                self._wake(hit)
            else:
                self._strike(hit, now_ns)

    def _strike(self, hit: Hit, now_ns: int) -> None:
        fault = hit.fault
        try:
            pid = processes.find(fault.node)
            pidfd = os.pidfd_open(pid)
            if processes.find(fault.node) != pid:
                raise ConfigError(f'{fault.node} was just started again')
        except (ChunkpilotError, OSError) as error:
            self._give_up(f'{fault.kind} of {fault.node}: {error}')
            return
        sleeps = isinstance(fault, Sleep)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP if sleeps else signal.SIGKILL)
        self.get_logger().warning(f'{fault.kind}: {fault.node}, process {pid}')
        if isinstance(fault, Sleep):
            hit.pidfd, hit.due_ns = pidfd, now_ns + nanoseconds(fault.for_s)
        else:
            os.close(pidfd)
            hit.done = True

    def _wake(self, hit: Hit) -> None:
        try:
            signal.pidfd_send_signal(hit.pidfd, signal.SIGCONT)
        except ProcessLookupError:
            pass  # somebody has ended it meanwhile
        os.close(hit.pidfd)
        hit.pidfd, hit.done = -1, True

    # ---- what took place ------------------------------------------------------------------------

    def _applied(self) -> list[int]:
        """Return how often each fault of the plan was applied, see :func:`plans.described`."""
        counts = [n for topic in self._plan.topics for n in self._relays[topic].stream.applied]
        return counts + [int(hit.done or hit.pidfd >= 0) for hit in self._hits]

    def _tell(self) -> None:
        counts = self._applied()
        if counts == self._told:
            return
        self._told = counts
        self._out.publish(
            DiagnosticStatus(
                level=DiagnosticStatus.WARN,
                name='faults',
                message=self._config.file,
                values=[
                    KeyValue(key=fault, value=str(count))
                    for fault, count in zip(plans.described(self._plan), counts, strict=True)
                ],
            )
        )

    # ---- the node's own troubles ----------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        self.get_logger().fatal(f'fault not possible: {reason}')
        self.exit_code = 1

    def shutdown(self) -> None:
        """Wake who sleeps."""
        for hit in self._hits:
            if hit.pidfd >= 0:
                self._wake(hit)

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what was passed on and what was hit."""
        numbers: dict[str, object] = {
            f'{relay.topic}.{what}': value
            for relay in self._relays.values()
            for what, value in (('passed', relay.passed), ('hit', relay.stream.hit))
        }
        since_s = seconds(time.monotonic_ns() - self._began_ns) if self._began_ns else 0.0
        numbers['elapsed_s'] = round(since_s, 2)
        numbers['processes_hit'] = sum(hit.done or hit.pidfd >= 0 for hit in self._hits)
        return DiagnosticStatus.WARN, 'injects faults', numbers


def main() -> None:
    """Run the node."""
    spin.main(FaultInjectorNode, executor='events')


if __name__ == '__main__':
    main()
