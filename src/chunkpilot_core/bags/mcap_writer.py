"""
Writes one MCAP file chunk by chunk, so that it can be ended anywhere: also on a full disk.

The records are those of the library ``mcap``. Its own writer is not used, because a write that
fails leaves it between two chunks for good; this one goes back to the last whole chunk, and can
give chunks up to make room for the index.

Types and topics stand in the chunk of their announcement and again in the next one, then rarely:
so that no single damaged chunk takes them away from all others, also in a file without an index.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import struct
import zlib

from chunkpilot_core.bags.mcap_records import MAGIC
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
import zstandard

_MESSAGE = struct.Struct('<BQHIQQ')
_LEVEL = 1  # a third of the CPU of level 3, 3 % larger
_AGAIN = frozenset(8**power for power in range(1, 11))
"""Chunks, counted from 0, that repeat all types and topics: 3 to 5 kB each after compression."""


@dataclass(slots=True)
class _Chunk:
    """A chunk that the operating system has; packed, for an hour of recording has many."""

    offset: int
    start_ns: int
    end_ns: int
    index: bytes
    counts: 'array[int]'
    """Channel, messages, channel, messages, ..."""


class McapWriter:
    """One file; every method may raise OSError, and the file is as it was before then."""

    def __init__(self, path: Path) -> None:
        """Create the file with its header."""
        self.path = path
        self.size = 0
        """Bytes that the operating system has."""
        self._file = path.open('xb', buffering=0)
        self._schemas: list[records.Schema] = []
        self._channels: list[records.Channel] = []
        self._chunks: list[_Chunk] = []
        self._totals: dict[int, int] = {}
        self._ended_at: int | None = None
        self._announced = False
        self._clear()
        builder = RecordBuilder()
        builder.write(MAGIC)
        records.Header('ros2', 'chunkpilot').write(builder)
        try:
            self._append(_taken(builder))
        except OSError:
            self._file.close()
            path.unlink()
            raise

    @property
    def pending_bytes(self) -> int:
        """What waits in memory to become a chunk."""
        return len(self._pending)

    @property
    def counts(self) -> dict[str, int]:
        """Messages of each topic, those that wait included."""
        return {
            channel.topic: self._totals[channel.id] + len(self._rows.get(channel.id, ()))
            for channel in self._channels
        }

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Earliest and latest log time; None without messages."""
        starts = [chunk.start_ns for chunk in self._chunks]
        ends = [chunk.end_ns for chunk in self._chunks]
        if self._rows:
            first, last = self._pending_span()
            starts.append(first)
            ends.append(last)
        return (min(starts), max(ends)) if starts else None

    def add_schema(self, name: str, encoding: str, text: str) -> int:
        """Announce a message type; returns its number."""
        schema = records.Schema(
            id=len(self._schemas) + 1, name=name, encoding=encoding, data=text.encode()
        )
        self._schemas.append(schema)
        self._pend(schema)
        return schema.id

    def add_channel(self, topic: str, schema: int, metadata: Mapping[str, str]) -> int:
        """Announce a topic; returns its number."""
        channel = records.Channel(
            id=len(self._channels) + 1,
            topic=topic,
            message_encoding='cdr',
            metadata=dict(metadata),
            schema_id=schema,
        )
        self._channels.append(channel)
        self._totals[channel.id] = 0
        self._pend(channel)
        return channel.id

    def write(
        self, channel: int, stamp_ns: int, cdr: bytes, published_ns: int, sequence: int
    ) -> None:
        """Add a message to what waits."""
        self._rows.setdefault(channel, []).append((stamp_ns, len(self._pending)))
        self._pending += _MESSAGE.pack(
            Opcode.MESSAGE,
            _MESSAGE.size - 9 + len(cdr),
            channel,
            sequence & 0xFFFFFFFF,
            stamp_ns,
            published_ns,
        )
        self._pending += cdr

    def flush(self) -> None:
        """Give the messages that wait to the operating system as a chunk with its index."""
        if not self._rows:
            return
        data = bytes(self._pending)
        first, last = self._pending_span()
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
        builder = RecordBuilder()
        records.Chunk(
            compression='zstd',
            data=packed,
            message_end_time=last,
            message_start_time=first,
            uncompressed_crc=zlib.crc32(data),
            uncompressed_size=len(data),
        ).write(builder)
        length = builder.count
        offsets = {}
        for channel, rows in self._rows.items():
            offsets[channel] = self.size + builder.count
            records.MessageIndex(channel, rows).write(builder)
        offset = self.size
        index = records.ChunkIndex(
            chunk_length=length,
            chunk_start_offset=self.size,
            compression='zstd',
            compressed_size=len(packed),
            message_end_time=last,
            message_index_length=builder.count - length,
            message_index_offsets=offsets,
            message_start_time=first,
            uncompressed_size=len(data),
        )
        self._append(_taken(builder))
        counts = array('L')
        for channel, rows in self._rows.items():
            counts.extend((channel, len(rows)))
            self._totals[channel] += len(rows)
        self._chunks.append(_Chunk(offset, first, last, _packed(index), counts))
        repeated = self._announced or len(self._chunks) in _AGAIN
        self._clear()
        if repeated:
            for record in (*self._schemas, *self._channels):
                self._pending += _packed(record)
            self._announced = False

    def finish(self, metadata: str) -> None:
        """
        Write index and end; messages that wait have to be flushed or forgotten before.

        :param metadata: what rosbag2 keeps in the file beside metadata.yaml
        """
        begin = self.size
        builder = RecordBuilder()
        records.Metadata('rosbag2', {'serialized_metadata': metadata}).write(builder)
        meta = records.MetadataIndex(begin, builder.count, 'rosbag2')
        records.DataEnd(0).write(builder)
        data = _taken(builder)
        self._append(data + self._summary(begin + len(data), meta))
        self._ended_at = begin

    def reopen(self) -> None:
        """Take back what :meth:`finish` wrote, also after :meth:`close`."""
        if self._file.closed:
            self._file = self.path.open('r+b', buffering=0)
        if self._ended_at is not None:
            self._cut(self._ended_at)
            self._ended_at = None

    def forget(self) -> None:
        """Drop the messages that wait."""
        self._clear()

    def give_up_chunk(self) -> bool:
        """Remove the last chunk from the file; returns False when there is none."""
        if not self._chunks:
            return False
        chunk = self._chunks[-1]
        self._cut(chunk.offset)
        for channel, count in zip(chunk.counts[::2], chunk.counts[1::2], strict=True):
            self._totals[channel] -= count
        self._chunks.pop()
        return True

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _summary(self, begin: int, meta: records.MetadataIndex) -> bytes:
        builder = RecordBuilder()
        groups: list[tuple[Opcode, list[bytes]]] = [
            (Opcode.SCHEMA, [_packed(schema) for schema in self._schemas]),
            (Opcode.CHANNEL, [_packed(channel) for channel in self._channels]),
            (Opcode.STATISTICS, [_packed(self._statistics())]),
            (Opcode.CHUNK_INDEX, [chunk.index for chunk in self._chunks]),
            (Opcode.METADATA_INDEX, [_packed(meta)]),
        ]
        offsets = []
        for opcode, members in groups:
            start = begin + builder.count
            builder.write(b''.join(members))
            if members:
                length = begin + builder.count - start
                offsets.append(records.SummaryOffset(opcode, start, length))
        offsets_at = begin + builder.count
        for offset in offsets:
            offset.write(builder)
        data = _taken(builder)
        footer = struct.pack('<BQQQ', Opcode.FOOTER, 20, begin, offsets_at)
        checksum = zlib.crc32(footer, zlib.crc32(data))
        return data + footer + struct.pack('<I', checksum) + MAGIC

    def _statistics(self) -> records.Statistics:
        counts, span = self._totals, self.span_ns or (0, 0)
        return records.Statistics(
            attachment_count=0,
            channel_count=len(self._channels),
            channel_message_counts=counts,
            chunk_count=len(self._chunks),
            message_count=sum(counts.values()),
            message_end_time=span[1],
            message_start_time=span[0],
            metadata_count=1,
            schema_count=len(self._schemas),
        )

    def _pending_span(self) -> tuple[int, int]:
        stamps = [stamp for rows in self._rows.values() for stamp, _ in rows]
        return min(stamps), max(stamps)

    def _pend(self, record: records.McapRecord) -> None:
        self._pending += _packed(record)
        self._announced = True

    def _clear(self) -> None:
        self._pending = bytearray()
        self._rows: dict[int, list[tuple[int, int]]] = {}

    def _append(self, data: bytes) -> None:
        rest, before = memoryview(data), self.size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._cut(before)
            raise
        self.size = before + len(data)

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size


def _packed(record: records.McapRecord) -> bytes:
    builder = RecordBuilder()
    record.write(builder)
    return _taken(builder)


def _taken(builder: RecordBuilder) -> bytes:
    return bytes(builder.end())  # type: ignore[no-untyped-call]
