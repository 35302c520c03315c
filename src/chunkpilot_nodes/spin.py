"""
One supervised loop for every node: nothing dies silently, signals end it cleanly.

A node derives from :class:`SupervisedNode`, declares its parameters in ``__init__`` and is run by
:func:`main`, which adds the process parameters (executor, nice, realtime_priority), refuses
misspelt ones, publishes ``/diagnostics`` and survives exceptions in callbacks (log, count,
``on_fault``, go on; too many in a short time: exit 1, so that a launcher can respawn it).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import gc
import os
from pathlib import Path
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_nodes import params, qos
from chunkpilot_nodes.convert import to_time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions

MAX_FAULTS = 20
FAULT_WINDOW_S = 10.0
HEARD_S = 1.0  # that last words may take
JUMP = 10  # periods of /clock at once


@dataclass(frozen=True)
class ProcessConfig:
    """How the process of a node runs."""

    executor: str = option(
        'single',
        'rclpy executor: events costs an eighth of the CPU at control rates',
        choices=('events', 'single'),
    )
    nice: int = option(0, 'niceness of the process; below 0 needs CAP_SYS_NICE', min=-20, max=19)
    realtime_priority: int = option(
        0, 'SCHED_RR priority, 0 = off; needs CAP_SYS_NICE', min=0, max=99
    )


class SupervisedNode(Node):
    """A node with a clock that tests can reason about, counted faults and diagnostics."""

    refused = 0  # messages
    exit_code = 0  # of the process, for a node that ends by itself; another one ends it

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.faults = 0
        self._time = RosTime(self)

    def create_subscription(
        self, msg_type: Any, topic: str, callback: Callable[[Any], None], *args: Any, **kwargs: Any
    ) -> Any:
        """
        Subscribe; a message that the callback refuses with a ChunkpilotError is told and dropped.

        Anybody may publish anything: what is wrong with a message is no fault of this node.
        """

        def guarded(msg: Any) -> None:
            try:
                callback(msg)
            except ChunkpilotError as error:
                self.refused += 1
                self.get_logger().warning(f'{topic} refused: {error}', throttle_duration_sec=1.0)

        return super().create_subscription(msg_type, topic, guarded, *args, **kwargs)

    def now_ns(self) -> int:
        """Return ROS time [ns], finer than /clock ticks when it is simulated."""
        return self._time.now_ns()

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return level, message and numbers for ``/diagnostics``; nodes override it."""
        return DiagnosticStatus.OK, 'running', {}

    def on_fault(self, error: Exception) -> None:
        """Bring the node into a safe state after an exception in a callback; nodes override it."""

    def wait_until_heard(self, *publishers: Publisher, find_s: float = 0.0) -> None:
        """
        Wait until all who listen have what was published last, which ends with this process.

        :param find_s: for how long somebody may still find a process that has just begun
        """
        found = time.monotonic() + find_s
        for publisher in publishers:
            while not publisher.get_subscription_count() and time.monotonic() < found:
                time.sleep(0.02)
        heard = time.monotonic() + HEARD_S
        for publisher in publishers:
            left_s = max(heard - time.monotonic(), 0.01)
            publisher.wait_for_all_acked(Duration(seconds=left_s))

    def shutdown(self) -> None:
        """Stop threads and close files before the node is destroyed; nodes override it."""


class RosTime:
    """ROS time of a node; between two /clock messages it runs on with the steady clock."""

    def __init__(self, node: Node) -> None:
        self._clock = node.get_clock()
        self.simulated = bool(node.get_parameter('use_sim_time').value)
        self._raw = 0
        self._steady = 0
        self._period = 0
        self._rate = 1.0
        self._last = 0

    def now_ns(self) -> int:
        """Return the time [ns]; never more than one clock period ahead of the last /clock."""
        raw: int = self._clock.now().nanoseconds
        if not self.simulated:
            return raw
        steady = time.monotonic_ns()
        if raw != self._raw:
            if raw < self._raw:  # a bag that starts over
                self._last = raw
            elif self._raw and self._period and raw - self._raw > JUMP * self._period:
                self._period = 0  # a jump is no period by which time could run ahead
            elif self._raw:
                self._period = raw - self._raw
                self._rate = self._period / max(steady - self._steady, 1)
            self._raw, self._steady = raw, steady
        ahead = min(int((steady - self._steady) * self._rate), self._period)
        # What was running ahead waits for the clock; it must not seem to go back.
        self._last = max(self._last, raw + ahead)
        return self._last


