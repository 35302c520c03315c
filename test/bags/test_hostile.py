"""
Bags from outside: whatever is in them, they are read or refused in words; nothing of them runs.

A hang is ended by the time limit of the tests, a blow-up by the memory that is measured.
"""

from collections.abc import Callable, Iterator
from io import BytesIO
import os
from pathlib import Path
import sqlite3
import struct
import tracemalloc

from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.definitions import share_folders
from chunkpilot_core.bags.play import Schedule
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.repair import repair
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.selection import Selection
from chunkpilot_core.bags.writer import BagWriter
from chunkpilot_core.errors import BagError
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from mcap.opcode import Opcode
from mcap.writer import CompressionType, Writer
import pytest
import yaml
import zstandard

STRING = 'std_msgs/msg/String'
MAGIC = b'\x89MCAP0\r\n'
MEMORY = 200 * 2**20
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)


def text(value: str) -> bytes:
    """Serialise a std_msgs/String."""
    data = value.encode() + b'\0'
    return b'\0\1\0\0' + struct.pack('<I', len(data)) + data


def read(path: Path) -> int:
    """Read and decode everything; returns how many messages there were."""
    count = 0
    with BagReader(path) as bag:
        assert bag.start_ns <= bag.end_ns or not sum(bag.counts.values())
        for message in bag.messages():
            bag.decode(message)
            count += 1
    return count


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[None]:
    """Measure the memory."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of a bag may run."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / 'ran').exists()


def numbered(*cases: object) -> dict:
    """Return arguments of parametrize; names made of hostile texts would be as long as those."""
    return {'argvalues': cases, 'ids': [str(number) for number in range(len(cases))]}


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return make(tmp_path / 'bag')


def make(path: Path) -> Path:
    """Write a good bag of two topics in two chunks."""
    with BagWriter(path) as writer:
        writer.add_topic('/text', STRING)
        writer.add_topic('/more', STRING)
        for i in range(40):
            writer.write('/text' if i % 3 else '/more', 1000 + i, text(f'number {i}'))
            if i == 20:
                writer.flush()
    return path


def change(bag: Path, edit: Callable[[dict], object]) -> None:
    """Edit the metadata of a bag."""
    file = bag / 'metadata.yaml'
    info = yaml.safe_load(file.read_text())
    edit(info['rosbag2_bagfile_information'])
    file.write_text(yaml.dump(info))


# metadata.yaml


@pytest.mark.parametrize(
    'name', ['../bag_0.mcap', '/etc/passwd', 'a/../../b.mcap', 'sub/bag_0.mcap', '', '.', 'a\0b']
)
def test_files_elsewhere_are_not_opened(bag: Path, name: str) -> None:
    change(bag, lambda info: info.update(relative_file_paths=[name]))
    with pytest.raises(BagError, match=r'metadata\.yaml.*relative_file_paths'):
        read(bag)


def test_links_out_of_the_folder_are_not_followed(bag: Path, tmp_path: Path) -> None:
    file = next(bag.glob('*.mcap'))
    file.rename(tmp_path / 'elsewhere.mcap')
    file.symlink_to(tmp_path / 'elsewhere.mcap')
    with pytest.raises(BagError, match=f'{file.name}.*link out of the folder'):
        read(bag)
    file.unlink()
    file.symlink_to(file.name)  # a circle
    with pytest.raises(BagError, match=file.name):
        read(bag)
    file.unlink()
    (tmp_path / 'elsewhere.mcap').rename(bag / 'inside')
    file.symlink_to('inside')
    assert read(bag) == 40


@pytest.mark.parametrize('name', ['metadata.yaml', 'bag_0.mcap'])
def test_pipes_and_folders_are_not_waited_for(bag: Path, name: str) -> None:
    file = bag / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BagError, match=f'{name}: not an ordinary file'):
        read(bag)
    file.unlink()
    file.mkdir()
    with pytest.raises(BagError, match=f'{name}: not an ordinary file'):
        read(bag)


BOMB = 'a: &a [x, x]\n' + '\n'.join(
    f'{chr(98 + i)}: &{chr(98 + i)} [{", ".join([f"*{chr(97 + i)}"] * 9)}]' for i in range(20)
)


@pytest.mark.parametrize(
    ('content', 'reason'),
    **numbered(
        (BOMB, 'alias'),
        ('[' * 5000, 'nest'),
        ('[' * 50 + ']' * 50, 'nested more'),
        ('a: ' * 5000, r'no YAML|nested'),
        ('!!python/object/apply:os.system ["touch ran"]', 'damaged'),
        ('rosbag2_bagfile_information: !!python/name:os.system', 'damaged'),
        ('', 'nothing where rosbag2_bagfile_information should stand'),
        ('[1, 2]', 'where rosbag2_bagfile_information should stand'),
        ('rosbag2_bagfile_information: [1]', 'has no names'),
        (
            'rosbag2_bagfile_information: {version: 9, storage_identifier: mcap, '
            'relative_file_paths: [], message_count: 1, starting_time: [3]}',
            r'starting_time: .* has no names',
        ),
        ('\x00\x01', 'no YAML'),
        ('rosbag2_bagfile_information: {}', "lacks 'version'"),
        ('rosbag2_bagfile_information: {version: 9e99}', 'damaged'),
        ('rosbag2_bagfile_information: {version: 10, storage_identifier: mcap}', 'version 10'),
        ('rosbag2_bagfile_information: {version: 9, storage_identifier: os}', "storage 'os'"),
        (
            f'rosbag2_bagfile_information: {{version: {"9" * 5004}}}',
            'version: .* is no whole number',
        ),
    ),
)
def test_metadata_that_means_harm(bag: Path, bounded: None, content: str, reason: str) -> None:
    (bag / 'metadata.yaml').write_text(content)
    with pytest.raises(BagError, match=rf'metadata\.yaml.*({reason})'):
        read(bag)


def test_huge_metadata_is_not_loaded(bag: Path) -> None:
    with (bag / 'metadata.yaml').open('wb') as stream:
        stream.truncate(2**36)  # a sparse file
    with pytest.raises(BagError, match='at most'):
        read(bag)


def test_metadata_and_file_must_agree(bag: Path) -> None:
    def other(info: dict) -> None:
        info['topics_with_message_count'][0]['topic_metadata']['type'] = 'std_msgs/msg/Int8'

    change(bag, other)
    with pytest.raises(BagError, match=r'is std_msgs/msg/String in its file'):
        read(bag)


# MCAP


def record(opcode: int, content: bytes, length: int | None = None) -> bytes:
    return struct.pack('<BQ', opcode, len(content) if length is None else length) + content


def string(value: str) -> bytes:
    return struct.pack('<I', len(value)) + value.encode()


def chunk(
    data: bytes,
    compression: str = '',
    size: int | None = None,
    packed: bytes | None = None,
    packed_size: int | None = None,
    checksum: int = 0,
) -> bytes:
    packed = data if packed is None else packed
    head = struct.pack('<QQQI', 0, 2**40, len(data) if size is None else size, checksum)
    told = struct.pack('<Q', len(packed) if packed_size is None else packed_size)
    return record(6, head + string(compression) + told + packed)


def message(stamp_ns: int, cdr: bytes, channel: int = 1) -> bytes:
    return record(5, struct.pack('<HIQQ', channel, 0, stamp_ns, stamp_ns) + cdr)


def known(kind: str = STRING, definition: str = 'string data', encoding: str = 'ros2msg') -> bytes:
    schema = struct.pack('<H', 1) + string(kind) + string(encoding) + string(definition)
    channel = struct.pack('<HH', 1, 1) + string('/text') + string('cdr') + struct.pack('<I', 0)
    return record(3, schema) + record(4, channel)


def file_of(path: Path, *parts: bytes, profile: str = 'ros2') -> Path:
    """Write an MCAP file without a summary."""
    header, footer = record(1, string(profile) + string('')), record(2, bytes(20))
    end = record(15, bytes(4)) + footer
    path.write_bytes(MAGIC + header + b''.join(parts) + end + MAGIC)
    return path


def test_the_files_of_these_tests_are_read_when_nothing_is_wrong(tmp_path: Path) -> None:
    two = message(5, text('a')) + message(6, text('b'))
    packed = zstandard.compress(two)
    file = file_of(
        tmp_path / 'a.mcap', known(), chunk(two), chunk(two, 'zstd', packed=packed), two
    )
    assert read(file) == 6


BIG = 2**40


@pytest.mark.parametrize(
    ('part', 'reason'),
    **numbered(
        (record(5, b'', 2**63), 'end is nearer'),
        (record(6, b'', 2**64 - 1), 'end is nearer'),
        (record(5, b'abc'), 'damaged'),
        (record(6, b'abc'), 'damaged'),
        (chunk(record(5, b'', BIG)), 'record of'),
        (chunk(record(5, b'abc')), 'damaged'),
        (chunk(b'', size=BIG), 'chunk of'),
        (chunk(b'', packed_size=BIG), 'chunk of'),
        (chunk(b'abc', size=4), 'chunk of'),
        (chunk(b'', 'zstd', size=BIG, packed=zstandard.compress(b'a')), 'chunk of'),
        (
            chunk(b'', 'zstd', size=100, packed=zstandard.compress(b'a' * 99)),
            'says that it has 99',
        ),
        (chunk(b'', 'zstd', size=100, packed=b'no zstd'), 'damaged'),
        (chunk(b'', 'lz4', size=100, packed=b'no lz4'), 'damaged'),
        (chunk(b'', 'rar', size=100, packed=b'rar'), 'not known'),
        (chunk(b'', 'x' * 1000, size=100), 'damaged'),
        (chunk(message(5, text('a')), checksum=1), 'checksum'),
        (record(4, struct.pack('<HH', 1, 1) + struct.pack('<I', 2**32 - 1)), 'damaged'),
        (record(3, struct.pack('<H', 1) + string('a') + struct.pack('<I', 2**31)), 'damaged'),
        (message(2**64 - 1, text('a')), 'damaged'),
    ),
)
def test_lengths_that_lie(tmp_path: Path, bounded: None, part: bytes, reason: str) -> None:
    file = file_of(tmp_path / 'bag.mcap', known(), part)
    with pytest.raises(BagError, match=rf'bag\.mcap.*({reason})'):
        read(file)


def test_what_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path: Path, bounded: None) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    packed = b''.join(compressor.compress(bytes(2**24)) for _ in range(16)) + compressor.flush()
    assert len(packed) < 2**17  # of 256 MiB
    for size in (1000, 2**26):
        file = file_of(tmp_path / 'bag.mcap', chunk(b'', 'zstd', size=size, packed=packed))
        with pytest.raises(BagError, match=r'bag\.mcap: damaged'):
            read(file)


def test_foreign_files_are_named(tmp_path: Path) -> None:
    file = file_of(tmp_path / 'bag.mcap', profile='ros1')
    with pytest.raises(BagError, match=r"bag\.mcap.*profile 'ros1'"):
        read(file)
    for content, reason in ((b'', 'empty'), (b'#ROSBAG V2.0\n', 'not an MCAP file')):
        file.write_bytes(content)
        with pytest.raises(BagError, match=rf'bag\.mcap: {reason}'):
            read(file)
    with file.open('wb') as stream:
        writer = Writer(stream, compression=CompressionType.NONE)
        writer.start('ros2')
        schema = writer.register_schema('Thing', 'jsonschema', b'{}')
        channel = writer.register_channel('/thing', 'json', schema)
        writer.add_message(channel, 1, b'{}', 1)
        writer.finish()
    with pytest.raises(BagError, match=r"bag\.mcap: /thing is serialised as 'json'"):
        read(file)


def indexed(path: Path, edit: Callable[[bytes], bytes]) -> Path:
    """Write an MCAP file with a summary, and change that."""
    stream = BytesIO()
    writer = Writer(stream, chunk_size=200)
    writer.start('ros2')
    schema = writer.register_schema(STRING, 'ros2msg', b'string data')
    channel = writer.register_channel('/text', 'cdr', schema)
    for i in range(20):
        writer.add_message(channel, 100 + i, text(f'number {i}'), 100 + i)
    writer.finish()
    data = stream.getvalue()
    begin = struct.unpack_from('<Q', data, len(data) - 28)[0]
    path.write_bytes(data[:begin] + edit(data[begin:]))
    return path


def test_an_index_that_lies(tmp_path: Path) -> None:
    path = tmp_path / 'bag.mcap'
    assert read(indexed(path, lambda summary: summary)) == 20

    def entry(number: int, offset: int, value: int) -> Callable[[bytes], bytes]:
        def edit(summary: bytes) -> bytes:
            data, position, seen = bytearray(summary), 0, 0
            while position < len(data):
                opcode, length = struct.unpack_from('<BQ', data, position)
                if opcode == 8:
                    if seen == number:
                        struct.pack_into('<Q', data, position + 9 + offset, value)
                        return bytes(data)
                    seen += 1
                position += 9 + length
            raise AssertionError

        return edit

    for offset, value, reason in (
        (0, 110, 'nothing is older'),  # start time
        (16, 2**62, 'names bytes'),  # offset of the chunk
        (16, 60, 'no chunk at byte 60'),
        (24, 2**62, 'names bytes'),  # its length
        (24, 50, 'no chunk'),
    ):
        with pytest.raises(BagError, match=rf'bag\.mcap.*{reason}'):
            read(indexed(path, entry(0, offset, value)))

    data = indexed(path, lambda summary: summary).read_bytes()
    begin = struct.unpack_from('<Q', data, len(data) - 28)[0]
    position, offsets = begin, []
    while data[position] != 2:
        opcode, length = struct.unpack_from('<BQ', data, position)
        if opcode == 8:
            offsets.append(position + 9 + 16)
        position += 9 + length
    edited = bytearray(data)
    edited[offsets[1] : offsets[1] + 16] = edited[offsets[0] : offsets[0] + 16]
    path.write_bytes(edited)
    with pytest.raises(BagError, match=r'bag\.mcap.*names a chunk twice'):
        read(path)


# definitions


@pytest.mark.parametrize(
    ('kind', 'definition', 'reason'),
    **numbered(
        ('a/msg/B', 'string data\n__import__("os").system("touch ran")', 'is no field'),
        ('a/msg/B', 'string data; import os', 'is no field'),
        ("a/msg/B'+open('ran','w')+'", 'string data', 'is no message type'),
        ('a/msg/B\nMSG: c/D', 'string data', 'is no message type'),
        ('a/msg/B', 'c/D data', 'lacks c/msg/D'),
        ('a/msg/B', 'B data', 'without end'),
        ('a/msg/B', f'C data\n{"=" * 80}\nMSG: a/C\nB data', 'without end'),
        ('a/msg/B', 'string[999999999] data', 'elements, at most'),
        ('a/msg/B', f'C[999999999] data\n{"=" * 80}\nMSG: a/C\nint8 x', 'elements, at most'),
        ('a/msg/B', 'uint8[0] data', 'has 0 elements'),
        ('a/msg/B', 'uint8[99999999999999999999] data', 'is no field'),
        ('a/msg/B', 'wstring data', 'not a|definition'),
        ('a/msg/B', 'string data\nstring data', 'conflicting'),
        ('a/msg/B', 'int8 x\n' * 200_000, 'characters, at most'),
        ('a/msg/B', ''.join(f"string x{i} '\n" for i in range(500)), ''),
        ('a/msg/B', '\0', 'is no field'),
    ),
)
def test_definitions_that_mean_harm(
    tmp_path: Path, bounded: None, kind: str, definition: str, reason: str
) -> None:
    file = file_of(tmp_path / 'bag.mcap', known(kind, definition), message(5, text('hello')))
    with pytest.raises(BagError, match=rf'(?i)bag\.mcap.*/text.*({reason})'):
        read(file)


def test_types_within_types_do_not_multiply() -> None:
    levels = [f'T{i + 1}[] a\nT{i + 1}[] b' for i in range(19)] + ['int8 x']
    parts = [f'{"=" * 80}\nMSG: a/T{i}\n{level}' for i, level in enumerate(levels)]
    definition = Definition('a/msg/T0', 'ros2msg', '\n'.join([levels[0], *parts[1:]]))
    decoder = schemas.decoder(definition)
    with pytest.raises(BagError):
        decoder.decode(b'\0\1\0\0' + b'\x01\0\0\0' * 1000)
    deep = [f'T{i + 1} a' for i in range(150)] + ['int8 x']
    parts = [f'{"=" * 80}\nMSG: a/T{i}\n{level}' for i, level in enumerate(deep)]
    with pytest.raises(BagError, match='without end'):
        schemas.decoder(Definition('a/msg/T0', 'ros2msg', '\n'.join([deep[0], *parts[1:]])))


@pytest.mark.parametrize(
    'idl',
    **numbered(
        'module a { module msg { struct B { int8 x[1 << 1000000000]; }; }; };',
        'module a { module msg { const uint64 C = 99999 * 99999; struct B { int8 x; }; }; };',
        'module a { module msg { struct B { a::msg::B x; }; }; };',
        'module a { module msg { struct B { int8 x',
        '((((' * 10_000,
    ),
)
def test_idl_that_means_harm(tmp_path: Path, idl: str) -> None:
    file = file_of(
        tmp_path / 'bag.mcap', known('a/msg/B', idl, 'ros2idl'), message(5, text('hello'))
    )
    with pytest.raises(BagError, match=r'bag\.mcap.*definition of a/msg/B'):
        read(file)


def test_idl_is_read() -> None:
    idl = 'module a { module msg { struct B { /* x*y */ string data; }; }; };'
    decoded = schemas.decoder(Definition('a/msg/B', 'ros2idl', idl)).decode(text('hello'))
    assert decoded.data == 'hello'


def test_constants_and_defaults_are_not_needed() -> None:
    definition = 'int32 A=1 # = 2\nstring S="a\nb" \n# c\n@key\nstring data "x y" # z\n'
    with pytest.raises(BagError, match='is no field'):  # a text over two lines
        schemas.decoder(Definition('a/msg/B', 'ros2msg', definition))
    plain = definition.replace('"a\nb"', "'it''s'")
    assert schemas.decoder(Definition('a/msg/B', 'ros2msg', plain)).decode(text('q')).data == 'q'


# serialised messages

LISTS = f'Empty[] many\n{"=" * 80}\nMSG: std_msgs/Empty\n'


@pytest.mark.parametrize(
    ('kind', 'definition', 'cdr'),
    **numbered(
        (STRING, 'string data', b'\0\1\0\0\xff\xff\xff\xff'),
        (STRING, 'string data', b'\0\1\0\0\xff\xff\xff\x7fabc'),
        (STRING, 'string data', b'\0\1\0\0\0\0\0\0'),
        (STRING, 'string data', b'\0\1\0\0\2\0\0\0\xff\0'),
        (STRING, 'string data', b''),
        (STRING, 'string data', b'\x09\x09\0\0' + bytes(8)),
        (STRING, 'string data', b'\0\1\0\0' + bytes(100)),
        ('a/msg/B', 'float64[] data', b'\0\1\0\0\xff\xff\xff\xff' + bytes(64)),
        ('a/msg/B', 'float64[] data', b'\0\1\0\0\xff\xff\xff\x1f' + bytes(64)),
        ('a/msg/B', 'float64[999999999] data', b'\0\1\0\0' + bytes(64)),
        ('a/msg/B', 'string[] data', b'\0\1\0\0\xff\xff\xff\x0f' + bytes(64)),
        ('a/msg/B', LISTS.replace('Empty[]', 'std_msgs/Empty[]'), b'\0\1\0\0\xff\xff\xff\xff'),
        (
            'a/msg/B',
            LISTS.replace('Empty[]', 'std_msgs/Empty[]'),
            b'\0\1\0\0' + struct.pack('<I', 2**25) + bytes(2**25),
        ),
        ('std_msgs/msg/Float64', 'float64 data', b'\0\1\0\0abc'),
        ('std_msgs/msg/Float64', 'int8 data', b'\0\1\0\0' + bytes(200)),
    ),
)
def test_messages_that_lie(
    tmp_path: Path, bounded: None, kind: str, definition: str, cdr: bytes
) -> None:
    file = file_of(tmp_path / 'bag.mcap', known(kind, definition), message(5, cdr))
    with pytest.raises(BagError, match=r'bag\.mcap: message of /text at 5'):
        read(file)


# sqlite3


def database(folder: Path, *statements: str) -> Path:
    """Write a .db3 file as recorders of Humble do, and run more statements on it."""
    folder.mkdir(exist_ok=True)
    file = folder / 'bag_0.db3'
    file.unlink(missing_ok=True)
    base = sqlite3.connect(file)
    base.executescript(
        'CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, '
        'serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);'
        'CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, '
        'timestamp INTEGER NOT NULL, data BLOB NOT NULL);'
    )
    base.execute("INSERT INTO topics VALUES(1, '/text', 'std_msgs/msg/String', 'cdr', '')")
    for i in range(10):
        base.execute('INSERT INTO messages VALUES(?, 1, ?, ?)', (i, 100 + i, text(f'{i}')))
    for statement in statements:
        base.execute(statement)
    base.commit()
    base.close()
    return file


ENDLESS = (
    'WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) '
    'SELECT i AS id, 1 AS topic_id, i AS timestamp, zeroblob(1000000) AS data FROM c'
)


@pytest.mark.parametrize(
    'statements',
    **numbered(
        ('DROP TABLE messages',),
        ('ALTER TABLE messages RENAME TO m', f'CREATE VIEW messages AS {ENDLESS}'),
        ('ALTER TABLE topics RENAME TO t', f'CREATE VIEW topics AS {ENDLESS}'),
        ('ALTER TABLE messages ADD COLUMN more BLOB AS (zeroblob(900000000))',),
        ("UPDATE messages SET data = 'text'",),
        ("UPDATE messages SET timestamp = 'text'",),
        ("UPDATE messages SET data = x'00'",),
        ("UPDATE topics SET serialization_format = 'json'",),
        ("UPDATE topics SET type = '../msg/passwd'",),
    ),
)
def test_databases_that_mean_harm(tmp_path: Path, statements: tuple[str, ...]) -> None:
    file = database(tmp_path, *statements)
    with pytest.raises(BagError, match=r'bag_0\.db3'):
        read(file)


def test_a_time_at_the_end_of_64_bits_is_told(tmp_path: Path) -> None:
    file = database(tmp_path, f'UPDATE messages SET timestamp = {2**63 - 1} WHERE id = 9')
    with BagReader(file) as reader:
        for stop_ns in (None, 2**63):
            with pytest.raises(BagError, match=f'damaged: a message of /text at {2**63 - 1} ns'):
                list(reader.messages(stop_ns=stop_ns))
        with pytest.raises(BagError, match='times of ROS end at 2147483648 s'):
            Schedule(reader, Selection())
        part = Schedule(reader, Selection(end_s=1.0))
        assert sum(1 for _ in part.messages()) == 9


@pytest.mark.parametrize(
    'content', [b'', b'\1', b'\1\0\1\0\xff\xff\xff\xff', b'\1\0\1\0\1\0\0\0\xff']
)
def test_errors_do_not_speak_of_python(tmp_path: Path, content: bytes) -> None:
    file = file_of(tmp_path / 'x.mcap', record(Opcode.CHANNEL, content))
    with pytest.raises(BagError, match=r'channel record: (it ends too early|a text is not UTF-8)'):
        read(file)


def test_databases_are_not_written(tmp_path: Path) -> None:
    file = database(tmp_path)
    before = file.read_bytes()
    file.with_name('bag_0.db3-journal').write_bytes(
        b'\xd9\xd5\x05\xf9\x20\xa1\x63\xd7' + bytes(504)
    )
    assert read(file) == 10
    assert file.read_bytes() == before


# anything


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Cut, flip, overwrite or insert bytes."""
    kind = draw(st.sampled_from(['cut', 'flip', 'ones', 'insert', 'remove']))
    where = draw(st.floats(0.0, 1.0, exclude_max=True))
    bits = draw(st.integers(1, 255))
    length = draw(st.integers(1, 12))

    def apply(data: bytes) -> bytes:
        at = int(where * len(data))
        if kind == 'cut':
            return data[:at]
        if kind == 'flip':
            return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        if kind == 'ones':
            return data[:at] + b'\xff' * length + data[at + length :]
        if kind == 'insert':
            return data[:at] + bytes([bits]) * length + data[at:]
        return data[:at] + data[at + length :]

    return apply


