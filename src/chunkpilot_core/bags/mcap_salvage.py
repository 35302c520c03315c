"""
Walks over the records of a damaged MCAP file: what makes no sense is jumped over to a chunk.

Chunks carry a checksum, so that what they say of types and topics counts more than the summary,
and both count more than records on their own.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
import mmap
from pathlib import Path
import re
import struct
from typing import Any, BinaryIO
import zlib

from chunkpilot_core.bags.mcap_records import (
    as_channel,
    check_header,
    FOOTER_BYTES,
    Guard,
    HEAD,
    MAGIC,
    MESSAGE,
    parse,
    read_exactly,
    read_record,
    records_in,
    unpacked,
)
from chunkpilot_core.bags.storage import Channel, MAX_RECORD_BYTES
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode

_COMPRESSED = re.compile(rb'\x04\0\0\0zstd|\x03\0\0\0lz4', re.DOTALL)
_BEFORE_NAME = HEAD.size + 28
"""Bytes of a chunk record in front of the name of its compression."""
_KINDS: dict[int, Any] = {
    Opcode.SCHEMA: records.Schema,
    Opcode.CHANNEL: records.Channel,
    Opcode.ATTACHMENT: records.Attachment,
    Opcode.METADATA: records.Metadata,
}


@dataclass(slots=True)
class Salvage:
    """What became of one file."""

    file: str
    messages: int = 0
    lost_messages: int = 0
    """In damaged chunks whose index is readable, of no known topic, or of no time."""
    lost_chunks: int = 0
    lost_bytes: int = 0
    """That make no sense, in front of the next chunk or of the end of the file."""
    reasons: list[str] = field(default_factory=list)


def walk(file: Path, salvage: Salvage) -> Iterator[tuple[int, bytes]]:
    """
    Iterate over the records of the data section, and over chunks behind what makes no sense.

    :raises BagError: no MCAP file of ROS 2, nor a chunk of one in it
    """
    with Guard(file), file.open('rb') as stream:
        end = stream.seek(0, 2)
        try:
            check_header(stream, end)
        except ValueError as error:
            if not _jump(stream, 0, end, salvage, str(error)):
                raise
        while (offset := stream.tell()) < end:
            try:
                opcode, content = read_record(stream, end)
                if not _sound(opcode, content):
                    raise ValueError(f'damaged: no record at byte {offset}')
            except ValueError as error:
                if not _jump(stream, offset, end, salvage, str(error)):
                    return
                continue
            if opcode in (Opcode.DATA_END, Opcode.FOOTER):
                return
            yield opcode, content


def _jump(stream: BinaryIO, offset: int, end: int, salvage: Salvage, reason: str) -> bool:
    """Go to the next chunk behind an offset; returns False where there is none."""
    found = _next_chunk(stream, offset + 1, end) if end else None
    salvage.lost_bytes += (end if found is None else found) - offset
    salvage.reasons.append(reason)
    if found is not None:
        stream.seek(found)
    return found is not None


def _next_chunk(stream: BinaryIO, begin: int, end: int) -> int | None:
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for match in _COMPRESSED.finditer(view, begin + _BEFORE_NAME):
            at = match.start() - _BEFORE_NAME
            opcode, length = HEAD.unpack_from(view, at)
            inside = at + HEAD.size + length <= end and length <= MAX_RECORD_BYTES
            if opcode == Opcode.CHUNK and inside and match.end() + 8 <= end:
                (packed,) = struct.unpack_from('<Q', view, match.end())
                if match.end() + 8 + packed == at + HEAD.size + length:
                    return at
    return None


def _sound(opcode: int, content: bytes) -> bool:
    """Return whether a record is as long as what it holds: a false length hides others."""
    size = len(content)
    if opcode == Opcode.CHUNK:
        if size < 40:
            return False
        name = _u32(content, 28)
        return name <= 20 and size == 40 + name + _packed_size(content, 32 + name)
    if opcode == Opcode.MESSAGE_INDEX:
        return size >= 6 and (size - 6) % 16 == 0 and _u32(content, 2) == size - 6
    if opcode == Opcode.MESSAGE:
        return size >= MESSAGE.size
    if opcode in (Opcode.DATA_END, Opcode.FOOTER):
        return size == (4 if opcode == Opcode.DATA_END else 20)
    if opcode in _KINDS:
        stream = BytesIO(content)
        try:
            _KINDS[opcode].read(ReadDataStream(stream))
        except Exception:  # mcap raises its own, struct's and decoding errors
            return False
        return bool(stream.tell() == size)
    return False


def _packed_size(content: bytes, at: int) -> int:
    return int(struct.unpack_from('<Q', content, at)[0]) if at + 8 <= len(content) else -1


def _u32(content: bytes, at: int) -> int:
    return int(struct.unpack_from('<I', content, at)[0])


class Known:
    """Schemas and channels of a file, those that can be trusted most."""

    def __init__(self, file: Path) -> None:
        """
        Gather them from everything that is left.

        :raises BagError: no MCAP file of ROS 2
        """
        chunks, loose = _Records(), _Records()
        for opcode, content in walk(file, Salvage(str(file))):
            if opcode == Opcode.CHUNK:
                with suppress(ValueError):
                    chunks.learn_all(records_in(unpacked(memoryview(content))))
            else:
                loose.learn(opcode, content)
        summary = _Records()
        with Guard(file), suppress(ValueError):
            summary.learn_all(records_in(_summary(file)))
        trusted = (loose, summary, chunks)  # the later ones replace the earlier ones
        self._schemas = {i: entry for part in trusted for i, entry in part.schemas.items()}
        self._channels = {i: entry for part in trusted for i, entry in part.channels.items()}

    def channels(self) -> list[Channel]:
        """Return those of ROS 2 with their schemas."""
        found = []
        for entry in self._channels.values():
            if entry.message_encoding == 'cdr':
                with suppress(ValueError):  # a damaged definition
                    found.append(as_channel(entry, self._schemas.get(entry.schema_id), 0))
        return found


def _summary(file: Path) -> bytes:
    """
    Return the records of the summary.

    :raises ValueError: none is there, or its checksum is another
    """
    with file.open('rb') as stream:
        end = stream.seek(0, 2) - FOOTER_BYTES - len(MAGIC)
        if end < 0:
            raise ValueError('too short')
        stream.seek(end)
        footer = read_exactly(stream, FOOTER_BYTES)
        opcode, length, begin, _, checksum = struct.unpack('<BQQQI', footer)
        if (opcode, length) != (Opcode.FOOTER, 20) or not 0 < begin <= end:
            raise ValueError('no footer')
        stream.seek(begin)
        data = read_exactly(stream, end - begin)
    if checksum and zlib.crc32(footer[:-4], zlib.crc32(data)) != checksum:
        raise ValueError('damaged: checksum of the summary')
    return data


class _Records:
    """Schemas and channels of one kind of place."""

    def __init__(self) -> None:
        self.schemas: dict[int, records.Schema] = {}
        self.channels: dict[int, records.Channel] = {}

    def learn(self, opcode: int, content: Any) -> None:
        """Take a record."""
        with suppress(ValueError):  # a damaged one
            if opcode == Opcode.SCHEMA:
                schema = parse(records.Schema, content)
                self.schemas[schema.id] = schema
            elif opcode == Opcode.CHANNEL:
                channel = parse(records.Channel, content)
                self.channels[channel.id] = channel

    def learn_all(self, found: Iterable[tuple[int, Any]]) -> None:
        """Take those of a chunk or summary."""
        for opcode, content in found:
            self.learn(opcode, content)
