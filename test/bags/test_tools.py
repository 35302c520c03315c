"""Cut, merge, repair and info, by the command line; what is written is read by other libraries."""

from collections.abc import Callable
import json
import os
from pathlib import Path
from random import Random
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap

from chunkpilot_core import cli
from chunkpilot_core.bags.definitions import share_folders
from chunkpilot_core.bags.mcap_records import messages_in, unpacked
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.repair import repair
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.writer import Writer as McapWriter
from mcap_ros2.decoder import DecoderFactory
import pytest
from rosbags.rosbag2 import Reader
import yaml

STRING, S = 'std_msgs/msg/String', 1_000_000_000
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)


def text(value: str) -> bytes:
    data = value.encode() + b'\0'
    return b'\0\1\0\0' + struct.pack('<I', len(data)) + data


def make(path: Path, start_s: float = 100.0, count: int = 40, **custom: str) -> Path:
    """Write a bag: a text each 0.1 s, a state latched at 0.5 and 1.5 s."""
    bag = BagWriter(path, chunk_bytes=300)
    bag.add_topic('/text', STRING, TopicQos(reliable=False, depth=7))
    bag.add_topic('/state', STRING, TopicQos(latched=True, depth=1))
    for i in range(count):
        stamp_ns = round((start_s + i / 10) * S)
        bag.write('/text', stamp_ns, text(f'{path.name} {i}'), stamp_ns - 7, i + 1)
        if i in (5, 15):
            bag.write('/state', stamp_ns, text(f'state {i}'))
    return bag.close(custom)


def contents(path: Path) -> list[tuple[str, int, str]]:
    with BagReader(path) as bag:
        return [(m.topic, m.stamp_ns, bag.decode(m).data) for m in bag.messages()]


