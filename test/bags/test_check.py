"""Checks find what was done to a bag, and nothing in a good one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
import json
from pathlib import Path
import re
import struct
from typing import Any

from chunkpilot_core import cli, spaces
from chunkpilot_core.bags import merge
from chunkpilot_core.bags.check import check
from chunkpilot_core.bags.findings import Finding
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.types import ActionChunk, Command, ExecutedRows, Id, Observation, RowSource
import numpy as np
import pytest

pytest.importorskip('rclpy')
from chunkpilot.msg import EpisodeEvent, GuardState, Outcome
from chunkpilot_nodes import convert
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import String

pytestmark = pytest.mark.ros
S, MS = 1_000_000_000, 1_000_000
START_NS = 1_700_000_000 * S
SPACE = spaces.ee_delta_space()
Entry = tuple[int, str, Any]
"""Time of receipt [ns] from the start, topic, message."""
LATCHED = ('/guard/state', '/episode', '/outcome')


def joints(stamp_ns: int) -> JointState:
    message = JointState(name=['a'], position=[0.0])
    message.header.stamp = convert.to_time(START_NS + stamp_ns)
    return message


def observation(number: int, stamp_ns: int) -> Any:
    names, one = ('x',), np.zeros(1, np.float32)
    seen = Observation(
        Id(3, number), START_NS + stamp_ns, START_NS, names, one, (), one[:0], (), one[:0], (), 7
    )
    return convert.observation_to_msg(seen)


def chunk(number: int, seen: int, stamp_ns: int) -> Any:
    return convert.chunk_to_msg(
        ActionChunk(
            Id(4, number), Id(5, number), 7, 't', Id(3, seen), START_NS + stamp_ns,
            START_NS + stamp_ns, 0.04, np.zeros((16, SPACE.size), np.float32), SPACE.hash, 'mlp',
            1, stamp_ns=START_NS + stamp_ns,
        )
    )  # fmt: skip


def rows(number: int, of_chunk: int, stamp_ns: int, **changes: Any) -> Any:
    batch = ExecutedRows(
        Id(6, number), START_NS + stamp_ns, 7, Id(4, of_chunk) if of_chunk else Id(0, 0), 0, 0.04,
        np.zeros((8, SPACE.size), np.float32), (RowSource.POLICY,) * 8,
        tuple(START_NS + stamp_ns + i * 40 * MS for i in range(8)), ('a',), np.zeros((8, 1)),
        SPACE.hash, 't', 'e',
    )  # fmt: skip
    return convert.executed_rows_to_msg(replace(batch, **changes))


def command(number: int) -> Any:
    return convert.command_to_msg(Command(Id(8, number), START_NS + number * 10 * MS, 7, ()))


def state(epoch: int, session: int = 9) -> GuardState:
    return GuardState(session=session, state=GuardState.ARMED, arm_epoch=epoch)


def good() -> list[Entry]:
    """Return an episode of 3 s."""
    found: list[Entry] = [
        (0, '/guard/state', state(7)),
        (0, '/episode', EpisodeEvent(event=EpisodeEvent.START, episode_id='e')),
    ]
    for i in range(300):
        found.append((i * 10 * MS + 1, '/joint_states', joints(i * 10 * MS)))
    for i in range(60):
        found.append((i * 50 * MS + 2, '/observation', observation(i + 1, i * 50 * MS)))
    for i in range(8):
        at_ns = i * 320 * MS
        found.append((at_ns + 20 * MS, '/chunk', chunk(i + 1, at_ns // (50 * MS) + 1, at_ns)))
        found.append((at_ns + 345 * MS, '/executed_rows', rows(i + 1, i + 1, at_ns + 25 * MS)))
    found.append((2990 * MS, '/outcome', Outcome(episode_id='e', outcome=Outcome.SUCCESS)))
    return sorted(found, key=lambda entry: entry[0])


def write(
    path: Path,
    entries: Sequence[Entry],
    definitions: dict[str, Definition] | None = None,
    **custom: str,
) -> Path:
    bag = BagWriter(path)
    for stamp_ns, topic, message in entries:
        package, name = type(message).__module__.split('.')[0], type(message).__name__
        kind = f'{package}/msg/{name}'
        qos = TopicQos(latched=topic in LATCHED)
        bag.add_topic(topic, kind, qos, (definitions or {}).get(topic))
        cdr = message if isinstance(message, bytes) else bytes(serialize_message(message))
        bag.write(topic, START_NS + stamp_ns, cdr)
    return bag.close(custom)


def problems(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.topic) for finding in found if finding.problem]


def test_nothing_is_wrong_with_a_good_bag(tmp_path: Path) -> None:
    assert check(write(tmp_path / 'bag', good(), dropped_messages='0')) == []


Change = Callable[[list[Entry]], list[Entry]]


def without(topic: str, first: int, last: int = 10**9) -> Change:
    """Leave out messages of a topic by their number."""

    def change(entries: list[Entry]) -> list[Entry]:
        numbers = iter(range(10**9))
        return [e for e in entries if e[1] != topic or not first <= next(numbers) < last]

    return change


def later(topic: str, first: int, by_ns: int) -> Change:
    """Let the stamps of a topic jump."""

    def change(entries: list[Entry]) -> list[Entry]:
        numbers, found = iter(range(10**9)), []
        for stamp_ns, name, message in entries:
            if name == topic and next(numbers) >= first:
                message = joints(stamp_ns - 1 + by_ns)
            found.append((stamp_ns, name, message))
        return found

    return change


def more(*entries: Entry) -> Change:
    return lambda given: sorted([*given, *entries], key=lambda entry: entry[0])


@pytest.mark.parametrize(
    ('change', 'kind', 'topic', 'text'),
    [
        (without('/joint_states', 100, 170), 'gap', '/joint_states', r'nothing for 0\.710 s'),
        (without('/joint_states', 200), 'gap', '/joint_states', r'ends 0\.9\d0 s before others'),
        (
            without('/joint_states', 0, 100),
            'gap',
            '/joint_states',
            'begins 1.000 s after others',
        ),
        (later('/joint_states', 150, -2 * S), 'clock', '/joint_states', r'go back by 1\.990 s'),
        (later('/joint_states', 150, 5 * S), 'clock', '/joint_states', r'jump by 5\.000 s'),
        (without('/observation', 31, 33), 'drop', '/observation', '2 numbers of messages'),
        (without('/observation', 12, 13), 'chunk', '/chunk', 'rests on observation 13, which'),
        (without('/observation', 0), 'chunk', '/chunk', 'chunks, and no observations'),
        (without('/chunk', 3, 4), 'row', '/executed_rows', '8 rows of chunk 4, which is not'),
        (without('/chunk', 0), 'row', '/executed_rows', 'rows of chunk 1, which is not there'),
        (without('/guard/state', 0), 'epoch', '/executed_rows', 'and no guard/state'),
        (
            more((2900 * MS, '/executed_rows', rows(9, 8, 0, first_row=12))),
            'row',
            '/executed_rows',
            'row 19 of chunk 8, which has 16',
        ),
        (
            more((2900 * MS, '/executed_rows', rows(9, 0, 0))),
            'row',
            '/executed_rows',
            '8 rows of the policy without a chunk',
        ),
        (
            more((2900 * MS, '/executed_rows', rows(9, 8, 0, arm_epoch=8))),
            'epoch',
            '/executed_rows',
            'arm_epoch 8, which the guard never announced',
        ),
        (more((S, '/guard/state', state(5))), 'epoch', '/guard/state', 'went back from 7 to 5'),
    ],
)
def test_what_was_done_to_a_bag_is_found(
    tmp_path: Path, change: Change, kind: str, topic: str, text: str
) -> None:
    found = check(write(tmp_path / 'bag', change(good())))
    told = [f for f in found if f.problem and (f.kind, f.topic) == (kind, topic)]
    assert told, found
    assert any(re.search(text, finding.text) for finding in told), told


def test_what_is_no_problem(tmp_path: Path) -> None:
    others = {
        'rows of somebody else': more(
            (2900 * MS, '/executed_rows', rows(9, 0, 2800 * MS, sources=(RowSource.HUMAN,) * 8))
        ),
        'a chunk of before the bag': without('/chunk', 0, 1),
        'a guard that began again': more((2950 * MS, '/guard/state', state(3, session=10))),
        'an episode without an outcome': without('/outcome', 0),
        'nobody acts for a while': more(
            *((t * 10 * MS, '/command', command(t)) for t in [*range(80, 120), *range(200, 240)])
        ),
        'commands of drivers begin late and end early': more(
            *(
                (t * 10 * MS, '/arm_controller/commands', joints(t * 10 * MS))
                for t in range(90, 200)
            )
        ),
        'the recorder goes on after the episode': more((3600 * MS, '/text', String(data='late'))),
    }
    for number, change in enumerate(others.values()):
        assert problems(check(write(tmp_path / f'bag{number}', change(good())))) == []


def test_the_recorder_s_own_clock(tmp_path: Path) -> None:
    entries = good()
    moved = [(t - 2 * S if t > 2500 * MS else t, n, m) for t, n, m in entries]
    found = check(write(tmp_path / 'bag', moved))
    assert ('clock', '') in problems(found)


def busy(entries: Sequence[Entry], by_ns: int = 1300 * MS) -> list[Entry]:
    """Write one topic after the other for a while, and then the next while: as received."""
    return sorted(entries, key=lambda entry: (entry[0] // by_ns, entry[1], entry[0]))


def test_a_busy_recorder_s_clock_is_not_accused(tmp_path: Path) -> None:
    (note,) = check(write(tmp_path / 'bag', busy(good())))
    assert (note.kind, note.problem) == ('order', False)
    assert note.count > 20
    assert 'stand behind newer ones, by up to 1.' in note.text


def test_each_kind_of_fault_of_a_clock_is_told_once(tmp_path: Path) -> None:
    entries = [(t - (t // S) * S * 3 // 2 + 3 * S, n, m) for t, n, m in busy(good(), S // 10)]
    found = [f for f in check(write(tmp_path / 'bag', entries)) if 'recorder' in f.text]
    assert [(f.kind, f.topic, f.count, f.problem) for f in found] == [('clock', '', 2, True)]
    assert re.search(r"recorder's clock went back by up to 1\.\d+ s, 2 times", found[0].text)
    back = [(t, n, joints(t % S) if n == '/joint_states' else m) for t, n, m in good()]
    found = [f for f in check(write(tmp_path / 'back', back)) if 'go back' in f.text]
    assert [(f.kind, f.topic, f.count) for f in found] == [('clock', '/joint_states', 2)]


def test_messages_that_waited_are_no_jump_of_a_clock(tmp_path: Path) -> None:
    end_ns = 1499 * MS
    waited = [
        (end_ns + t // 1500 if n == '/joint_states' and 200 * MS < t < end_ns else t, n, m)
        for t, n, m in good()
    ]
    found = check(write(tmp_path / 'bag', sorted(waited, key=lambda entry: entry[0])))
    assert not [finding for finding in found if finding.kind == 'clock']


def test_stamps_are_compared_by_sender(tmp_path: Path) -> None:
    """Two nodes with clocks 0.3 s apart publish on one topic, with the same quality of service."""
    bag = BagWriter(tmp_path / 'bag')
    for topic in ('/mixed', '/plain'):
        bag.add_topic(topic, 'sensor_msgs/msg/JointState', TopicQos())
    for i in range(100):
        stamp_ns = START_NS + i * 10 * MS
        for k, sequence in ((0, i + 1), (1, i + 41)):
            cdr = bytes(serialize_message(joints(i * 10 * MS - k * 300 * MS)))
            bag.write('/mixed', stamp_ns + k, cdr, stamp_ns + k, sequence)
            bag.write('/plain', stamp_ns + k, cdr, stamp_ns + k, 2 * i + k + 1)
    found = check(bag.close({}))
    assert problems(found) == [('clock', '/plain')]  # of one sender, by its numbers
    assert found[0].count == 100


def test_what_lies_between_merged_episodes_is_not_missed(tmp_path: Path) -> None:
    def part(start_s: float, end_s: float) -> list[Entry]:
        start_ns, end_ns = int(start_s * S), int(end_s * S)
        latched = [(start_ns, name, message) for _, name, message in good()[:2]]
        return latched + [e for e in good()[2:] if start_ns <= e[0] < end_ns]

    parts = [write(tmp_path / 'one', part(0.0, 1.0)), write(tmp_path / 'two', part(1.9, 3.0))]
    for path in parts:
        assert problems(check(path)) == []
    both = merge.merge(parts, tmp_path / 'both').path
    assert problems(check(both)) == []
    third = write(tmp_path / 'third', [(9 * S, '/text', String(data='later'))])
    assert problems(check(merge.merge([both, third], tmp_path / 'all').path)) == []
    holes = [e for e in part(1.9, 3.0) if e[1] != '/observation' or not 2.3 < e[0] / S < 2.5]
    parts[1] = write(tmp_path / 'holes', holes)
    found = check(merge.merge(parts, tmp_path / 'less').path)
    assert ('drop', '/observation') in problems(found)
    assert [f.count for f in found if f.kind == 'drop'] == [4]


def test_ranges_of_merged_bags_that_make_no_sense_are_told(tmp_path: Path) -> None:
    for number, words in enumerate(('1:2 x', '5', '-1:4', '1:' + '9' * 40)):
        path = write(tmp_path / f'bag{number}', good(), merged_ranges_ns=words)
        assert problems(check(path)) == [('recorder', '')]


def test_drops_counts_and_damage(tmp_path: Path) -> None:
    path = write(tmp_path / 'bag', good(), dropped_messages='12')
    assert problems(check(path)) == [('drop', '')]
    file = path / 'metadata.yaml'
    file.write_text(file.read_text().replace('message_count: 300', 'message_count: 301'))
    assert problems(check(path)) == [('drop', ''), ('count', '/joint_states')]
    path = write(tmp_path / 'lost', good(), lost_messages='3', error='disk full')
    assert problems(check(path)) == [('drop', ''), ('recorder', '')]
    bad = [*good(), (2995 * MS, '/chunk', chunk(9, 60, 2990 * MS))]
    path = write(tmp_path / 'bad', bad)
    mcap = next(path.glob('*.mcap'))
    data = bytearray(mcap.read_bytes())
    position = data.index(b'zstd') + 60
    data[position] ^= 0xFF
    mcap.write_bytes(data)
    assert ('damaged', '') in problems(check(path))


def test_definitions(tmp_path: Path) -> None:
    def with_definition(name: str, definition: Definition) -> list[tuple[str, str]]:
        entries: list[Entry] = [(0, '/text', String(data='hello'))]
        path = write(tmp_path / name, entries, {'/text': definition})
        return problems(check(path))

    kind = 'std_msgs/msg/String'
    no_hash, plain = 'RIHS01_' + '0' * 64, Definition(kind, 'ros2msg', 'string data')
    own = Definition(kind, 'ros2msg', 'string data', no_hash)
    assert with_definition('hash', own) == [('definition', '/text'), ('type', '/text')]
    other = Definition(kind, 'ros2msg', 'int32 a\nint32 b')
    assert with_definition('other', other) == [('type', '/text')]
    long = Definition(kind, 'ros2msg', 'float64[] many')
    assert with_definition('long', long) == [('type', '/text'), ('decode', '/text')]
    assert with_definition('none', Definition(kind, '', '')) == []  # the writer adds it
    assert with_definition('plain', plain) == []


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / 'bags' / 'good', good())
    assert cli.main(['bag', 'check', str(tmp_path / 'bags')]) == 0
    assert '1 bags, 0 problems' in capsys.readouterr().out
    write(tmp_path / 'bags' / 'gap', without('/joint_states', 100, 170)(good()))
    folder = tmp_path / 'bags' / 'broken'
    folder.mkdir()
    (folder / 'metadata.yaml').write_text('no')
    assert cli.main(['bag', 'check', str(tmp_path / 'bags'), '--json']) == 1
    told = json.loads(capsys.readouterr().out)
    assert told['problems'] == 2
    kinds = {Path(bag).name: [f['kind'] for f in found] for bag, found in told['bags'].items()}
    assert kinds == {'broken': ['damaged'], 'gap': ['gap'], 'good': []}
    assert cli.main(['bag', 'check', str(tmp_path / 'bags' / 'gap'), '--gap', '1']) == 0
    assert cli.main(['bag', 'check', str(tmp_path / 'bags')]) == 1
    out = capsys.readouterr().out
    assert 'problem' in out
    assert '/joint_states' in out
    assert cli.main(['bag', 'check', str(tmp_path / 'nothing')]) == 1


def test_stamps_are_read_in_both_byte_orders() -> None:
    from chunkpilot_core.bags.check_clocks import _stamp_ns

    assert _stamp_ns(b'\0\1\0\0' + struct.pack('<iI', 5, 7)) == 5 * S + 7
    assert _stamp_ns(b'\0\0\0\0' + struct.pack('>iI', 5, 7)) == 5 * S + 7
    assert _stamp_ns(b'\0\1\0\0') is None
