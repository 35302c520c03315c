"""
Records messages in a thread of its own, so that who receives them never waits for the disk.

What does not fit the bounded queue is dropped and counted. The last message of every latched topic
is written again at each bag's start, so that each bag stands alone.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import threading

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError

_DRAIN_S = 0.2
"""How long messages gather before the thread takes them: few wake-ups, few locks."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished bag."""

    path: Path
    messages: int
    dropped: int


@dataclass(slots=True)
class _Topic:
    type_name: str
    qos: TopicQos
    last: tuple[int, bytes] | None = None


class Recorder:
    """Announce topics once, :meth:`put` what arrives, :meth:`start` and :meth:`stop` bags."""

    def __init__(
        self, definitions: Definitions | None = None, max_queue_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self.dropped = 0
        """Messages of this bag that found no place in the queue."""
        self.dropped_total = 0
        self.error = ''
        """Why the bag could not be written, '' while all is well."""
        self._definitions = definitions or Definitions()
        self._max_bytes = max_queue_bytes
        self._topics: dict[str, _Topic] = {}
        self._queue: deque[tuple[str, int, bytes]] = deque()
        self._queued_bytes = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._writer: BagWriter | None = None
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path | None:
        """The bag under way."""
        return self._writer.path if self._writer is not None else None

    @property
    def messages(self) -> int:
        """Messages written to the bag under way."""
        return self._writer.messages if self._writer is not None else 0

    @property
    def queued_bytes(self) -> int:
        """What waits for the disk."""
        return self._queued_bytes

    def add_topic(self, topic: str, type_name: str, qos: TopicQos | None = None) -> None:
        """
        Announce a topic.

        :raises BagError: no definition of its type
        """
        with self._wake:
            self._definitions.load(type_name)
            self._topics[topic] = _Topic(type_name, qos or TopicQos())

    def put(self, topic: str, stamp_ns: int, cdr: bytes) -> None:
        """Take a message of an announced topic; returns at once."""
        entry = self._topics[topic]
        with self._wake:
            if entry.qos.latched:
                entry.last = (stamp_ns, cdr)
            if self._writer is None or self._stopping or self.error:
                return
            if self._queued_bytes + len(cdr) > self._max_bytes:
                self.dropped += 1
                self.dropped_total += 1
                return
            self._queue.append((topic, stamp_ns, cdr))
            self._queued_bytes += len(cdr)

    def start(self, path: str | Path, stamp_ns: int) -> None:
        """
        Begin a bag with the last message of every latched topic.

        :param stamp_ns: now; those messages are stamped with it, as if received now
        :raises BagError: one is under way, or it can't be created
        """
        if self._writer is not None:
            raise BagError(f'{self._writer.path} is being recorded; stop it first')
        writer = BagWriter(path, self._definitions)
        try:
            with self._wake:
                for topic, entry in self._topics.items():
                    writer.add_topic(topic, entry.type_name, entry.qos)
                    if entry.last is not None:
                        writer.write(topic, stamp_ns, entry.last[1])
                self.dropped, self.error, self._stopping = 0, '', False
                self._queue.clear()
                self._queued_bytes = 0
                self._writer = writer
        except BagError:
            writer.discard()
            raise
        self._thread = threading.Thread(
            target=self._drain, args=(writer,), name='recorder', daemon=True
        )
        self._thread.start()

    def stop(self, metadata: Mapping[str, str] | None = None) -> Recorded:
        """
        Write what waits, complete the bag and give it its name.

        :raises BagError: none is under way, or the disk did not take everything; what there is
            stays as an unfinished bag
        """
        if self._writer is None or self._thread is None:
            raise BagError('no bag is being recorded')
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        writer, self._writer, self._thread = self._writer, None, None
        if self.error:
            writer.abort()
            raise BagError(self.error)
        try:
            path = writer.close({**(metadata or {}), 'dropped_messages': str(self.dropped)})
        except BagError as error:
            self.error = str(error)
            writer.abort()
            raise
        return Recorded(path, writer.messages, self.dropped)

    def _drain(self, writer: BagWriter) -> None:
        try:
            while True:
                with self._wake:
                    if not self._stopping:
                        self._wake.wait(_DRAIN_S)
                    batch = list(self._queue)
                    self._queue.clear()
                    finished = self._stopping and not batch
                if finished:
                    return
                self._write(writer, batch)
        except BagError as error:
            with self._wake:
                self.error = str(error)
                self._queue.clear()
                self._queued_bytes = 0

    def _write(self, writer: BagWriter, batch: list[tuple[str, int, bytes]]) -> None:
        for topic, stamp_ns, cdr in batch:
            entry = self._topics[topic]
            writer.add_topic(topic, entry.type_name, entry.qos)
            writer.write(topic, stamp_ns, cdr)
        with self._wake:
            self._queued_bytes -= sum(len(cdr) for _, _, cdr in batch)
