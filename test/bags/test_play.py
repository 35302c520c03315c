"""What is played when: a schedule and a pace, without a clock and without ROS."""

from pathlib import Path
import struct

from chunkpilot_core.bags import play
from chunkpilot_core.bags.definitions import Definitions, share_folders
from chunkpilot_core.bags.play import Pace, Schedule
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.selection import Selection
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError, UnknownNameError
import pytest

STRING, FLOATS = 'std_msgs/msg/String', 'std_msgs/msg/Float64MultiArray'
S = 1_000_000_000
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bag of 4 s: a message each 0.1 s, a state latched twice, commands of a robot."""
    path = tmp_path_factory.mktemp('play') / 'bag'
    with BagWriter(path) as bag:
        bag.add_topic('/text', STRING)
        bag.add_topic('/clock', 'rosgraph_msgs/msg/Clock')
        bag.add_topic('/state', STRING, TopicQos(latched=True, depth=1))
        bag.add_topic('/arm_controller/commands', FLOATS)
        for i in range(41):
            stamp_ns = 100 * S + i * S // 10
            bag.write('/text', stamp_ns, b'text%02d' % i)
            bag.write('/clock', stamp_ns, b'old clock')
            bag.write('/arm_controller/commands', stamp_ns, b'go')
            if i in (5, 15):
                bag.write('/state', stamp_ns, b'state%02d' % i)
    return path


def schedule(bag: BagReader, selection: Selection | None = None, **options: object) -> Schedule:
    return Schedule(bag, selection or Selection(), **options)  # type: ignore[arg-type]


def test_everything_comes_in_order_but_what_robots_obey(path: Path) -> None:
    with BagReader(path) as bag:
        plan = schedule(bag)
        due = list(plan.messages())
        assert plan.left_out == ['/arm_controller/commands']
        assert [d.bag_ns for d in due] == sorted(d.bag_ns for d in due)
        assert [d.cdr for d in due if d.topic == '/text'] == [b'text%02d' % i for i in range(41)]
        assert sum(d.topic == '/clock' for d in due) == 41
        named = schedule(bag, Selection(topics=('/arm_controller/commands',)))
        assert {d.topic for d in named.messages()} == {'/arm_controller/commands'}


def test_what_was_latched_before_an_offset_is_sent_at_the_start(path: Path) -> None:
    with BagReader(path) as bag:
        plan = schedule(bag, Selection(start_s=2.0, end_s=2.45, exclude=('/clock',)))
        assert [(d.bag_ns, d.topic, d.cdr) for d in plan.messages()] == [
            (102 * S, '/state', b'state15'),
            *((100 * S + i * S // 10, '/text', b'text%02d' % i) for i in range(20, 25)),
        ]
        early = schedule(bag, Selection(topics=('/state',), start_s=1.0, end_s=1.2))
        assert [d.cdr for d in early.messages()] == [b'state05']
        begin = schedule(bag, Selection(topics=('/state',)))
        assert [d.cdr for d in begin.messages()] == [b'state05', b'state15']


def test_the_clock_runs_with_the_bag_and_replaces_the_recorded_one(path: Path) -> None:
    with BagReader(path) as bag:
        plan = schedule(bag, Selection(topics=('/text', '/clock')), clock_hz=20.0, rate=2.0)
        due = list(plan.messages())
        ticks = [d for d in due if d.topic == '/clock']
        assert [d.bag_ns for d in ticks] == [100 * S + i * S // 10 for i in range(41)]
        for tick in ticks:
            sec, nanosec = struct.unpack_from('<iI', tick.cdr, 4)
            assert sec * S + nanosec == tick.bag_ns
        for text in (d for d in due if d.topic == '/text'):  # the clock is there first
            assert due.index(text) > due.index(next(t for t in ticks if t.bag_ns == text.bag_ns))


def test_topics_get_other_names(path: Path) -> None:
    with BagReader(path) as bag:
        plan = schedule(
            bag, Selection(topics=('/t*',)), renamed=('/text:=/robot/text',), clock_hz=1.0
        )
        assert {d.topic for d in plan.messages()} == {'/robot/text', '/clock'}
        for words, error in (
            (('/text',), 'the form /old:=/new'),
            (('/text:=text',), 'the form /old:=/new'),
            (('/text:=/a b',), 'the form /old:=/new'),
            (('/tex:=/a',), "Did you mean '/text'"),
        ):
            with pytest.raises((BagError, UnknownNameError), match=error):
                schedule(bag, renamed=words)
        with pytest.raises(BagError, match='/state would be'):
            schedule(bag, renamed=('/clock:=/state',))


@pytest.mark.parametrize(
    ('selection', 'error'),
    [
        (Selection(topics=('/tixt',)), "Did you mean '/text'"),
        (Selection(exclude=('/camera/*',)), 'unknown topic'),
        (Selection(exclude=('/*',)), 'no topic of it'),
        (Selection(start_s=5.0), r'5 s is after its end, it lasts 4\.000 s'),
        (Selection(start_s=2.0, end_s=1.0), 'from 2 to 1 s'),
        (Selection(start_s=-1.0), 'from -1 to inf s'),
    ],
)
def test_what_can_not_be_played_is_told(path: Path, selection: Selection, error: str) -> None:
    with BagReader(path) as bag, pytest.raises((BagError, UnknownNameError), match=error):
        schedule(bag, selection)


def test_pace() -> None:
    pace = Pace(2.0, 100 * S)
    pace.start(7 * S, 100 * S)
    assert pace.due_ns(104 * S) == 9 * S
    assert pace.bag_ns(8 * S) == 102 * S
    pace.pause(8 * S)
    pace.pause(9 * S)
    assert (pace.paused, pace.bag_ns(20 * S)) == (True, 102 * S)
    pace.resume(11 * S)
    assert (pace.paused, pace.due_ns(104 * S)) == (False, 12 * S)
    assert pace.bag_ns(12 * S) == 104 * S
    pace.pause(13 * S)
    pace.start(14 * S, 100 * S)  # the next pass while it stands
    pace.resume(20 * S)
    assert pace.due_ns(100 * S) == 20 * S


def test_quality_of_service_of_several_publishers() -> None:
    from chunkpilot_core.bags.schemas import Definition
    from chunkpilot_core.bags.topics import Topic

    def offered(*qos: TopicQos) -> TopicQos:
        return play.offered(Topic('/x', Definition(STRING), qos, 1))

    best = TopicQos(reliable=False, depth=5, deadline_ns=7)
    assert offered(best) == best
    assert offered() == TopicQos()
    latched = TopicQos(latched=True, depth=1)
    assert offered(latched, latched).depth == 2  # one message of each
    mixed = offered(latched, best)
    assert (mixed.reliable, mixed.latched, mixed.deadline_ns) == (False, False, best.lifespan_ns)


def test_types_that_are_installed_otherwise_are_refused(tmp_path: Path) -> None:
    from chunkpilot_core.bags.schemas import Definition
    from chunkpilot_core.bags.topics import Topic

    known = Definitions()
    play.check_type(Topic('/x', Definition(STRING, 'ros2msg', 'string data'), (), 1), known)
    for definition in (
        Definition(STRING, 'ros2msg', 'string data\nint32 more'),
        Definition(STRING, '', '', 'RIHS01_' + '0' * 64),
    ):
        with pytest.raises(BagError, match='would be garbage'):
            play.check_type(Topic('/x', definition, (), 1), known)
    with pytest.raises(BagError, match='no definition of nowhere/msg/Thing'):
        play.check_type(Topic('/x', Definition('nowhere/msg/Thing'), (), 1), known)
