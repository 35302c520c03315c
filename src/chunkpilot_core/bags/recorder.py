"""
Records messages in a thread of its own, so that who receives them never waits for the disk.

What does not fit the bounded queue is dropped and counted.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import threading

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.recording import in_force, Message, Recording, Topic
from chunkpilot_core.bags.recording import Limits as Limits
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError

_DRAIN_S = 0.2
"""How long messages gather before the thread takes them: few wake-ups, few locks."""
_FLUSH_ROUNDS = 3
"""Such times after which everything is handed to the operating system: kill -9 costs 0.8 s."""
_MAX_EARLY_NS = 2_000_000_000
_RECENT_NS, _RECENT_BYTES = 1_000_000_000, 32 * 1024 * 1024
"""What is remembered between bags: the news that one begins is slower than what follows it."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished bag."""

    path: Path
    messages: int
    dropped: int


class Recorder:
    """Announce topics once, :meth:`put` what arrives, :meth:`start` and :meth:`stop` bags."""

    def __init__(
        self,
        definitions: Definitions | None = None,
        max_queue_bytes: int = 64 * 1024 * 1024,
        limits: Limits | None = None,
    ) -> None:
        self.dropped = 0
        """Messages of this bag that found no place in the queue."""
        self.dropped_total = 0
        self.error = ''
        """Why the bag could not be written, '' while all is well."""
        self.written_bytes = 0
        """Of messages handed to bags, ever."""
        self.definitions = definitions or Definitions()
        self._max_bytes = max_queue_bytes
        self._limits = limits or Limits()
        self._topics: dict[str, Topic] = {}
        self._queue: deque[tuple[str, Message]] = deque()
        self._queued_bytes = 0
        self._recent: deque[tuple[str, Message]] = deque()
        self._recent_bytes = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._not_before_ns = 0
        self._bag: Recording | None = None
        self._thread: threading.Thread | None = None
        self._splits_asked = self._splits_done = 0

    @property
    def path(self) -> Path | None:
        """The bag under way."""
        return self._bag.writer.path if self._bag is not None else None

    @property
    def messages(self) -> int:
        """Messages written to the bag under way."""
        return self._bag.writer.messages if self._bag is not None else 0

    @property
    def queued_bytes(self) -> int:
        """What waits for the disk."""
        return self._queued_bytes

    def add_topic(
        self,
        topic: str,
        type_name: str,
        qos: TopicQos | tuple[TopicQos, ...] = (),
        digest: str = '',
    ) -> None:
        """
        Announce a topic, or other publishers of it, which count from the next bag on.

        :param qos: what each publisher offers
        :param digest: RIHS01 of the type as the graph has it; default: of what is installed
        :raises BagError: no definition of its type
        """
        profiles = (qos,) if isinstance(qos, TopicQos) else qos or (TopicQos(),)
        with self._wake:
            self.definitions.load(type_name)
            entry = Topic(type_name, profiles, digest)
            keep = in_force(profiles)
            if keep:
                known = self._topics.get(topic)
                entry.last = deque((known and known.last) or (), maxlen=keep)
            self._topics[topic] = entry

    def put(
        self,
        topic: str,
        stamp_ns: int,
        cdr: bytes,
        published_ns: int | None = None,
        sequence: int = 0,
    ) -> None:
        """
        Take a message of an announced topic; returns at once.

        :param stamp_ns: time of receipt
        :param published_ns: time of sending; that of receipt where it is not known
        :param sequence: the publisher's number of the message, 0 = not known
        """
        published_ns = stamp_ns if published_ns is None else published_ns
        message = Message(stamp_ns, cdr, published_ns, sequence)
        with self._wake:
            last = self._topics[topic].last
            if last is not None:
                last.append(message)
            if self._bag is None and last is None:
                self._remember(topic, message)
            if self._bag is None or self._stopping or self.error:
                return
            early_ns = self._not_before_ns - stamp_ns
            if last is None and 0 < early_ns < _MAX_EARLY_NS:  # more is a clock set back
                return
            if self._queued_bytes + len(cdr) > self._max_bytes:
                self.dropped += 1
                self.dropped_total += 1
                return
            self._queue.append((topic, message))
            self._queued_bytes += len(cdr)

    def start(self, path: str | Path, stamp_ns: int) -> None:
        """
        Begin a bag with the latched messages in force.

        :param stamp_ns: now, or a little earlier: what was put since then is in the bag, and what
            was received before and is put only then stays out. The latched messages are stamped
            with it, as if received then.
        :raises BagError: one is under way, or it can't be created
        """
        if self._bag is not None:
            raise BagError(f'{self._bag.writer.path} is being recorded; stop it first')
        writer = BagWriter(path, self.definitions)
        bag = Recording(writer, self._limits, stamp_ns)
        try:
            with self._wake:
                bag.begin(self._topics)
                self.dropped, self.error, self._stopping = 0, '', False
                self._not_before_ns = stamp_ns
                self._splits_asked = self._splits_done = 0
                self._queue = deque(e for e in self._recent if e[1].stamp_ns >= stamp_ns)
                self._queued_bytes = sum(len(message.cdr) for _, message in self._queue)
                self._recent.clear()
                self._recent_bytes = 0
                self._bag = bag
        except BagError:
            writer.discard()
            raise
        self._thread = threading.Thread(
            target=self._drain, args=(bag,), name='recorder', daemon=True
        )
        self._thread.start()

    def split(self) -> Path:
        """
        Go on in the next file; messages that wait still go to the one before. Returns the new one.

        :raises BagError: no bag is under way, or the disk does not take it
        """
        with self._wake:
            bag = self._bag
            if bag is None or self._stopping:
                raise BagError('no bag is being recorded')
            self._splits_asked += 1
            number = self._splits_asked
            self._wake.notify_all()
            self._wake.wait_for(
                lambda: self._splits_done >= number or self.error or self._stopping
            )
            if self._splits_done < number:
                raise BagError(self.error or f'{bag.writer.path} is being completed')
            return bag.writer.file

    def stop(self, metadata: Mapping[str, str] | None = None) -> Recorded:
        """
        Write what waits, complete the bag and give it its name.

        :raises BagError: none is under way, or the disk did not take everything
        """
        bag, thread = self._bag, self._thread
        if bag is None or thread is None:
            raise BagError('no bag is being recorded')
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        thread.join()
        self._bag = self._thread = None
        if self.error:
            raise BagError(self.error)
        try:
            path = bag.writer.close(bag.custom(metadata or {}, self.dropped))
        except BagError as error:
            self._fail(bag, str(error), metadata or {})
            raise BagError(self.error) from error
        return Recorded(path, bag.writer.messages, self.dropped)

    def _remember(self, topic: str, message: Message) -> None:
        self._recent.append((topic, message))
        self._recent_bytes += len(message.cdr)
        oldest_ns = message.stamp_ns - _RECENT_NS
        while self._recent_bytes > _RECENT_BYTES or self._recent[0][1].stamp_ns < oldest_ns:
            self._recent_bytes -= len(self._recent.popleft()[1].cdr)
            if not self._recent:
                return

    def _drain(self, bag: Recording) -> None:
        rounds = 0
        try:
            while True:
                with self._wake:
                    if not self._stopping and self._splits_asked == self._splits_done:
                        self._wake.wait(_DRAIN_S)
                    batch = list(self._queue)
                    self._queue.clear()
                    finished = self._stopping and not batch
                    splits = self._splits_asked
                if finished:
                    return
                self._write(bag, batch)
                rounds += 1
                if rounds >= _FLUSH_ROUNDS:
                    rounds = 0
                    self._not_before_ns = 0
                    bag.writer.flush()
                if splits > self._splits_done:
                    bag.split()
                    with self._wake:
                        self._splits_done = splits
                        self._wake.notify_all()
        except BagError as error:
            self._fail(bag, str(error), {})
        except Exception as error:  # a thread that died would record nothing, with success
            self._fail(bag, f'{bag.writer.path}: {type(error).__name__}: {error}', {})

    def _write(self, bag: Recording, batch: list[tuple[str, Message]]) -> None:
        for topic, message in batch:
            bag.write(topic, self._topics[topic], message)
        taken = sum(len(message.cdr) for _, message in batch)
        with self._wake:
            self._queued_bytes -= taken
            self.written_bytes += taken

    def _fail(self, bag: Recording, error: str, metadata: Mapping[str, str]) -> None:
        """Keep what was written, take nothing more, and say so."""
        text = bag.salvage(error, metadata, self.dropped)
        with self._wake:
            self.error = text
            self._queue.clear()
            self._queued_bytes = 0
            self._wake.notify_all()
