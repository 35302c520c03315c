"""
Reads MCAP files of ROS 2 by their index, or by an index made from what is there.

Nobody vouches for them, see mcap_records.py: what an index says is compared with the file.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
import struct
from typing import Any, BinaryIO

from chunkpilot_core.bags.mcap_records import (
    as_channel,
    check_header,
    FOOTER_BYTES,
    Guard,
    HEAD,
    MAGIC,
    MESSAGE,
    messages_in,
    parse,
    read_exactly,
    read_record,
    records_in,
    too_large,
    unpacked,
)
from chunkpilot_core.bags.storage import (
    Channel,
    in_time_order,
    MAX_RECORD_BYTES,
    MAX_STAMP_NS,
    Row,
    Source,
)
from mcap import records
from mcap.opcode import Opcode

_END_BYTES = FOOTER_BYTES + len(MAGIC)
_LOOSE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk, or messages outside of chunks that follow one another."""

    offset: int
    length: int
    start_ns: int
    end_ns: int
    size: int
    """Bytes that are held when it is read."""
    is_chunk: bool
    channels: frozenset[int] | None = None
    """Those that have messages in it; None = not known."""


class McapFile:
    """One MCAP file; opened only while something is read from it."""

    def __init__(self, path: Path) -> None:
        """
        Read the index, or make one where there is none.

        :raises BagError: no MCAP file, cut off, damaged, or not of ROS 2
        """
        self.path = path
        self.start_ns, self.end_ns, self.count = MAX_STAMP_NS, 0, 0
        self._schemas: dict[int, records.Schema] = {}
        self._channels: dict[int, records.Channel] = {}
        self._counts: dict[int, int] = {}
        self._spans: list[Span] = []  # as they stand in the file
        with self._guarded(), path.open('rb') as stream:
            self._end = stream.seek(0, 2)
            self._start = check_header(stream, self._end)
            if not self._read_summary(stream):
                self._scan(stream)
            if self.end_ns > MAX_STAMP_NS:
                raise ValueError(f'damaged: a message at {self.end_ns} ns')
        self.channels = [self._channel(entry) for entry in self._channels.values()]

    def messages(
        self,
        channels: Collection[int],
        start_ns: int | None = None,
        stop_ns: int | None = None,
    ) -> Iterator[Row]:
        """Iterate over the messages of some channels in [start, stop) in order of time."""
        low = 0 if start_ns is None else start_ns
        high = MAX_STAMP_NS if stop_ns is None else stop_ns
        wanted = frozenset(channels)
        chosen = [
            span
            for span in self._spans
            if span.start_ns < high
            and span.end_ns >= low
            and (span.channels is None or span.channels & wanted)
        ]
        with self._guarded(), self.path.open('rb') as stream:

            def rows(span: Span) -> Callable[[], Iterator[Row]]:
                return lambda: iter(
                    sorted(
                        (row for row in self._rows(stream, span, wanted) if low <= row[0] < high),
                        key=lambda row: row[0],
                    )
                )

            sources = [Source(max(s.start_ns, low), rows(s), s.size) for s in chosen]
            yield from in_time_order(sources, self.path)

    def as_written(self, channels: Collection[int]) -> Iterator[Row]:
        """Iterate over the messages of some channels as they stand in the file."""
        wanted = frozenset(channels)
        with self._guarded(), self.path.open('rb') as stream:
            for span in self._spans:
                yield from self._rows(stream, span, wanted)

    def _rows(self, stream: BinaryIO, span: Span, wanted: frozenset[int]) -> Iterator[Row]:
        stream.seek(span.offset)
        data = read_exactly(stream, span.length)
        if span.is_chunk:
            opcode, length = HEAD.unpack_from(data)
            if opcode != Opcode.CHUNK or length != span.length - HEAD.size:
                raise ValueError(f'damaged: no chunk at byte {span.offset}')
            data = unpacked(memoryview(data)[HEAD.size :])
        return messages_in(data, wanted)

    def _read_summary(self, stream: BinaryIO) -> bool:
        stream.seek(self._end - _END_BYTES)
        data = read_exactly(stream, _END_BYTES)
        if data[-len(MAGIC) :] != MAGIC or HEAD.unpack_from(data) != (Opcode.FOOTER, 20):
            raise ValueError('cut off: its end is missing; try "chunkpilot bag repair"')
        self._end -= _END_BYTES
        begin = struct.unpack_from('<Q', data, HEAD.size)[0]
        if not begin:
            return False
        if not self._start <= begin < self._end:
            raise ValueError(f'damaged: its summary is said to begin at byte {begin}')
        stream.seek(begin)
        summary = read_exactly(stream, min(self._end - begin, MAX_RECORD_BYTES + 1))
        statistics, chunks = None, []
        for opcode, content in records_in(summary):
            if opcode == Opcode.STATISTICS:
                statistics = parse(records.Statistics, content)
            elif opcode == Opcode.CHUNK_INDEX:
                chunks.append(parse(records.ChunkIndex, content))
            else:
                self._learn(opcode, content)
        complete = (
            statistics is not None
            and len(chunks) == statistics.chunk_count > 0
            and len(self._channels) == statistics.channel_count
        )
        if not complete or statistics is None:
            self._end = begin
            return False
        chunks.sort(key=lambda chunk: chunk.chunk_start_offset)
        self._spans = [self._span(chunk, begin) for chunk in chunks]
        if len({span.offset for span in self._spans}) != len(self._spans):
            raise ValueError('damaged: its index names a chunk twice')
        self._counts = dict(statistics.channel_message_counts)
        self.count = statistics.message_count
        if self.count:
            self.start_ns = statistics.message_start_time
            self.end_ns = statistics.message_end_time
        return True

    def _span(self, chunk: records.ChunkIndex, end: int) -> Span:
        begin, length = chunk.chunk_start_offset, chunk.chunk_length
        if not (self._start <= begin and begin + length <= end):
            raise ValueError(f'damaged: its index names bytes {begin} to {begin + length}')
        if max(length, chunk.uncompressed_size) > MAX_RECORD_BYTES:
            raise ValueError(too_large('a chunk', max(length, chunk.uncompressed_size)))
        known = frozenset(chunk.message_index_offsets) or None
        return Span(
            begin,
            length,
            chunk.message_start_time,
            chunk.message_end_time,
            length + chunk.uncompressed_size,
            True,
            known,
        )

    def _scan(self, stream: BinaryIO) -> None:
        """Make an index of a file that has none, by reading it."""
        loose: Span | None = None
        stream.seek(self._start)
        while stream.tell() < self._end:
            offset = stream.tell()
            opcode, content = read_record(stream, self._end)
            if opcode == Opcode.DATA_END:
                break
            length = HEAD.size + len(content)
            if opcode == Opcode.CHUNK:
                self._scan_chunk(offset, content)
            elif opcode == Opcode.MESSAGE:
                channel, _, stamp_ns, _ = MESSAGE.unpack_from(content)
                self._add(channel, stamp_ns)
                if loose is None or loose.length > _LOOSE_BYTES:
                    loose = Span(offset, 0, stamp_ns, stamp_ns, 0, False)
                    self._spans.append(loose)
                end = offset + length - loose.offset
                first, last = min(loose.start_ns, stamp_ns), max(loose.end_ns, stamp_ns)
                loose = replace(loose, length=end, size=end, start_ns=first, end_ns=last)
                self._spans[-1] = loose
                continue
            else:
                self._learn(opcode, content)
            loose = None

    def _scan_chunk(self, offset: int, content: bytes) -> None:
        data = unpacked(memoryview(content))
        first, last, channels = MAX_STAMP_NS, 0, set()
        for opcode, inner in records_in(data):
            if opcode == Opcode.MESSAGE:
                channel, _, stamp_ns, _ = MESSAGE.unpack_from(inner)
                first, last = min(first, stamp_ns), max(last, stamp_ns)
                channels.add(channel)
                self._add(channel, stamp_ns)
            else:
                self._learn(opcode, inner)
        if channels:
            length = HEAD.size + len(content)
            size = length + len(data)
            self._spans.append(Span(offset, length, first, last, size, True, frozenset(channels)))

    def _add(self, channel: int, stamp_ns: int) -> None:
        self._counts[channel] = self._counts.get(channel, 0) + 1
        self.count += 1
        self.start_ns, self.end_ns = min(self.start_ns, stamp_ns), max(self.end_ns, stamp_ns)

    def _learn(self, opcode: int, content: Any) -> None:
        if opcode == Opcode.SCHEMA:
            schema = parse(records.Schema, content)
            self._schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel = parse(records.Channel, content)
            self._channels[channel.id] = channel

    def _channel(self, entry: records.Channel) -> Channel:
        return as_channel(entry, self._schemas.get(entry.schema_id), self._counts.get(entry.id, 0))

    def _guarded(self) -> Guard:
        return Guard(self.path)
