"""
Records every topic of the graph: one bag per episode, or from start to stop by service.

Raw bytes only, handed to the thread of :class:`chunkpilot_core.bags.recorder.Recorder`. Topics are
followed from the start, not only while a bag is written: a subscription loses what is sent in its
first half second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
import re
import time
from typing import Any

from chunkpilot.msg import EpisodeEvent, Outcome
from chunkpilot.srv import RecorderStart, RecorderStop
from chunkpilot_core.bags.recorder import Recorder
from chunkpilot_core.bags.writer import TopicQos
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import EpisodeOutcome
from chunkpilot_nodes import convert, params, spin
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

_DEPTH = 500  # what DDS keeps while a bag is being completed


@dataclass(frozen=True)
class Config:
    """What is recorded, and where to."""

    directory: str = option('runs/bags', 'folder of the bags')
    per_episode: bool = option(True, 'record each episode into a bag of its own name')
    exclude: tuple[str, ...] = option(
        ('/parameter_events',), 'topics that are not recorded, full names'
    )
    max_queue_mb: int = option(
        64, 'messages that wait for the disk; more are dropped and counted', unit='MB', min=1
    )
    stop_after_s: float = option(
        0.5, 'recording goes on so long after an episode ended', unit='s', min=0.0, max=60.0
    )


class RecorderNode(spin.SupervisedNode):
    """Thin adapter around :class:`Recorder`."""

    def __init__(self) -> None:
        super().__init__('recorder_node')
        self._config = params.declare(self, Config)
        self._recorder = Recorder(max_queue_bytes=self._config.max_queue_mb * 1024 * 1024)
        self._followed: set[str] = set()
        self._failure = ''
        self._stop_due: float | None = None
        self._ending: dict[str, str] = {}
        self._bags = 0
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_service(RecorderStart, 'recorder/start', self._on_start)
        self.create_service(RecorderStop, 'recorder/stop', self._on_stop)
        self.create_timer(0.25, self._discover, clock=steady)
        self.create_timer(0.1, self._watch, clock=steady)
        self._discover()
        self.get_logger().info(
            f'bags go to {Path(self._config.directory).resolve()}, '
            + ('one per episode' if self._config.per_episode else 'by service')
        )

    def _discover(self) -> None:
        for topic, types in self.get_topic_names_and_types():
            if topic in self._followed or topic in self._config.exclude or '/_' in topic:
                continue
            offered = [info.qos_profile for info in self.get_publishers_info_by_topic(topic)]
            if offered:
                self._followed.add(topic)
                self._follow(topic, types, offered)

    def _follow(self, topic: str, types: list[str], offered: list[QoSProfile]) -> None:
        qos = TopicQos(
            reliable=all(q.reliability == ReliabilityPolicy.RELIABLE for q in offered),
            latched=all(q.durability == DurabilityPolicy.TRANSIENT_LOCAL for q in offered),
            depth=max(q.depth for q in offered),
        )
        try:
            if len(types) != 1:
                raise BagError(f'{topic} has {len(types)} types: {types}')
            message_class = _message_class(types[0])
            self._recorder.add_topic(topic, types[0], qos)
        except BagError as error:
            self.get_logger().error(f'{topic} is not recorded: {error}')
            return
        handle = self._on_message
        if message_class in (EpisodeEvent, Outcome) and self._config.per_episode:
            handle = partial(self._on_event, message_class=message_class)
        self.create_subscription(
            message_class, topic, partial(handle, topic), _subscription_qos(qos), raw=True
        )

    def _on_message(self, topic: str, data: bytes) -> None:
        self._recorder.put(topic, self.now_ns(), data)

    def _on_event(self, topic: str, data: bytes, message_class: type[Any]) -> None:
        self._on_message(topic, data)
        event = deserialize_message(data, message_class)
        if isinstance(event, Outcome):
            self._ending = {
                'episode_id': event.episode_id,
                'outcome': convert.member(EpisodeOutcome, event.outcome).name.lower(),
                'reason': event.reason,
            }
        elif event.event == EpisodeEvent.START:
            self._begin(event)
        elif self._recorder.path is not None:
            self._stop_due = time.monotonic() + self._config.stop_after_s

    def _begin(self, event: EpisodeEvent) -> None:
        if self._recorder.path is not None:
            self._finish()
        self._ending = {'episode_id': event.episode_id}
        try:
            self._start(re.sub(r'[^A-Za-z0-9._-]', '_', event.episode_id).lstrip('.'))
        except BagError as error:
            self._fail(error)

    def _start(self, name: str) -> Path:
        if not re.fullmatch(r'[A-Za-z0-9_-][A-Za-z0-9._-]*|', name):
            raise BagError(f'bag name {name!r}: letters, digits, ".", "_" and "-" are allowed')
        folder = Path(self._config.directory)
        path = folder / (name or time.strftime('rosbag2_%Y_%m_%d-%H_%M_%S'))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BagError(f'{folder}: {error}') from error
        number = 2
        while path.exists():  # episode ids of an earlier run
            path = path.with_name(f'{name}-{number}')
            number += 1
        self._discover()
        self._recorder.start(path, self.now_ns())
        self._failure = ''
        return path

    def _finish(self, metadata: Mapping[str, str] | None = None) -> None:
        self._stop_due = None
        try:
            done = self._recorder.stop(self._ending if metadata is None else metadata)
        except BagError as error:
            self._fail(error)
            return
        self._bags += 1
        text = f'{done.path}: {done.messages} messages, {done.dropped} dropped'
        if done.dropped:  # not from the same line: rclpy raises when a call changes its severity
            self.get_logger().warning(text)
        else:
            self.get_logger().info(text)

    def _watch(self) -> None:
        if self._recorder.error and self._recorder.error != self._failure:
            self._fail(BagError(self._recorder.error))
        if self._stop_due is not None and time.monotonic() >= self._stop_due:
            self._finish()

    def _fail(self, error: BagError) -> None:
        if str(error) != self._failure:
            self.get_logger().error(f'recording failed: {error}')
        self._failure = str(error)

    def _on_start(
        self, request: RecorderStart.Request, response: RecorderStart.Response
    ) -> RecorderStart.Response:
        try:
            if len(request.keys) != len(request.values):
                raise BagError(f'{len(request.keys)} keys, {len(request.values)} values')
            response.path = str(self._start(request.name))
            self._ending = dict(zip(request.keys, request.values, strict=True))
            response.success, response.message = True, 'recording'
        except BagError as error:
            response.message = str(error)
        return response

    def _on_stop(
        self, request: RecorderStop.Request, response: RecorderStop.Response
    ) -> RecorderStop.Response:
        self._stop_due = None
        try:
            if len(request.keys) != len(request.values):
                raise BagError(f'{len(request.keys)} keys, {len(request.values)} values')
            given = dict(zip(request.keys, request.values, strict=True))
            done = self._recorder.stop({**self._ending, **given})
            response.success, response.message = True, 'complete'
            response.path = str(done.path)
            response.messages, response.dropped = done.messages, done.dropped
            self._bags += 1
        except BagError as error:
            self._fail(error)
            response.message = str(error)
        return response

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what is recorded, dropped, and why recording failed."""
        recorder = self._recorder
        numbers = {
            'bag': recorder.path or '',
            'bags': self._bags,
            'topics': len(self._followed),
            'messages': recorder.messages,
            'dropped': recorder.dropped,
            'dropped_total': recorder.dropped_total,
            'queued_bytes': recorder.queued_bytes,
        }
        if self._failure:
            return DiagnosticStatus.ERROR, self._failure, numbers
        if recorder.dropped:
            return DiagnosticStatus.WARN, f'{recorder.dropped} messages dropped', numbers
        return DiagnosticStatus.OK, 'recording' if recorder.path else 'waiting', numbers

    def shutdown(self) -> None:
        """Complete the bag under way."""
        if self._recorder.path is not None:
            self._finish()


def _message_class(type_name: str) -> type[Any]:
    package, _, name = type_name.partition('/msg/')
    try:
        found: type[Any] = getattr(import_module(f'{package}.msg'), name)
    except (ImportError, AttributeError) as error:
        raise BagError(f'type {type_name} is not installed here') from error
    return found


def _subscription_qos(qos: TopicQos) -> QoSProfile:
    latched, reliable = DurabilityPolicy.TRANSIENT_LOCAL, ReliabilityPolicy.RELIABLE
    return QoSProfile(
        depth=_DEPTH,
        reliability=reliable if qos.reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=latched if qos.latched else DurabilityPolicy.VOLATILE,
    )


def main() -> None:
    """Run the node."""
    spin.main(RecorderNode, executor='events')


if __name__ == '__main__':
    main()