def by_others(path: Path) -> list[tuple[str, int, str]]:
    """Read a bag by rosbags, and by mcap with mcap-ros2-support; both have to agree."""
    info = yaml.safe_load((path / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert info['version'] == 9
    found = []
    for name in info['relative_file_paths']:
        with (path / name).open('rb') as stream:
            reader = make_reader(stream, validate_crcs=True, decoder_factories=[DecoderFactory()])
            found += [
                (channel.topic, message.log_time, decoded.data)
                for _, channel, message, decoded in reader.iter_decoded_messages()
            ]
    with Reader(path) as bag:
        raw = [(c.topic, stamp_ns, bytes(data)) for c, stamp_ns, data in bag.messages()]
        assert bag.message_count == len(raw) == info['message_count']
        assert {c.digest for c in bag.connections} == {
            entry['topic_metadata']['type_description_hash']
            for entry in info['topics_with_message_count']
        }
    assert [(t, s, text(value)) for t, s, value in sorted(found)] == sorted(raw)
    return found


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs ``chunkpilot bag``: exit code, output, errors."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(['bag', *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_cut_by_time_and_topic(tmp_path: Path, run: Run) -> None:
    bag, out = make(tmp_path / 'bag', note='kept'), tmp_path / 'out'
    code, said, _ = run('cut', bag, '--out', out, '--from', 2, '--to', 2.5, '--json')
    assert (code, json.loads(said)) == (0, {'bag': str(out), 'messages': 6})
    assert by_others(out) == [
        ('/state', 102 * S, 'state 15'),
        *(('/text', 102 * S + i * S // 10, f'bag {20 + i}') for i in range(5)),
    ]
    with BagReader(out) as reader:
        assert reader.metadata == {'note': 'kept', 'cut_from': 'bag'}
        assert reader.details['/state'].latched
        assert (reader.details['/text'].qos[0].reliable, reader.details['/text'].qos[0].depth) == (
            False,
            7,
        )
        kept = [(m.published_ns, m.sequence) for m in reader.messages(['/text'])]
        assert kept == [(102 * S + i * S // 10 - 7, 21 + i) for i in range(5)]
    run('cut', bag, '--out', tmp_path / 'states', '--topics', '/s*')
    assert [value for _, _, value in by_others(tmp_path / 'states')] == ['state 5', 'state 15']
    code, _, err = run('cut', bag, '--out', out)
    assert (code, 'exists already' in err) == (1, True)
    code, _, err = run('cut', bag, '--out', tmp_path / 'no', '--topics', '/tixt')
    assert (code, "Did you mean '/text'" in err) == (1, True)
    code, _, err = run('cut', bag, '--out', tmp_path / 'no', '--from', 50)
    assert (code, 'is after its end' in err) == (1, True)
    assert not list(tmp_path.glob('no*'))


def test_merge_by_time(tmp_path: Path, run: Run) -> None:
    one = make(tmp_path / 'one', 100.0, who='me', dropped_messages='2')
    two = make(tmp_path / 'two', 101.05, who='you', dropped_messages='3')
    code, _, _ = run('merge', one, two, '--out', tmp_path / 'both')
    assert code == 0
    merged = by_others(tmp_path / 'both')
    assert [stamp for _, stamp, _ in merged] == sorted(stamp for _, stamp, _ in merged)
    assert sorted(merged) == sorted([*contents(one), *contents(two)])
    with BagReader(tmp_path / 'both') as reader:
        assert reader.metadata == {
            'merged_from': 'one two',
            'merged_ranges_ns': '100000000000:103900000000 101050000000:104950000000',
            'one.who': 'me',
            'two.who': 'you',
            'dropped_messages': '5',
        }
    run('merge', one, two, '--out', tmp_path / 'aligned', '--align')
    with BagReader(tmp_path / 'aligned') as reader:
        span = '100000000000:103900000000'
        assert reader.metadata['merged_ranges_ns'] == f'{span} {span}'
        assert (reader.start_ns, reader.end_ns) == (100 * S, 103_900_000_000)
    code, _, err = run('merge', one, '--out', tmp_path / 'no')
    assert (code, 'at least two' in err) == (1, True)


def test_bags_that_contradict_are_not_merged(tmp_path: Path, run: Run) -> None:
    one = make(tmp_path / 'one')
    for kind, definition, error in (
        ('std_msgs/msg/Int8', 'int8 data', 'is std_msgs/msg/Int8'),
        (STRING, 'string data\nint8 more', 'different versions of its package'),
    ):
        file = tmp_path / 'other.mcap'
        with file.open('wb') as stream:
            writer = McapWriter(stream)
            writer.start('ros2')
            schema = writer.register_schema(kind, 'ros2msg', definition.encode())
            writer.add_message(writer.register_channel('/text', 'cdr', schema), 5, b'', 5)
            writer.finish()
        code, _, err = run('merge', one, file, '--out', tmp_path / 'no')
        assert (code, error in err) == (1, True), err
        assert not list(tmp_path.glob('no*'))


def test_foreign_definitions_are_carried_on(tmp_path: Path, run: Run) -> None:
    file, definition = tmp_path / 'foreign.mcap', '# a comment\nint8 A=1\nstring data "x"\n'
    with file.open('wb') as stream:
        writer = McapWriter(stream)
        writer.start('ros2')
        schema = writer.register_schema('a/msg/B', 'ros2msg', definition.encode())
        writer.add_message(writer.register_channel('/b', 'cdr', schema), 5, text('hi'), 5)
        writer.finish()
    for words in (('cut', file, '--out', tmp_path / 'out'), ('repair', file)):
        assert run(*words)[0] == 0
    for path in (tmp_path / 'out', tmp_path / 'foreign.repaired'):
        assert by_others(path) == [('/b', 5, 'hi')]
        with BagReader(path) as reader:
            assert reader.details['/b'].definition.text == definition
            assert reader.details['/b'].definition.hash.startswith('RIHS01_')


KILLED = textwrap.dedent("""
    import itertools, struct, sys, time
    from chunkpilot_core.bags.writer import BagWriter, TopicQos
    bag = BagWriter(sys.argv[1], chunk_bytes=2000)
    bag.add_topic('/text', 'std_msgs/msg/String', TopicQos(depth=3))
    for i in range(1000):
        data = f'number {i}'.encode() + bytes(1)
        bag.write('/text', 1000 + i, bytes((0, 1, 0, 0)) + struct.pack('<I', len(data)) + data)
        if i in (300, 600):
            bag.split()
    bag.flush()
    print('enough', flush=True)
    time.sleep(60)
""")


def test_what_a_killed_recorder_left_is_repaired(tmp_path: Path, run: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', KILLED, str(tmp_path / 'bag')], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == 'enough\n'
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    left = tmp_path / 'bag.unfinished'
    before = {file: file.read_bytes() for file in left.rglob('*') if file.is_file()}
    assert len(before) == 3
    code, said, _ = run('repair', left, '--json')
    report = json.loads(said)
    assert (code, report['messages'], report['lost']) == (0, 1000, False)
    assert [file['messages'] for file in report['files']] == [301, 300, 399]
    again = by_others(tmp_path / 'bag.repaired')
    assert again == [('/text', 1000 + i, f'number {i}') for i in range(1000)]
    with BagReader(tmp_path / 'bag.repaired') as reader:
        assert reader.details['/text'].qos[0].depth == 3
    assert {file: file.read_bytes() for file in left.rglob('*') if file.is_file()} == before


def test_repair_says_so_when_a_topic_is_left_out(tmp_path: Path, run: Run) -> None:
    file = tmp_path / 'bag.mcap'
    with file.open('wb') as stream:
        writer = McapWriter(stream)
        writer.start('ros2', 'test')
        schema = writer.register_schema(STRING, 'ros2msg', b'string data\n')
        for topic, encoding in (('/text', 'cdr'), ('/other', 'json')):
            channel = writer.register_channel(topic, encoding, schema)
            writer.add_message(channel, 1000, text('a'), 1000)
        writer.finish()
    code, said, _ = run('repair', file, '--json')
    report = json.loads(said)
    assert (code, report['messages'], report['lost']) == (0, 1, True)
    assert report['files'][0]['lost_messages'] == 1


def test_repair_says_what_is_lost(tmp_path: Path, run: Run) -> None:
    bag = make(tmp_path / 'bag', note='kept')
    file = next(bag.glob('*.mcap'))
    whole = file.read_bytes()
    chunks = [match.start() for match in re.finditer(b'zstd', whole)]
    file.write_bytes(whole[: chunks[3] + 50])
    code, said, _ = run('repair', bag)
    assert code == 0
    assert 'messages recovered' in said
    assert 'bytes that make no sense' in said
    kept = contents(tmp_path / 'bag.repaired')
    with BagReader(tmp_path / 'bag.repaired') as reader:
        assert reader.metadata == {'note': 'kept', 'repaired_from': 'bag'}
    file.write_bytes(whole)
    everything = contents(bag)
    with BagReader(tmp_path / 'bag.repaired') as reader:
        assert [m.sequence for m in reader.messages(['/text'])][:3] == [1, 2, 3]
    assert 5 < len(kept) < len(everything)
    assert kept == everything[: len(kept)]
    middle = chunks[2] + 40
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    code, said, _ = run('repair', bag, '--out', tmp_path / 'again', '--json')
    report = json.loads(said)
    (lost,) = report['files']
    assert (report['lost'], lost['lost_chunks']) == (True, 1)
    assert lost['messages'] + lost['lost_messages'] == len(everything)
    assert len(contents(tmp_path / 'again')) == lost['messages']


@pytest.mark.parametrize('ended', [True, False])
def test_one_flipped_byte_costs_at_most_its_chunk(tmp_path: Path, ended: bool) -> None:
    file = next(make(tmp_path / 'bag').glob('*.mcap'))
    whole = file.read_bytes()
    if not ended:  # as kill -9 leaves it
        with file.open('rb') as stream:
            summary = make_reader(stream).get_summary()
        assert summary is not None
        last = summary.chunk_indexes[-1]
        begin = last.chunk_start_offset + last.chunk_length + last.message_index_length
        whole = whole[:begin]
    found = [match.start() - 37 for match in re.finditer(b'\x04\0\0\0zstd', whole)]
    chunks = [at for at in found if whole[at] == Opcode.CHUNK]  # the index has their form, too
    everything = sorted(contents(tmp_path / 'bag'))
    most = max(
        sum(1 for _ in messages_in(unpacked(memoryview(whole)[begin + 9 :]), None))
        for begin in chunks
    )
    assert most < len(everything) // 3
    random = Random(5)
    places = [*range(60), *range(chunks[1] - 80, chunks[1] + 50)]
    places += [random.randrange(len(whole)) for _ in range(100)]
    alone = tmp_path / 'alone.mcap'
    for place in places:
        bits = random.randrange(1, 256)
        alone.write_bytes(whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :])
        out = tmp_path / 'out'
        repaired = repair(alone, out)
        kept = sorted(contents(out))
        shutil.rmtree(out)
        assert len(kept) >= len(everything) - most, (place, bits)
        assert set(kept) <= set(everything)
        if len(kept) < len(everything):
            assert repaired.lost, (place, bits)


def test_types_of_a_damaged_first_chunk_come_from_the_summary(tmp_path: Path, run: Run) -> None:
    file = tmp_path / 'foreign.mcap'
    with file.open('wb') as stream:
        writer = McapWriter(stream, chunk_size=300)  # has them in the first chunk alone
        writer.start('ros2')
        schema = writer.register_schema(STRING, 'ros2msg', b'string data')
        channel = writer.register_channel('/text', 'cdr', schema)
        for i in range(40):
            writer.add_message(channel, 1000 + i, text(f'number {i}'), 1000 + i)
        writer.finish()
    whole = file.read_bytes()
    middle = whole.index(b'zstd') + 30
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    assert run('repair', file, '--out', tmp_path / 'again')[0] == 0
    kept = by_others(tmp_path / 'again')
    assert 25 < len(kept) < 40
    assert kept == [('/text', 1000 + i, f'number {i}') for i in range(40 - len(kept), 40)]


def test_a_bag_without_its_metadata_is_repaired(tmp_path: Path, run: Run) -> None:
    bag = make(tmp_path / 'bag')
    before = contents(bag)
    (bag / 'metadata.yaml').unlink()
    assert run('repair', bag)[0] == 0
    assert sorted(by_others(tmp_path / 'bag.repaired')) == sorted(before)
    code, _, err = run('repair', bag)
    assert (code, 'exists already' in err) == (1, True)
    code, _, err = run('repair', tmp_path / 'nowhere')
    assert (code, 'no such bag' in err) == (1, True)
    (tmp_path / 'empty').mkdir()
    code, _, err = run('repair', tmp_path / 'empty')
    assert (code, 'no .mcap or .db3 file in it' in err) == (1, True)
    (tmp_path / 'empty' / 'x.mcap').symlink_to('/etc/passwd')
    code, _, err = run('repair', tmp_path / 'empty')
    assert (code, 'link out of the folder' in err) == (1, True)


def test_info(tmp_path: Path, run: Run) -> None:
    bag = make(tmp_path / 'bags' / 'one', outcome='success')
    make(tmp_path / 'bags' / 'two')
    code, said, _ = run('info', bag, '--json')
    (found,) = json.loads(said)
    assert code == 0
    assert (found['messages'], found['duration_s'], found['storage']) == (42, 3.9, 'mcap')
    assert found['topics']['/text']['hz'] == pytest.approx(10.0)
    assert found['topics']['/state']['latched']
    assert found['metadata'] == {'outcome': 'success'}
    code, said, _ = run('info', bag)
    assert code == 0
    for words in ('3.900 s', '1970-01-01', 'outcome: success', '/state', 'std_msgs/String', 'R L'):
        assert words in said
    (bag / 'metadata.yaml').write_text('no')
    code, said, _ = run('info', tmp_path / 'bags')
    assert code == 1
    assert 'damaged' in said
    assert 'two' in said
    os.mkdir(tmp_path / 'none')
    code, _, err = run('info', tmp_path / 'none')
    assert (code, 'no finished bags in it' in err) == (1, True)
