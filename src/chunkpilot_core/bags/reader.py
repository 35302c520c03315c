"""
Reads rosbag2 folders of any storage, with the definitions that the bag carries.

Bags come from anywhere: other machines, domains, clocks, recorders, and people who mean harm. What
is wrong with one is a BagError that names file and reason; see test/bags/test_hostile.py.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
import shutil
import tempfile
from types import TracebackType
from typing import Any

from chunkpilot_core.bags import metadata as metadata_file
from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.information import REPEATED
from chunkpilot_core.bags.mcap_file import McapFile
from chunkpilot_core.bags.mcap_records import Guard
from chunkpilot_core.bags.metadata import Metadata, regular_file
from chunkpilot_core.bags.schemas import Decoder
from chunkpilot_core.bags.sqlite_file import decompressed_message, SqliteFile
from chunkpilot_core.bags.storage import (
    Channel,
    in_time_order,
    MAX_STAMP_NS,
    Row,
    Source,
    StorageFile,
)
from chunkpilot_core.bags.topics import join, Topic
from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.errors import BagError, UnknownNameError
import zstandard

_COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Message:
    """One recorded message: received at ``stamp_ns``, serialised as ``cdr``."""

    topic: str
    type_name: str
    stamp_ns: int
    cdr: bytes
    published_ns: int | None = None
    """Time of sending, where it is known."""
    sequence: int = 0
    """The publisher's number of the message, 0 = not known."""