def _damaged(file: Path, whole: bytes, edits: list[Callable[[bytes], bytes]], bag: Path) -> None:
    data = whole
    for edit in edits:
        data = edit(data) if data else data
    file.write_bytes(data)
    try:
        count, reason = read(bag), bag.name
    except BagError as error:
        count, reason = 0, str(error)
    assert count <= 80
    assert bag.name in reason


SETTINGS = {
    'max_examples': 100,
    'suppress_health_check': [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(**SETTINGS)
@given(edits=st.lists(damage(), min_size=1, max_size=3))
def test_any_damage_to_an_mcap_file(tmp_path: Path, edits: list) -> None:
    bag = tmp_path / 'bag'
    if not bag.exists():
        make(bag)
        (tmp_path / 'whole').write_bytes((bag / 'bag_0.mcap').read_bytes())
    file = bag / 'bag_0.mcap'
    _damaged(file, (tmp_path / 'whole').read_bytes(), edits, bag)


@settings(**SETTINGS)
@given(edits=st.lists(damage(), min_size=1, max_size=3))
def test_any_damage_to_metadata(tmp_path: Path, edits: list) -> None:
    bag = tmp_path / 'bag'
    if not bag.exists():
        make(bag)
        (tmp_path / 'whole').write_bytes((bag / 'metadata.yaml').read_bytes())
    file = bag / 'metadata.yaml'
    _damaged(file, (tmp_path / 'whole').read_bytes(), edits, bag)


@settings(**SETTINGS)
@given(edits=st.lists(damage(), min_size=1, max_size=3))
def test_any_damage_to_a_database(tmp_path: Path, edits: list) -> None:
    file = tmp_path / 'bag' / 'bag_0.db3'
    if not file.exists():
        database(tmp_path / 'bag')
        (tmp_path / 'whole').write_bytes(file.read_bytes())
    _damaged(file, (tmp_path / 'whole').read_bytes(), edits, file)


@settings(**{**SETTINGS, 'max_examples': 40})
@given(edits=st.lists(damage(), min_size=1, max_size=3))
def test_any_damage_is_repaired_or_refused(tmp_path: Path, edits: list) -> None:
    bag = tmp_path / 'bag'
    if not bag.exists():
        make(bag)
        (tmp_path / 'whole').write_bytes((bag / 'bag_0.mcap').read_bytes())
    data = (tmp_path / 'whole').read_bytes()
    for edit in edits:
        data = edit(data) if data else data
    (bag / 'bag_0.mcap').write_bytes(data)
    out = tmp_path / f'out{len(os.listdir(tmp_path))}'
    try:
        made = repair(bag, out)
    except BagError:
        assert not out.exists()
        return
    with BagReader(out) as again:
        assert sum(1 for _ in again.messages()) == made.messages
    assert (bag / 'bag_0.mcap').read_bytes() == data
