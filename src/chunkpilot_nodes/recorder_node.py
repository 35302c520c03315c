"""
Records topics of the graph: one bag per episode, at once, or from start to stop by service.

Raw bytes only, from the thread of :class:`chunkpilot_nodes.tap.Tap` to that of
:class:`chunkpilot_core.bags.recorder.Recorder`. Topics are followed from the start, not only while
a bag is written: a subscription loses what is sent in its first half second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import re
import shutil
import threading
import time

from chunkpilot.msg import EpisodeEvent, Outcome
from chunkpilot.srv import RecorderSplit, RecorderStart, RecorderStop
from chunkpilot_core.bags.information import NAME, NAME_RULE
from chunkpilot_core.bags.recorder import Limits, Recorded, Recorder
from chunkpilot_core.bags.writer import taken
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import EpisodeOutcome, NS_PER_S
from chunkpilot_nodes import convert, params, qos, spin
from chunkpilot_nodes.discovery import Discovery, Selection
from chunkpilot_nodes.tap import Received, Tap
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.serialization import deserialize_message
from std_msgs.msg import Float64MultiArray


@dataclass(frozen=True)
class Config:
    """What is recorded, and where to."""

    directory: str = option('runs/bags', 'folder of the bags')
    per_episode: bool = option(True, 'record each episode into a bag of its own name')
    start: bool = option(False, 'record from the start; when that fails, the process ends')
    name: str = option('', 'name of the bag of "start", "" = by time')
    keys: tuple[str, ...] = option((), 'custom data of the bag of "start": names')
    values: tuple[str, ...] = option((), 'and values')
    topics: tuple[str, ...] = option((), 'topics that are recorded, full names; none = all')
    regex: str = option('', 'record topics that match this regular expression, too')
    exclude: tuple[str, ...] = option(
        ('/parameter_events',), 'topics that are not recorded, full names'
    )
    exclude_regex: str = option('', 'topics that match this regular expression are not recorded')
    max_queue_mb: int = option(
        256, 'messages that wait for the disk; more are dropped and counted', unit='MB', min=1
    )
    max_bag_size: int = option(
        0, 'size at which a bag goes on in the next file, 0 = never', unit='bytes', min=0
    )
    max_bag_duration: float = option(
        0.0, 'time after which a bag goes on in the next file, 0 = never', unit='s', min=0.0
    )
    stop_after_s: float = option(
        0.5, 'recording goes on so long after an episode ended', unit='s', min=0.0, max=60.0
    )


class RecorderNode(spin.SupervisedNode):
    """Thin adapter around :class:`Recorder`."""

    def __init__(self) -> None:
        super().__init__('recorder_node')
        self._config = config = params.declare(self, Config)
        limits = Limits(config.max_bag_size, int(config.max_bag_duration * NS_PER_S))
        self._recorder = Recorder(None, config.max_queue_mb * 1024 * 1024, limits)
        self._tap = Tap(self, self._on_message)
        selection = Selection(config.topics, config.regex, config.exclude, config.exclude_regex)
        self._discovery = Discovery(self, selection, self._recorder, self._tap)
        self._bag_lock = threading.RLock()
        self._failure = ''
        self._stop_due: float | None = None
        self._custom: dict[str, str] = {}
        self._lost_before = 0
        self._bags = 0
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_service(RecorderStart, 'recorder/start', self._on_start)
        self.create_service(RecorderStop, 'recorder/stop', self._on_stop)
        self.create_service(RecorderSplit, 'recorder/split', self._on_split)
        self._plot = self.create_publisher(Float64MultiArray, 'plot/recorder', qos.RELIABLE_10)
        self.create_timer(0.25, self._discovery.look, clock=steady)
        self.create_timer(0.1, self._watch, clock=steady)
        self.create_timer(1.0, self._publish_numbers, clock=steady)
        self._discovery.look()
        if config.start:
            path = self._start(config.name, self.now_ns(), _pairs(config.keys, config.values))
            self.get_logger().info(f'recording {path.resolve()}')
        else:
            self.get_logger().info(
                f'bags go to {Path(config.directory).resolve()}, '
                + ('one per episode' if config.per_episode else 'by service')
            )
        self._tap.start()

    def _on_message(self, message: Received) -> None:
        simulated = self._time.simulated
        stamp_ns = self.now_ns() if simulated or not message.received_ns else message.received_ns
        # In simulated time the middleware's times are of another clock.
        sent_ns = stamp_ns if simulated or not message.sent_ns else message.sent_ns
        self._recorder.put(message.topic, stamp_ns, message.cdr, sent_ns, message.sequence)
        if self._config.per_episode and message.message_class in (EpisodeEvent, Outcome):
            # What it caused may have come before it: the bag begins when it was sent.
            delay_ns = message.received_ns - message.sent_ns if message.sent_ns else 0
            sent_ns = stamp_ns - min(max(delay_ns, 0), NS_PER_S)
            self._on_event(deserialize_message(message.cdr, message.message_class), sent_ns)

    def _on_event(self, event: EpisodeEvent | Outcome, stamp_ns: int) -> None:
        if isinstance(event, Outcome):
            with self._bag_lock:
                if self._custom.get('episode_id', event.episode_id) != event.episode_id:
                    return  # of an episode before
                self._custom |= {
                    'episode_id': event.episode_id,
                    'outcome': convert.member(EpisodeOutcome, event.outcome).name.lower(),
                    'reason': event.reason,
                }
        elif event.event == EpisodeEvent.START:
            self._begin(event, stamp_ns)
        elif self._recorder.path is not None:
            self._stop_due = time.monotonic() + self._config.stop_after_s

    def _begin(self, event: EpisodeEvent, stamp_ns: int) -> None:
        name = re.sub(r'[^A-Za-z0-9._-]', '_', event.episode_id).lstrip('.')
        with self._bag_lock:
            if self._recorder.path is not None:
                self._finish()
            try:
                self._start(name, stamp_ns, {'episode_id': event.episode_id})
            except BagError as error:
                self._fail(error)

    def _start(self, name: str, stamp_ns: int, custom: Mapping[str, str]) -> Path:
        if name and not NAME.fullmatch(name):
            raise BagError(f'bag name {name!r}: {NAME_RULE}')
        folder = Path(self._config.directory)
        path = first = folder / (name or time.strftime('rosbag2_%Y_%m_%d-%H_%M_%S'))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BagError(f'{folder}: {error}') from error
        number = 2
        while taken(path):  # episode ids of an earlier run
            path = first.with_name(f'{first.name}-{number}')
            number += 1
        with self._bag_lock:
            self._recorder.start(path, stamp_ns)
            self._custom, self._failure = dict(custom), ''
            self._lost_before = self._tap.lost
        return path

    def _stop(self, more: Mapping[str, str]) -> Recorded:
        self._tap.catch_up()
        with self._bag_lock:
            self._stop_due = None
            lost = {'lost_messages': str(self._lost)}
            done = self._recorder.stop({**self._custom, **more, **lost})
            self._bags += 1
            return done

    def _finish(self) -> None:
        try:
            done = self._stop({})
        except BagError as error:
            self._fail(error)
            return
        text = f'{done.path}: {done.messages} messages, {done.dropped} dropped, {self._lost} lost'
        if done.dropped or self._lost:  # a call that changes its severity makes rclpy raise
            self.get_logger().warning(text)
        else:
            self.get_logger().info(text)

    @property
    def _lost(self) -> int:
        """Messages of this bag that were sent, but never came."""
        return self._tap.lost - self._lost_before

    def _watch(self) -> None:
        if self._recorder.error and self._recorder.error != self._failure:
            self._fail(BagError(self._recorder.error))
        due = self._stop_due
        if due is not None and time.monotonic() >= due:
            with self._bag_lock:
                if self._stop_due == due:  # no other episode has begun
                    self._finish()

    def _fail(self, error: BagError) -> None:
        if str(error) != self._failure:
            self.get_logger().error(f'recording failed: {error}')
        self._failure = str(error)
        self.exit_code = int(self._config.start)

    def _on_start(
        self, request: RecorderStart.Request, response: RecorderStart.Response
    ) -> RecorderStart.Response:
        try:
            custom = _pairs(request.keys, request.values)
            response.path = str(self._start(request.name, self.now_ns(), custom))
            response.success, response.message = True, 'recording'
        except BagError as error:
            response.message = str(error)
        return response

    def _on_stop(
        self, request: RecorderStop.Request, response: RecorderStop.Response
    ) -> RecorderStop.Response:
        try:
            done = self._stop(_pairs(request.keys, request.values))
            response.success, response.path = True, str(done.path)
            response.message = f'complete, {self._lost} messages never came'
            response.messages, response.dropped = done.messages, done.dropped
        except BagError as error:
            self._fail(error)
            response.message = str(error)
        return response

    def _on_split(
        self, request: RecorderSplit.Request, response: RecorderSplit.Response
    ) -> RecorderSplit.Response:
        try:
            with self._bag_lock:
                response.path = str(self._recorder.split())
            response.success, response.message = True, 'goes on in the next file'
        except BagError as error:
            response.message = str(error)
        return response

    def _numbers(self) -> dict[str, int]:
        recorder = self._recorder
        return {
            'bags': self._bags,
            'topics': len(self._discovery.followed),
            'messages': recorder.messages,
            'dropped': recorder.dropped,
            'dropped_total': recorder.dropped_total,
            'lost_total': self._tap.lost,
            'queued_bytes': recorder.queued_bytes,
            'written_bytes': recorder.written_bytes,
        }

    def _publish_numbers(self) -> None:
        numbers = {name: float(value) for name, value in self._numbers().items()}
        self._plot.publish(convert.numbers_to_array(numbers))

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what is recorded, dropped, and why recording failed."""
        recorder, refused = self._recorder, self._discovery.refused
        numbers = {'bag': recorder.path or '', **self._numbers(), 'free_mb': self._free_mb()}
        if self._failure:
            return DiagnosticStatus.ERROR, self._failure, numbers
        if recorder.dropped:
            return DiagnosticStatus.WARN, f'{recorder.dropped} messages dropped', numbers
        if refused:
            return DiagnosticStatus.WARN, f'not recorded: {", ".join(sorted(refused))}', numbers
        return DiagnosticStatus.OK, 'recording' if recorder.path else 'waiting', numbers

    def _free_mb(self) -> int:
        try:
            return shutil.disk_usage(self._config.directory).free // 2**20
        except OSError:  # made with the first bag
            return -1

    def shutdown(self) -> None:
        """Complete the bag under way."""
        if self._recorder.path is not None:
            self._finish()
        self._tap.close()
        missing = [t for t in self._config.topics if t not in self._discovery.followed]
        if missing:
            self.get_logger().warning(f'nobody published {", ".join(missing)}')


def _pairs(keys: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    if len(keys) != len(values):
        raise BagError(f'{len(keys)} keys, {len(values)} values')
    return dict(zip(keys, values, strict=True))


def main() -> None:
    """Run the node."""
    # The wait set of the other executor wakes for each message that the tap's waits for.
    spin.main(RecorderNode, executor='events')


if __name__ == '__main__':
    main()