class BagReader:
    """One bag, opened for reading; use it in a with block."""

    def __init__(self, path: str | Path) -> None:
        """
        Open a bag.

        :param path: the bag's folder, or a single .mcap or .db3 file
        :raises BagError: there is none, it was not finished, or it is damaged
        """
        self.path = Path(path)
        self._stack = ExitStack()
        self._metadata: Metadata | None = None
        try:
            self.files: tuple[Path, ...] = self._find()
            self._as_listed = [self._load(file) for file in self.files]
        except BaseException:
            self.close()
            raise
        self._storages = sorted(self._as_listed, key=lambda storage: storage.start_ns)
        self._topics = join(self.path, self._as_listed, self._metadata)

    @property
    def metadata(self) -> Mapping[str, str]:
        """What was given when the bag was closed."""
        return dict(self._metadata.custom) if self._metadata else {}

    @property
    def told(self) -> Metadata | None:
        """What metadata.yaml says, None for a single file."""
        return self._metadata

    @property
    def details(self) -> Mapping[str, Topic]:
        """Definition, quality of service and count of each topic."""
        return dict(self._topics)

    @property
    def topics(self) -> Mapping[str, str]:
        """Type of each topic."""
        return {name: topic.type_name for name, topic in self._topics.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of messages of each topic."""
        return {name: topic.count for name, topic in self._topics.items()}

    @property
    def start_ns(self) -> int:
        """Time of the first message, 0 without any."""
        return min((s.start_ns for s in self._storages if s.count), default=0)

    @property
    def end_ns(self) -> int:
        """Time of the last message, 0 without any."""
        return max((s.end_ns for s in self._storages if s.count), default=0)

    def messages(
        self,
        topics: Collection[str] | None = None,
        start_ns: int | None = None,
        stop_ns: int | None = None,
        repeated: bool = False,
    ) -> Iterator[Message]:
        """
        Iterate in the order of receipt.

        :param topics: only these; None = all
        :param start_ns: not those before this time
        :param stop_ns: only those before this time
        :param repeated: also the latched messages that our recorder wrote once more at the start
            of a further file; :attr:`counts` has them
        :raises UnknownNameError: a topic that the bag does not have
        :raises BagError: the bag is damaged
        """
        for topic in topics or ():
            if topic not in self._topics:
                raise UnknownNameError(f'topic in {self.path}', topic, self._topics)
        wanted = frozenset(self._topics if topics is None else topics)
        again = frozenset() if repeated else self._repeated_ns()
        for message in self._messages(wanted, start_ns, stop_ns):
            if message.stamp_ns not in again or not self._topics[message.topic].latched:
                yield message

    def _repeated_ns(self) -> frozenset[int]:
        words = self.metadata.get(REPEATED, '').split()
        return frozenset(int(word) for word in words if word.isdecimal() and len(word) < 20)

    def _messages(
        self, wanted: Collection[str], start_ns: int | None, stop_ns: int | None
    ) -> Iterator[Message]:
        chosen = {
            number: (storage, {c.id: c for c in storage.channels if c.topic in wanted})
            for number, storage in enumerate(self._storages)
        }
        if len(chosen) == 1:
            for row in chosen[0][0].messages(chosen[0][1], start_ns, stop_ns):
                yield self._message(row, *chosen[0])
            return
        low = 0 if start_ns is None else start_ns

        def opener(number: int) -> Callable[[], Iterator[Row]]:
            storage, channels = chosen[number]
            shift = number << 32  # channels of different files may have the same numbers
            return lambda: (
                (row[0], shift | row[1], row[2], row[3], row[4])
                for row in storage.messages(channels, start_ns, stop_ns)
            )

        sources = [
            Source(max(storage.start_ns, low), opener(number))
            for number, (storage, channels) in chosen.items()
            if channels
        ]
        for found in in_time_order(sources, self.path):
            row = (found[0], found[1] & 0xFFFFFFFF, found[2], found[3], found[4])
            yield self._message(row, *chosen[found[1] >> 32])

    def as_written(self) -> Iterator[Message]:
        """
        Iterate in the order in which the messages stand in the files: to see what clocks did.

        :raises BagError: the bag is damaged
        """
        for storage in self._as_listed:
            channels = {channel.id: channel for channel in storage.channels}
            for row in storage.as_written(channels):
                yield self._message(row, storage, channels)

    def decoder(self, topic: str) -> Decoder:
        """
        Return the decoder of a topic, by the definition in the bag or, without one, installed.

        :raises BagError: the definition can't be understood, or there is none
        """
        try:
            return schemas.decoder(self._topics[topic].definition)
        except BagError as error:
            raise BagError(f'{self.path}: {topic}: {error}') from error

    def decode(self, message: Message) -> Any:
        """
        Return a message as an object with the fields of its definition, arrays as numpy.

        :raises BagError: its bytes do not fit its definition
        """
        decoder = self.decoder(message.topic)
        try:
            return decoder.decode(message.cdr)
        except BagError as error:
            raise BagError(
                f'{self.path}: message of {message.topic} at {message.stamp_ns}: {error}'
            ) from error

    def close(self) -> None:
        """Remove what was unpacked."""
        self._stack.close()

    def _find(self) -> tuple[Path, ...]:
        """Return the files of the bag."""
        if self.path.name.endswith(UNFINISHED):
            raise BagError(
                f'{self.path}: unfinished, it is still recorded or its recorder was cut off; '
                f'"chunkpilot bag repair {self.path}" makes a bag of it'
            )
        beside = self.path.with_name(self.path.name + UNFINISHED)
        if not self.path.exists() and beside.exists():
            raise BagError(
                f'{self.path}: recording was cut off, {beside} is what there is; '
                f'"chunkpilot bag repair {beside}" makes a bag of it'
            )
        if not self.path.exists():
            raise BagError(f'{self.path}: no such bag')
        if not self.path.is_dir():
            return (regular_file(self.path, self.path.parent),)
        if not (self.path / 'metadata.yaml').exists():
            inside = sorted(found.parent.name for found in self.path.glob('*/metadata.yaml'))
            if inside:
                raise BagError(
                    f'{self.path}: a folder with {len(inside)} bags, name one: {inside[-1]}'
                )
            raise BagError(f'{self.path}: no bag, or an unfinished one: it has no metadata.yaml')
        self._metadata = metadata_file.read(self.path)
        return tuple(regular_file(self.path / name, self.path) for name in self._metadata.files)

    def _load(self, file: Path) -> StorageFile:
        if self._metadata and self._metadata.compression_mode == 'file':
            file = self._unpack(file)
        storage = self._metadata.storage if self._metadata else ''
        if storage == 'sqlite3' or (not storage and file.suffix == '.db3'):
            return SqliteFile(file)
        return McapFile(file)

    def _unpack(self, file: Path) -> Path:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix='chunkpilot-')))
        out = folder / file.name.removesuffix('.zstd')
        limit = shutil.disk_usage(folder).free // 2
        with Guard(file), file.open('rb') as packed, out.open('wb') as plain:
            reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
            while block := reader.read(_COPY_BYTES):
                limit -= len(block)
                if limit < 0:
                    raise ValueError(f'unpacked it fills half of what {folder.parent} has left')
                plain.write(block)
        return out

    def _message(self, row: Row, storage: StorageFile, channels: Mapping[int, Channel]) -> Message:
        stamp_ns, number, cdr, sent_ns, sequence = row
        channel = channels[number]
        if not 0 <= stamp_ns < MAX_STAMP_NS:
            raise BagError(
                f'{storage.path}: damaged: a message of {channel.topic} at {stamp_ns} ns'
            )
        if self._metadata and self._metadata.compression_mode == 'message':
            with Guard(storage.path):
                cdr = decompressed_message(cdr)
        kind = channel.definition.type_name
        published_ns = sent_ns if 0 < sent_ns < MAX_STAMP_NS else None
        return Message(channel.topic, kind, stamp_ns, cdr, published_ns, sequence)

    def __enter__(self) -> 'BagReader':
        """Read inside of a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()
