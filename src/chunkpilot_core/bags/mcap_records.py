"""
Records of MCAP files that nobody vouches for: every length is compared with what is there.

The readers of ``mcap`` and ``rosbags`` trust lengths and decompress without a bound. The layout of
records is that of https://mcap.dev/spec; small ones are parsed by the classes of ``mcap``.
"""

from collections.abc import Collection, Iterator
from io import BytesIO
from pathlib import Path
import struct
from typing import Any, BinaryIO
import zlib

from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.storage import Channel, MAX_RECORD_BYTES, Row
from chunkpilot_core.errors import BagError, damage
import lz4.frame
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.exceptions import EndOfFile
from mcap.opcode import Opcode
import zstandard

MAGIC = b'\x89MCAP0\r\n'
HEAD = struct.Struct('<BQ')
"""Opcode and length of a record."""
MESSAGE = struct.Struct('<HIQQ')
"""Channel, sequence, time of receipt, time of sending."""
FOOTER_BYTES = HEAD.size + 20
_CHUNK = struct.Struct('<QQQI')


class Guard:
    """Turns what damaged bytes cause into one error that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Translate an exception."""
        if isinstance(error, BagError | GeneratorExit) or not isinstance(error, Exception):
            return
        plain = isinstance(error, ValueError | OSError) and not isinstance(error, UnicodeError)
        text = str(error) if plain and str(error) else f'damaged: {words(error)}'
        raise BagError(f'{self.path}: {text[:400]}') from error


def check_header(stream: BinaryIO, size: int) -> int:
    """
    Read magic and header of a file; returns where its records begin.

    :raises ValueError: another kind of file
    """
    stream.seek(0)
    magic = stream.read(len(MAGIC))
    if not magic:
        raise ValueError('empty')
    if magic != MAGIC:
        raise ValueError(f'not an MCAP file, it begins with {magic!r}')
    opcode, content = read_record(stream, size)
    if opcode != Opcode.HEADER:
        raise ValueError('damaged: no header')
    profile = parse(records.Header, content).profile
    if profile not in ('ros2', ''):
        raise ValueError(f'recorded with profile {profile[:50]!r}, not by ROS 2')
    return stream.tell()


def as_channel(entry: records.Channel, schema: records.Schema | None, count: int) -> Channel:
    """
    Return a channel with what its schema tells.

    :raises ValueError: the schema is damaged
    """
    meta = entry.metadata
    digest = meta.get('topic_type_hash', '')
    if schema is None:
        definition = Definition('', '', '', digest)
    else:
        text = schema.data.decode()
        encoding = schema.encoding if text.strip() or schema.encoding != 'ros2msg' else ''
        definition = Definition(schema.name, encoding, text, digest)
    return Channel(
        entry.id,
        entry.topic,
        definition,
        entry.message_encoding,
        meta.get('offered_qos_profiles', ''),
        count,
    )


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """
    Read bytes.

    :raises ValueError: too many, or not there
    """
    if size > MAX_RECORD_BYTES:
        raise ValueError(too_large('a record', size))
    offset = stream.tell()
    data = stream.read(size)
    if len(data) != size:
        raise ValueError(f'cut off: {size} bytes expected at byte {offset}, {len(data)} are there')
    return data


def read_record(stream: BinaryIO, end: int) -> tuple[int, bytes]:
    """
    Read the record that begins here: opcode and content.

    :raises ValueError: cut off, or longer than the file
    """
    offset = stream.tell()
    opcode, length = HEAD.unpack(read_exactly(stream, HEAD.size))
    if stream.tell() + length > end:
        raise ValueError(
            f'damaged: a record of {length} bytes at byte {offset}, the end is nearer'
        )
    return opcode, read_exactly(stream, length)


def records_in(data: bytes) -> Iterator[tuple[int, Any]]:
    """
    Iterate over the records in a chunk or summary: opcode and content.

    :raises ValueError: one is longer than what there is
    """
    view, position = memoryview(data), 0
    while position < len(view):
        if position + HEAD.size > len(view):
            raise ValueError('damaged: half a record')
        opcode, length = HEAD.unpack_from(view, position)
        begin = position + HEAD.size
        position = begin + length
        if position > len(view):
            raise ValueError(f'damaged: a record of {length} bytes, {len(view) - begin} are there')
        yield opcode, view[begin:position]


def messages_in(data: bytes, wanted: Collection[int] | None) -> Iterator[Row]:
    """
    Iterate over the messages of some channels, None = all, in the order of the bytes.

    :raises ValueError: damaged
    """
    for opcode, content in records_in(data):
        if opcode != Opcode.MESSAGE:
            continue
        if len(content) < MESSAGE.size:
            raise ValueError(f'damaged: a message record of {len(content)} bytes')
        channel, sequence, stamp_ns, sent_ns = MESSAGE.unpack_from(content)
        if wanted is None or channel in wanted:
            yield stamp_ns, channel, bytes(content[MESSAGE.size :]), sent_ns, sequence


def unpacked(content: memoryview) -> bytes:
    """
    Return the records in a chunk, decompressed within its own bounds.

    :raises ValueError: damaged, too large, or compressed in a way that is not known
    """
    _, _, size, checksum = _CHUNK.unpack_from(content)
    position = _CHUNK.size + 4
    length = struct.unpack_from('<I', content, _CHUNK.size)[0]
    if length > 20:
        raise ValueError('damaged: no compression has so long a name')
    compression = bytes(content[position : position + length]).decode()
    position += length
    packed_size = struct.unpack_from('<Q', content, position)[0]
    packed = content[position + 8 :]
    if packed_size > len(packed):
        raise ValueError(f'damaged: a chunk of {packed_size} bytes, {len(packed)} are there')
    if size > MAX_RECORD_BYTES:
        raise ValueError(too_large('a chunk', size))
    data = decompressed(bytes(packed[:packed_size]), compression, size)
    if len(data) != size:
        raise ValueError(f'damaged: a chunk of {size} bytes has {len(data)}')
    if checksum and zlib.crc32(data) != checksum:
        raise ValueError('damaged: checksum of a chunk')
    return data


def decompressed(data: bytes, compression: str, size: int) -> bytes:
    """
    Decompress at most so many bytes.

    :raises ValueError: damaged, more than that, or an unknown compression
    """
    if compression == '':
        return data
    if compression == 'zstd':
        try:
            told = zstandard.frame_content_size(data)
            if told not in (-1, size):  # else it would be believed and allocated
                raise ValueError(f'damaged: a chunk of {size} bytes says that it has {told}')
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(f'damaged: {error}') from error
    if compression == 'lz4':
        try:
            return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1))
        except (RuntimeError, EOFError) as error:
            raise ValueError(f'damaged: {error}') from error
    raise ValueError(f'compression {compression!r} is not known')


def parse(kind: Any, content: Any) -> Any:
    """
    Parse a small record by the library.

    :raises ValueError: damaged
    """
    try:
        return kind.read(ReadDataStream(BytesIO(content)))
    except Exception as error:  # mcap raises its own, struct's and decoding errors
        name = kind.__name__.lower()
        raise ValueError(f'damaged: {name} record: {words(error)}'[:300]) from error


def words(error: Exception) -> str:
    """Say what is wrong with damaged bytes, without words of Python."""
    return 'it ends too early' if isinstance(error, EndOfFile) else damage(error)


def too_large(what: str, size: int) -> str:
    """Return the words for it."""
    return f'{what} of {size} bytes, at most {MAX_RECORD_BYTES} are read'
