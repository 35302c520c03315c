"""
Writes one rosbag2 folder: MCAP with zstd chunks, raw CDR, definitions and type hashes inside.

The bag grows in ``<name>.unfinished/<name>/`` as ``<name>_0.mcap``, ``<name>_1.mcap``, ... and its
folder moves to ``<name>`` when it is complete: what carries a bag's name can be read by every
rosbag2 tool, whatever was killed while it was written. Only the last file of an unfinished bag
lacks its end; no unfinished bag has a metadata.yaml.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import errno
from pathlib import Path
import shutil
from types import TracebackType
from typing import TypeVar

from chunkpilot_core import files
from chunkpilot_core.bags import information
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.information import FileInfo, TopicInfo
from chunkpilot_core.bags.information import TopicQos as TopicQos
from chunkpilot_core.bags.mcap_writer import McapWriter
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.errors import BagError

UNFINISHED = '.unfinished'
CHUNK_BYTES = 768 * 1024
"""Uncompressed size at which a chunk is written, that of rosbag2."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar('T')


@dataclass(frozen=True, slots=True)
class _Ended:
    """A complete file."""

    file: FileInfo
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Topic:
    definition: Definition
    qos: tuple[TopicQos, ...]


class BagWriter:
    """One bag; every method but :meth:`abort` raises BagError when the disk does not take it."""

    def __init__(
        self,
        path: str | Path,
        definitions: Definitions | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """
        Create the unfinished bag.

        :param path: the bag's folder, which must not exist
        :param chunk_bytes: uncompressed size at which a chunk is written: what a kill can lose
            between two calls of :meth:`flush`
        :raises BagError: it exists, or can't be created
        """
        self.path = Path(path)
        self.messages = 0
        self._definitions = definitions or Definitions()
        self._chunk_bytes = chunk_bytes
        self._beside = self.path.with_name(self.path.name + UNFINISHED)
        self._folder = self._beside / self.path.name
        self._topics: dict[str, _Topic] = {}
        self._ended: list[_Ended] = []
        self._open: McapWriter | None = None
        self._previous: McapWriter | None = None
        self._channels: dict[str, int] = {}
        self._schemas: dict[Definition, int] = {}
        if taken(self.path):
            which = self.path if self.path.exists() else self._beside
            raise BagError(f'{which} exists already, bags are not overwritten')
        try:
            self._attempt(lambda: self._folder.mkdir(parents=True))
            self._attempt(self._next_file)
        except BagError:
            self.discard()
            raise

    @property
    def file(self) -> Path:
        """The file that grows."""
        return self._folder / f'{self.path.name}_{len(self._ended)}.mcap'

    @property
    def file_bytes(self) -> int:
        """Its size, what waits in memory included."""
        return self._mcap.size + self._mcap.pending_bytes

    @property
    def _mcap(self) -> McapWriter:
        if self._open is None:
            raise BagError(f'{self.path} is closed')
        return self._open

    def add_topic(
        self,
        topic: str,
        type_name: str,
        qos: TopicQos | Sequence[TopicQos] | None = None,
        definition: Definition | None = None,
    ) -> None:
        """
        Announce a topic; a second time is ignored.

        :param type_name: e.g. ``'chunkpilot/msg/Command'``
        :param qos: what its publishers offer, each its own
        :param definition: of the type, where it is known better than from what is installed;
            without text only its hash counts
        :raises BagError: no definition of the type, or the topic has another type already
        """
        known = self._topics.get(topic)
        if known is not None:
            if known.definition.type_name != type_name:
                raise BagError(f'{topic} is of type {known.definition.type_name}, not {type_name}')
            return
        if definition is None or not definition.text:
            text, digest = self._definitions.describe(type_name)
            if definition is not None and definition.hash:
                digest = definition.hash
            definition = Definition(type_name, 'ros2msg', text, digest)
        profiles = (qos or TopicQos(),) if isinstance(qos, TopicQos | None) else tuple(qos)
        self._topics[topic] = _Topic(definition, profiles)
        self._announce(topic)

    def write(
        self,
        topic: str,
        stamp_ns: int,
        cdr: bytes,
        published_ns: int | None = None,
        sequence: int = 0,
    ) -> None:
        """
        Append a serialised message.

        :param stamp_ns: time of receipt
        :param published_ns: time of sending; that of receipt where it is not known
        :param sequence: the publisher's number of the message, 0 = not known
        :raises BagError: unknown topic, no such time, or the disk does not take it
        """
        channel = self._channels.get(topic)
        if channel is None:
            raise BagError(f'{topic} was not announced to {self.path}')
        published_ns = stamp_ns if published_ns is None else published_ns
        if not (0 <= stamp_ns < 2**63 and 0 <= published_ns < 2**63):
            raise BagError(f'{topic}: time {stamp_ns} ns, must be 0 to 2**63 - 1')
        mcap = self._mcap
        mcap.write(channel, stamp_ns, cdr, published_ns, sequence)
        self.messages += 1
        if mcap.pending_bytes >= self._chunk_bytes:
            self._attempt(mcap.flush)

    def flush(self) -> None:
        """Hand what is pending to the operating system as a chunk of its own."""
        self._attempt(self._mcap.flush)

    def split(self) -> Path:
        """
        Complete the file and go on in the next one; returns that.

        :raises BagError: the disk does not take it
        """
        self._attempt(self._complete_file)
        self._attempt(self._next_file)
        return self.file

    def close(self, metadata: Mapping[str, str] | None = None) -> Path:
        """
        Complete the bag and give it its name.

        :param metadata: kept as custom data
        :returns: where it is
        :raises BagError: the disk does not take it; the bag stays unfinished
        """
        custom = {str(key): str(value) for key, value in (metadata or {}).items()}
        self._attempt(lambda: self._finish(custom))
        return self.path

    def salvage(self, metadata: Mapping[str, str] | None = None) -> Path:
        """
        Complete the bag after an error with what was written, and give it its name.

        Where the disk is full, the newest chunks make room for the index.

        :returns: where it is; :attr:`messages` tells how many it has
        :raises BagError: impossible; the bag stays unfinished
        """
        custom = {str(key): str(value) for key, value in (metadata or {}).items()}
        self._attempt(lambda: self._salvage(custom))
        return self.path

    def abort(self) -> None:
        """Leave the bag unfinished."""
        if self._open is not None:
            try:
                self._open.flush()
                self._open.close()
            except OSError:  # the disk that made us abort
                pass
            self._open = None

    def discard(self) -> None:
        """Remove the unfinished bag."""
        self.abort()
        shutil.rmtree(self._beside, ignore_errors=True)

    def _next_file(self) -> None:
        self._open = McapWriter(self.file)
        self._channels, self._schemas = {}, {}
        for topic in self._topics:
            self._announce(topic)

    def _announce(self, topic: str) -> None:
        entry, mcap = self._topics[topic], self._mcap
        of_type = entry.definition
        schema = self._schemas.get(of_type)
        if schema is None:
            schema = mcap.add_schema(of_type.type_name, of_type.encoding, of_type.text)
            self._schemas[of_type] = schema
        metadata = {
            'offered_qos_profiles': information.profiles_text(entry.qos),
            'topic_type_hash': of_type.hash,
        }
        self._channels[topic] = mcap.add_channel(topic, schema, metadata)

    def _complete_file(self) -> None:
        self._adopt(self._end_file({}))

    def _end_file(self, custom: Mapping[str, str]) -> _Ended:
        mcap = self._mcap
        mcap.flush()
        first, last = mcap.span_ns or (information.EMPTY_START_NS,) * 2
        counts = mcap.counts
        ended = _Ended(FileInfo(mcap.path.name, first, last, sum(counts.values())), counts)
        about = information.describe(self._infos(counts), [ended.file], custom)
        mcap.finish(information.dump(about))
        try:
            files.sync(mcap.path)  # a delayed write error has to come before the name
        except OSError:
            mcap.reopen()
            raise
        return ended

    def _adopt(self, ended: _Ended) -> None:
        self._mcap.close()
        self._previous, self._open, self._channels = self._open, None, {}
        self._ended.append(ended)

    def _infos(self, counts: Mapping[str, int]) -> list[TopicInfo]:
        return [
            TopicInfo(
                topic, entry.definition.type_name, entry.definition.hash, entry.qos, counts[topic]
            )
            for topic, entry in self._topics.items()
        ]

    def _finish(self, custom: Mapping[str, str]) -> None:
        last = None if self._open is None else self._end_file(custom)
        ended = [*self._ended, *([last] if last else [])]
        counts = {topic: sum(e.counts.get(topic, 0) for e in ended) for topic in self._topics}
        about = information.describe(self._infos(counts), [e.file for e in ended], custom)
        text = information.dump({'rosbag2_bagfile_information': about})
        try:
            files.write(self._folder / information.FILE, text)
        except OSError:
            if self._open is not None:
                self._open.reopen()
            raise
        if last is not None:
            self._adopt(last)
        self.messages = sum(counts.values())
        files.sync(self._folder)
        self._folder.rename(self.path)
        self._beside.rmdir()
        files.sync(self.path.parent)

    def _salvage(self, custom: Mapping[str, str]) -> None:
        while True:
            if self._open is not None:
                self._open.forget()
            try:
                return self._finish(custom)
            except OSError as error:
                if error.errno not in _FULL or not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Give up the newest chunk, or a file without any; returns False when all is gone."""
        if self._open is None:
            if self._previous is None:
                return False
            self._previous.reopen()
            self._open, self._previous = self._previous, None
            self._ended.pop()
        if not self._open.give_up_chunk():
            if not self._ended:
                return False
            self._open.close()
            self._open.path.unlink()
            self._open = None
        return True

    def _attempt(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            raise BagError(f'{self.path}: not written: {error.strerror or error}') from error

    def __enter__(self) -> 'BagWriter':
        """Write inside of a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the bag, or leave it unfinished after an exception."""
        if kind is None:
            self.close()
        else:
            self.abort()


def taken(path: Path) -> bool:
    """Say whether there is a bag of that name, finished or not."""
    return path.exists() or path.with_name(path.name + UNFINISHED).exists()