def main(node_class: type[SupervisedNode], executor: str = 'single') -> None:
    """
    Run one node until a signal ends it; does not return.

    Exit code 0 after SIGINT or SIGTERM, 1 after a wrong parameter or too many faults.

    :param executor: default of the parameter of that name
    """
    sys.exit(_run(node_class, executor))


def _run(node_class: type[SupervisedNode], executor: str) -> int:
    stopping = _StopFlag()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node: SupervisedNode | None = None
    code = 1
    try:
        node = node_class()
        process = params.declare(node, _with_default(executor))
        params.finish(node)
        _apply_priority(node, process)
        _publish_diagnostics(node)
        code = _loop(node, _make_executor(process.executor), stopping)
    except ChunkpilotError as error:
        name = node.get_name() if node else node_class.__name__
        print(f'{name}: {error}', file=sys.stderr, flush=True)
    finally:
        if node is not None:
            node.shutdown()
            node.destroy_node()
        rclpy.try_shutdown()
    return code or (node.exit_code if node is not None else 1)


class _StopFlag:
    """Set by SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self.set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.set = True
        # Whatever hangs on the way down, a launcher's SIGTERM after its SIGINT ends it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _loop(node: SupervisedNode, executor: Executor, stopping: _StopFlag) -> int:
    executor.add_node(node)
    recent: deque[float] = deque(maxlen=MAX_FAULTS)
    # A collection in a control tick costs up to 20 ms; what start-up made never becomes garbage.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    while not (stopping.set or node.exit_code) and rclpy.ok():
        try:
            executor.spin_once(timeout_sec=0.2)
        except ExternalShutdownException:
            break
        except Exception as error:
            node.faults += 1
            recent.append(time.monotonic())
            node.get_logger().error(
                f'{type(error).__name__} in a callback: {error}\n{traceback.format_exc()}',
                throttle_duration_sec=1.0,
            )
            try:
                node.on_fault(error)
            except Exception as second:
                node.get_logger().fatal(f'no safe state after a fault: {second}')
                return 1
            if len(recent) == MAX_FAULTS and recent[-1] - recent[0] < FAULT_WINDOW_S:
                node.get_logger().fatal(f'{MAX_FAULTS} faults in {FAULT_WINDOW_S} s: giving up')
                return 1
    return node.exit_code


def _make_executor(kind: str) -> Executor:
    if kind == 'single':
        return SingleThreadedExecutor()
    from rclpy.experimental import EventsExecutor

    return EventsExecutor()


def _with_default(executor: str) -> type[ProcessConfig]:
    if executor == 'single':
        return ProcessConfig

    @dataclass(frozen=True)
    class EventsProcessConfig(ProcessConfig):
        """The same, with the events executor by default."""

        executor: str = option(
            'events',
            'rclpy executor: events costs an eighth of the CPU at control rates',
            choices=('events', 'single'),
        )

    return EventsProcessConfig


def _apply_priority(node: SupervisedNode, process: ProcessConfig) -> None:
    try:
        if process.nice:
            os.setpriority(os.PRIO_PROCESS, 0, process.nice)
            _nice_autogroup(process.nice)
        if process.realtime_priority:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(process.realtime_priority))
    except OSError as error:
        node.get_logger().warning(f'priority refused, going on without: {error}')


def _nice_autogroup(nice: int) -> None:
    """
    Let niceness count against other sessions too.

    Linux shares the CPU between sessions first (sched(7), autogroup), and a launcher starts each
    node in its own, where plain niceness compares the node with itself only.
    """
    autogroup = Path('/proc/self/autogroup')
    if os.getsid(0) == os.getpid() and autogroup.exists():
        autogroup.write_text(str(nice))


def _publish_diagnostics(node: SupervisedNode) -> None:
    publisher = node.create_publisher(DiagnosticArray, '/diagnostics', qos.RELIABLE_10)

    def publish() -> None:
        level, message, numbers = node.diagnose()
        if node.faults and level == DiagnosticStatus.OK:
            level, message = DiagnosticStatus.WARN, f'{node.faults} faults'
        values = {**numbers, 'messages_refused': node.refused, 'faults': node.faults}
        status = DiagnosticStatus(
            level=level,
            name=node.get_fully_qualified_name(),
            message=message,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = to_time(node.now_ns())
        publisher.publish(array)

    node.create_timer(1.0, publish, clock=Clock(clock_type=ClockType.STEADY_TIME))
