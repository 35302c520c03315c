"""
Plays a bag: recorded bytes with the recorded quality of service, each at its absolute time.

One thread reads ahead, one waits and sends; the executor only serves ``player/pause`` and
``player/resume``. What is when due is decided in :mod:`chunkpilot_core.bags.play`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
import queue
import threading
import time

from chunkpilot_core import files
from chunkpilot_core.bags import play
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.play import CLOCK, Due, Pace, Schedule
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.selection import Selection
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError, ChunkpilotError
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.types import NS_PER_S
from chunkpilot_nodes import params, qos, raw, spin
from diagnostic_msgs.msg import DiagnosticStatus
import rclpy
from rclpy.duration import Duration
from rclpy.publisher import Publisher
from rosgraph_msgs.msg import Clock
from std_srvs.srv import Trigger

_AHEAD = 256  # messages that are read before they are due


@dataclass(frozen=True)
class Config:
    """What is played, and how."""

    bag: str = option('', 'folder of the bag, or a single .mcap or .db3 file')
    rate: float = option(1.0, 'speed, 2 = twice as fast', min=0.001, max=1000.0)
    start_s: float = option(0.0, 'where to start, from the start of the bag', unit='s', min=0.0)
    duration_s: float = option(0.0, 'how much of it is played; 0 = all', unit='s', min=0.0)
    loop: bool = option(False, 'start over at the end')
    topics: tuple[str, ...] = option(
        (), 'names or patterns of topics that are played; none = all but those that robots obey'
    )
    exclude: tuple[str, ...] = option((), 'names or patterns of topics that are not played')
    remaps: tuple[str, ...] = option((), 'other names, /old:=/new')
    clock_hz: float = option(
        0.0, '/clock with the time of the bag, per second of real time; 0 = none', min=0.0, max=1e3
    )
    delay_s: float = option(
        1.0, 'wait for subscribers to find the player', unit='s', min=0.0, max=3600.0
    )
    paused: bool = option(False, 'stand at the start until player/resume is called')
    stay: bool = option(False, 'stay after the end, for what late subscribers get')
    progress: bool = option(False, 'show a progress bar')
    report: str = option('', 'file that tells in JSON what was played')


class PlayerNode(spin.SupervisedNode):
    """Thin adapter around :class:`Schedule` and :class:`Pace`."""

    def __init__(self) -> None:
        super().__init__('player_node')
        self._config = config = params.declare(self, Config)
        if not config.bag:
            raise BagError('bag: say which one is to be played')
        self._bag = BagReader(config.bag)
        end_s = config.start_s + config.duration_s if config.duration_s else float('inf')
        chosen = Selection(config.topics, config.exclude, config.start_s, end_s)
        self._schedule = Schedule(self._bag, chosen, config.remaps, config.clock_hz, config.rate)
        self._pace = Pace(config.rate, self._schedule.start_ns)
        self._sent: Counter[str] = Counter()
        self._late_ns = 0
        self._passes = 0
        self._failure = ''
        self._wake = threading.Condition()
        self._stopping = False
        self._outputs = self._create_publishers()
        self.create_service(Trigger, 'player/pause', self._on_pause)
        self.create_service(Trigger, 'player/resume', self._on_resume)
        if config.paused:
            self._pace.pause(time.monotonic_ns())
        self._thread = threading.Thread(target=self._run, name='play', daemon=True)
        self._thread.start()

    def _create_publishers(self) -> dict[str, Publisher]:
        known, schedule = Definitions(), self._schedule
        found: dict[str, Publisher] = {}
        for name, topic in list(schedule.topics.items()):
            try:
                play.check_type(topic, known)
                kind = raw.message_class(topic.type_name)
            except BagError as error:
                if self._config.topics:
                    raise
                self.get_logger().warning(f'{name} is not played: {error}')
                schedule.leave_out(name)
                continue
            sent = schedule.sent(name)
            if sent not in found:
                found[sent] = self.create_publisher(kind, sent, raw.profile(play.offered(topic)))
        if schedule.clock_step_ns:
            found[CLOCK] = self.create_publisher(Clock, CLOCK, qos.CLOCK)
        for name in schedule.left_out:
            self.get_logger().warning(f'{name} moves robots: not played, since it is not named')
        return found

    def _run(self) -> None:
        try:
            self._sleep_until(time.monotonic_ns() + round(self._config.delay_s * NS_PER_S))
            start_ns = time.monotonic_ns()
            first = start_ns
            while not self._stopping:
                with self._wake:
                    self._pace.start(start_ns, self._schedule.start_ns)
                self._play_once()
                self._passes += not self._stopping
                if not self._config.loop:
                    break
                start_ns = self._pace.due_ns(self._schedule.end_ns)
            self._conclude((time.monotonic_ns() - first) / NS_PER_S)
        except Exception as error:  # a thread that dies unseen would leave a node that hangs
            if not self._stopping:
                self._failure, self.exit_code = str(error) or repr(error), 1
                self.get_logger().error(f'playing failed: {self._failure}')
        if self.exit_code or not (self._config.stay or self._stopping):
            rclpy.try_shutdown()

    def _play_once(self) -> None:
        ahead: queue.Queue[Due | Exception | None] = queue.Queue(_AHEAD)
        threading.Thread(target=self._read, args=(ahead,), name='read', daemon=True).start()
        total_s = (self._schedule.end_ns - self._schedule.start_ns) / NS_PER_S
        with progress_bar(
            'played', round(total_s, 1), unit='s', quiet=not self._config.progress
        ) as bar:
            for due in self._arriving(ahead):
                if not self._wait(due.bag_ns):
                    return
                self._outputs[due.topic].publish(due.cdr)
                self._sent[due.topic] += 1
                late_ns = time.monotonic_ns() - self._pace.due_ns(due.bag_ns)
                self._late_ns = max(self._late_ns, late_ns)
                bar.update(round((due.bag_ns - self._schedule.start_ns) / NS_PER_S, 1) - bar.n)
            self._wait(self._schedule.end_ns)

    def _read(self, ahead: 'queue.Queue[Due | Exception | None]') -> None:
        try:
            for due in self._schedule.messages():
                self._put(ahead, due)
                if self._stopping:
                    return
            self._put(ahead, None)
        except Exception as error:  # told by the thread that sends
            self._put(ahead, error)

    def _put(self, ahead: 'queue.Queue[Due | Exception | None]', item: object) -> None:
        while not self._stopping:
            try:
                ahead.put(item, timeout=0.5)  # type: ignore[arg-type]
                return
            except queue.Full:
                continue

    def _arriving(self, ahead: 'queue.Queue[Due | Exception | None]') -> Iterator[Due]:
        while not self._stopping:
            try:
                item = ahead.get(timeout=0.5)
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item if isinstance(item, ChunkpilotError) else BagError(repr(item))
            yield item

    def _wait(self, bag_ns: int) -> bool:
        """Wait until a time of the bag has come; returns False when playing is to stop."""
        with self._wake:
            while not self._stopping:
                if self._pace.paused:
                    self._wake.wait(0.5)
                    continue
                left_ns = self._pace.due_ns(bag_ns) - time.monotonic_ns()
                if left_ns <= 0:
                    return True
                self._wake.wait(min(left_ns / NS_PER_S, 0.5))
        return False

    def _sleep_until(self, steady_ns: int) -> None:
        with self._wake:
            while not self._stopping and (left_ns := steady_ns - time.monotonic_ns()) > 0:
                self._wake.wait(left_ns / NS_PER_S)

    def _conclude(self, duration_s: float) -> None:
        waiting: Iterable[Publisher] = self._outputs.values()
        for publisher in waiting:
            if not self._stopping:
                publisher.wait_for_all_acked(Duration(seconds=1))
        told = play.summary(self._sent, duration_s, self._late_ns / NS_PER_S)
        told |= {'bag': self._config.bag, 'passes': self._passes}
        if self._config.report:
            files.write_json(Path(self._config.report), told)
        self.get_logger().info(
            f'{self._config.bag}: {told["messages"]} messages in {duration_s:.1f} s, '
            f'worst lateness {self._late_ns / 1e6:.1f} ms'
        )

    def _on_pause(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._wake:
            self._pace.pause(time.monotonic_ns())
            self._wake.notify_all()
        response.success, response.message = True, 'paused'
        return response

    def _on_resume(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._wake:
            self._pace.resume(time.monotonic_ns())
            self._wake.notify_all()
        response.success, response.message = True, 'playing'
        return response

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return how far it is, and how late."""
        at_s = (self._pace.bag_ns(time.monotonic_ns()) - self._schedule.start_ns) / NS_PER_S
        numbers = {
            'bag': self._config.bag,
            'at_s': f'{at_s:.3f}',
            'messages': sum(self._sent.values()),
            'passes': self._passes,
            'worst_lateness_s': f'{self._late_ns / NS_PER_S:.4f}',
        }
        if self._failure:
            return DiagnosticStatus.ERROR, self._failure, numbers
        return DiagnosticStatus.OK, 'paused' if self._pace.paused else 'playing', numbers

    def shutdown(self) -> None:
        """Stop the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(5.0)
        self._bag.close()


def main() -> None:
    """Run the node."""
    spin.main(PlayerNode)


if __name__ == '__main__':
    main()
