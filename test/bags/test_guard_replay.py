"""A recorded guard decides the same once more, and its bag says in words what it did."""

from collections.abc import Callable, Iterator
from dataclasses import replace
import json
import math
from pathlib import Path
import signal
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')

from chunkpilot.msg import EpisodeEvent, EStop, GuardEvent, SafetyVerdict  # noqa: E402
from chunkpilot.srv import MoveTo  # noqa: E402
from chunkpilot_core import cli, types  # noqa: E402
from chunkpilot_core.bags import copy  # noqa: E402
from chunkpilot_core.bags.cut import cut  # noqa: E402
from chunkpilot_core.bags.reader import BagReader, Message  # noqa: E402
from chunkpilot_core.bags.selection import Selection  # noqa: E402
from chunkpilot_nodes import convert, qos  # noqa: E402
from helpers.edge import Edge, ROBOT  # noqa: E402
import numpy as np  # noqa: E402
from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture(scope='module')
def bag(edge: Edge, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the bag of a guard that has to clamp, refuse, hold and stop, dies and comes back."""
    folder = tmp_path_factory.mktemp('guard')
    recorder = edge.start(
        'recorder_node', f'directory:={folder}', 'start:=true', 'per_episode:=false', 'name:=run'
    )
    episodes = edge.node.create_publisher(EpisodeEvent, 'episode', qos.LATCHED)
    guard = edge.start_guard()
    heard = ('verdict', 'guard/events', 'joint_states', 'command', 'estop', 'episode')
    count = edge.node.count_subscribers
    assert edge.run(60.0, lambda: all(count(topic) >= 2 for topic in heard)), 'recorder is up'
    edge.run(0.5)
    first(edge, episodes)
    guard.kill()
    guard.wait(10)
    edge.states.clear()
    guard = edge.start_guard()
    second(edge)
    guard.send_signal(signal.SIGINT)
    assert guard.wait(20) == 0
    edge.run(0.5)
    recorder.send_signal(signal.SIGINT)
    assert recorder.wait(30) == 0
    return folder / 'run'


@pytest.fixture(scope='module')
def edge() -> Iterator[Edge]:
    import domain_coordinator

    with domain_coordinator.domain_id() as domain:
        edge = Edge(domain)
        try:
            yield edge
        finally:
            edge.close()


def first(edge: Edge, episodes: Any) -> None:
    edge.ready()
    edge.armed()
    stamp = edge.node.get_clock().now().to_msg()
    event = EpisodeEvent(event=EpisodeEvent.START, episode_id='one', task_id='t')
    event.header.stamp = stamp
    episodes.publish(event)
    sender = edge.sender(session=5)
    assert edge.run(20.0, edge.moving)
    edge.run(1.5)
    sender.kill()
    assert edge.run(5.0, lambda: edge.state is types.ArmState.HOLD)
    assert edge.run(5.0, lambda: edge.state is types.ArmState.ARMED)
    refused = lambda: [v for v in edge.verdicts if 'panda_joint3' in v.reason]  # noqa: E731
    for pause_s in (0.1, 1.2, 0.1):  # the second one is counted, not told as an event
        before = len(refused())
        edge.commands.publish(broken(edge))
        assert edge.run(5.0, lambda: len(refused()) > before)  # noqa: B023
        edge.run(pause_s)
    press(edge, True)
    assert edge.run(5.0, lambda: edge.state is types.ArmState.ESTOP)
    assert not edge.guard('reset').success
    press(edge, False)
    event.event, event.header.stamp = EpisodeEvent.END, edge.node.get_clock().now().to_msg()
    episodes.publish(event)
    edge.armed()
    edge.run(0.5)


def second(edge: Edge) -> None:
    edge.ready()
    edge.run(4.0)  # until the recorder has found it, too, which nobody can see
    edge.armed()
    assert edge.run(5.0, lambda: edge.scales[-1] == 1.0)
    goal = [*ROBOT.home]
    goal[0] += 0.2
    assert edge.call('guard/move_to', MoveTo, joint_names=ROBOT.arm_joints, positions=goal).success
    assert edge.run(10.0, lambda: edge.states[-1].at_target)
    edge.guard('hold')
    edge.run(0.3)
    edge.guard('resume')
    edge.run(0.3)


def broken(edge: Edge) -> Any:
    values = np.array(ROBOT.home)
    values[2] = math.nan
    group = types.CommandGroup(
        'arm', types.Kind.JOINT_POSITION, values, np.zeros(0), names=ROBOT.arm_joints
    )
    now_ns, epoch = edge.node.get_clock().now().nanoseconds, int(edge.states[-1].arm_epoch)
    return convert.command_to_msg(types.Command(types.Id(5, 10**6), now_ns, epoch, (group,)))


def press(edge: Edge, asserted: bool) -> None:
    msg = EStop(asserted=asserted, source='button')
    msg.header.stamp = edge.node.get_clock().now().to_msg()
    edge.estop.publish(msg)


def replay(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, Any, str]:
    """Return exit code, report and errors."""
    code = cli.main(['guard', 'replay', str(path), '--json'])
    said = capsys.readouterr()
    return code, (json.loads(said.out)[0] if said.out else {}), said.err


def changed(path: Path, out: Path, change: Callable[[Message], bytes | None]) -> Path:
    """Write a bag with other contents of messages; None leaves one out."""
    with BagReader(path) as bag:
        made = [
            Message(m.topic, m.type_name, m.stamp_ns, cdr, m.published_ns, m.sequence)
            for m in bag.messages()
            for cdr in (change(m),)
            if cdr is not None
        ]
        copy.write(out, bag.details, made, bag.metadata)
    return out


def without(path: Path, out: Path, *topics: str) -> Path:
    cut(path, out, Selection(exclude=topics))
    return out


# ---- replay -------------------------------------------------------------------------------------


@pytest.mark.matrix(53)
def test_every_decision_is_the_same_to_the_last_bit(bag, capsys):
    """Rows 52 and 53 of the fault matrix, P10; across a guard that died and came back."""
    code, report, _ = replay(capsys, bag)
    assert code == 0, report
    assert len(report['runs']) == 2
    for run in report['runs']:
        assert run['robot'] == 'panda'
        assert run['agrees']
        assert run['identical'] == run['followed'] > 0
        assert run['followed'] >= run['verdicts'] - 50, 'it was disarmed when the bag began'


@pytest.mark.matrix(53)
def test_twice_the_same(bag, capsys):
    assert replay(capsys, bag)[1] == replay(capsys, bag)[1]


def test_a_bag_that_begins_in_motion_is_followed_from_where_it_rests(bag, capsys, tmp_path):
    moving_s = first_motion_s(bag) + 0.5
    cut(bag, tmp_path / 'late', Selection(start_s=moving_s))
    code, report, _ = replay(capsys, tmp_path / 'late')
    assert code == 0, report
    run = report['runs'][0]
    assert run['followed_from_s'][0] > 0.5, 'not while it moves'
    assert 0 < run['followed'] < run['verdicts']


def test_a_bag_that_ends_in_motion_is_followed_to_its_end(bag, capsys, tmp_path):
    cut(bag, tmp_path / 'short', Selection(end_s=first_motion_s(bag) + 0.7))
    code, report, _ = replay(capsys, tmp_path / 'short')
    assert code == 0, report
    assert report['runs'][0]['identical'] > 0


def test_a_verdict_that_is_another_one_is_found_and_explained(bag, capsys, tmp_path):
    moving: list[Any] = []

    def forge(message: Message) -> bytes:
        if message.topic != '/verdict':
            return message.cdr
        verdict = deserialize_message(message.cdr, SafetyVerdict)
        if abs(verdict.sent_velocity[0]) > 0.1:
            moving.append(verdict)
            if len(moving) == 30:
                verdict.sent[0] = np.nextafter(verdict.sent[0], 1.0)
                return bytes(serialize_message(verdict))
        return message.cdr

    path = changed(bag, tmp_path / 'forged', forge)
    code, report, _ = replay(capsys, path)
    assert code == 1
    found = report['runs'][0]['differences'][0]
    assert found['tick'] == moving[29].tick
    assert list(found['fields']) == ['sent']
    assert any('joint_states' in word or 'command' in word for word in found['taken'])
    assert cli.main(['guard', 'replay', str(path)]) == 1
    said = capsys.readouterr().out
    assert f'first difference: verdict {found["tick"]}' in said
    assert 'NOT the same' in said
    assert len(report['runs'][0]['followed_from_s']) > 1, 'it goes on where the guard rests again'


def test_a_message_that_the_bag_lacks_is_named_and_is_no_wrong_decision(bag, capsys, tmp_path):
    commands: list[int] = []

    def lose(message: Message) -> bytes | None:
        if message.topic == '/command':
            commands.append(message.stamp_ns)
        lost = message.topic == '/command' and 60 <= len(commands) < 70
        return None if lost else message.cdr

    code, report, _ = replay(capsys, changed(bag, tmp_path / 'lossy', lose))
    run = report['runs'][0]
    assert 1 <= run['missing']['command'] <= 10
    assert any('inputs that the bag lacks' in note for note in run['notes'])
    assert not run['differences']
    assert code == 0


def test_an_array_of_a_wrong_length_is_an_error_that_names_the_tick(bag, capsys, tmp_path):
    ticks: list[int] = []

    def forge(message: Message) -> bytes:
        if message.topic != '/guard/events':
            return message.cdr
        event = deserialize_message(message.cdr, GuardEvent)
        if event.kind == 'request' and event.check == 'arm':
            ticks.append(1)
            event.check, event.requested = 'tighten', [0.5] * 9
        return bytes(serialize_message(event))

    code, report, _ = replay(capsys, changed(bag, tmp_path / 'forged', forge))
    assert ticks
    assert code == 1
    assert 'what no guard does' in report['error']


def test_lost_verdicts_are_counted(bag, capsys, tmp_path):
    verdicts: list[int] = []

    def lose(message: Message) -> bytes | None:
        if message.topic == '/verdict':
            verdicts.append(message.stamp_ns)
        return None if message.topic == '/verdict' and 200 <= len(verdicts) < 203 else message.cdr

    _, report, _ = replay(capsys, changed(bag, tmp_path / 'lossy', lose))
    assert any('3 verdicts are not in the bag' in note for note in report['runs'][0]['notes'])


@pytest.mark.parametrize(
    ('topic', 'words'),
    [
        ('/verdict', 'topics of guards: none'),
        ('/guard/parameters', 'no message of /guard/parameters'),
    ],
)
def test_a_bag_without_what_it_takes_says_so(bag, capsys, tmp_path, topic, words):
    path = without(bag, tmp_path / 'poor', topic)
    code, report, _ = replay(capsys, path)
    assert code == 1
    assert words in report['error']


def test_a_bag_of_before_says_that_it_can_only_be_explained(bag, capsys, tmp_path):
    with BagReader(bag) as reader:
        details = dict(reader.details)
        known = details['/verdict'].definition
        lines = [line for line in known.text.split('\n') if 'input_' not in line]
        older = replace(known, text='\n'.join(lines))
        details['/verdict'] = replace(details['/verdict'], definition=older)
        copy.write(tmp_path / 'old', details, reader.messages(), reader.metadata)
    code, report, _ = replay(capsys, tmp_path / 'old')
    assert code == 1
    assert 'can be explained, not decided once more' in report['error']


def test_a_cut_off_file_is_an_error_that_names_it(bag, capsys, tmp_path):
    whole = next(bag.glob('*.mcap')).read_bytes()
    path = tmp_path / 'torn.mcap'
    path.write_bytes(whole[: len(whole) // 2])
    code, report, _ = replay(capsys, path)
    assert code == 1
    assert 'torn.mcap' in report['error']
    assert cli.main(['guard', 'explain', str(path)]) == 1
    assert 'torn.mcap' in capsys.readouterr().err


# ---- explain ------------------------------------------------------------------------------------


def explain(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main(['guard', 'explain', *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_story_names_causes_joints_and_limits(bag, capsys):
    text = explain(capsys, bag)
    for words in (
        'guard of panda',
        'asked to arm: done',
        'CLAMP by joint_limits, panda_joint1: asked for',
        'acceleration limit',
        'panda_joint3 is nan',
        'HOLD by staleness',
        'ARMED -> HOLD: no acceptable command for',
        'HOLD -> ARMED: cause cleared',
        'emergency stop pressed: button',
        'asked to reset: refused, emergency stop pressed: button',
        'another guard speaks: it was restarted',
        'asked to move_to: done',
        'HOLD by request: on request',
        'before it: ARMED',
        'not repeated as events: 1 of rejection command panda_joint3',
    ):
        assert words in text, words
    times = [float(line.split(' s  ')[0]) for line in text.splitlines() if ' s  ' in line[:14]]
    assert times == sorted(times)


def test_json_tells_the_same_in_numbers(bag, capsys):
    story = json.loads(explain(capsys, bag, '--json'))
    assert sum(story['reactions'].values()) == story['verdicts']
    holds = [span for span in story['spans'] if span['reaction'] == 'HOLD']
    assert {span['check'] for span in holds} >= {'staleness', 'request'}
    clamps = [span for span in story['spans'] if span['check'] == 'joint_limits']
    assert all(span['joint'].startswith('panda_joint') for span in clamps)
    assert all(span['requested'] is not None for span in clamps)


def test_a_moment_is_told_in_full(bag, capsys):
    story = json.loads(explain(capsys, bag, '--json'))
    holds = [span for span in story['spans'] if span['reaction'] == 'HOLD']
    hold = next(span for span in holds if span['check'] == 'staleness')
    at_s = hold['begin_s'] + 0.05
    text = explain(capsys, bag, '--at', at_s)
    assert hold['begin_s'] - 0.001 <= float(text.split()[1]) <= at_s + 0.001  # it is rounded
    assert 'HOLD because of staleness' in text
    assert 'panda_joint1' in text
    assert 'requested' in text
    assert 'within 1 s of it' in text
    moment = json.loads(explain(capsys, bag, '--at', at_s, '--json'))
    assert moment['check'] == 'staleness'
    assert hold['begin_s'] <= moment['at_s'] <= at_s


def test_one_episode_of_several(bag, capsys):
    whole = json.loads(explain(capsys, bag, '--json'))
    part = json.loads(explain(capsys, bag, '--episode', 1, '--json'))
    assert 0 < part['verdicts'] < whole['verdicts']
    assert any('button' in moment['text'] for moment in part['moments'])
    assert not any('move_to' in moment['text'] for moment in part['moments'])
    assert cli.main(['guard', 'explain', str(bag), '--episode', '2']) == 1
    assert 'the bag has 1 episodes' in capsys.readouterr().err


def test_without_events_the_verdicts_tell_it(bag, capsys, tmp_path):
    text = explain(capsys, without(bag, tmp_path / 'poor', '/guard/events'))
    assert 'ARMED -> HOLD' in text
    assert 'no guard/events in the bag' in text


def test_without_verdicts_there_is_nothing_to_tell(bag, capsys, tmp_path):
    path = without(bag, tmp_path / 'poor', '/verdict')
    assert cli.main(['guard', 'explain', str(path)]) == 1
    assert 'no verdicts of a guard' in capsys.readouterr().err


def first_motion_s(path: Path) -> float:
    """Return when the arm begins to move, from the first message of the bag."""
    with BagReader(path) as bag:
        for message in bag.messages(['/verdict']):
            verdict = deserialize_message(message.cdr, SafetyVerdict)
            if abs(verdict.sent_velocity[0]) > 0.1:
                return (message.stamp_ns - bag.start_ns) / 1e9
    raise AssertionError('nothing moves in this bag')
