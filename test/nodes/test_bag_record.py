"""``chunkpilot bag record`` as people type it: real processes, habits from ``ros2 bag record``."""

from collections.abc import Iterator
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time

from chunkpilot_core import cli
from chunkpilot_core.bags.reader import BagReader
import pytest

rclpy = pytest.importorskip('rclpy')
import domain_coordinator  # noqa: E402
from rclpy.node import Node  # noqa: E402
from std_msgs.msg import Int32  # noqa: E402

pytestmark = pytest.mark.ros
TOPICS = ('/left/number', '/right/number', '/other')


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    with domain_coordinator.domain_id() as domain:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        made = rclpy.create_node('sender', context=context)
        yield made
        made.destroy_node()
        rclpy.shutdown(context=context)


def record(node: Node, folder: Path, *words: str, followed: int) -> tuple[int, str, int]:
    """Record numbers, end it as Ctrl-C does; returns exit code, output, how many were sent."""
    senders = [node.create_publisher(Int32, topic, 10) for topic in TOPICS]
    process = subprocess.Popen(
        [sys.executable, '-m', 'chunkpilot_core.cli', 'bag', 'record', *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
    )
    try:
        end = time.monotonic() + 40.0
        while sum(bool(sender.get_subscription_count()) for sender in senders) < followed:
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        for i in range(100):
            for sender in senders:
                sender.publish(Int32(data=i))
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=40.0)
    finally:
        process.kill()
        process.wait()
        for sender in senders:
            node.destroy_publisher(sender)
    return process.returncode, output, 100


def test_named_topics_are_recorded_until_ctrl_c(node: Node, tmp_path: Path) -> None:
    words = [
        '/left/number',
        '--topics',
        'other',
        '-o',
        'mine',
        '-d',
        '0.5',
        '--custom-data',
        'a=b',
    ]
    code, output, sent = record(node, tmp_path, *words, followed=2)
    assert code == 0, output
    assert [path.name for path in tmp_path.iterdir()] == ['mine']
    with BagReader(tmp_path / 'mine') as bag:
        assert bag.counts == {'/left/number': sent, '/other': sent}
        assert [bag.decode(m).data for m in bag.messages(['/other'])] == list(range(sent))
        assert bag.metadata['a'] == 'b'
        assert len(bag.files) >= 3  # two seconds, and a next file after each half
    assert f'mine: {2 * sent} messages, 0 dropped, 0 lost' in output


def test_by_default_the_bag_is_named_as_that_of_ros2_bag(node: Node, tmp_path: Path) -> None:
    code, output, sent = record(node, tmp_path, '-e', 'number$', '-x', '^/right', followed=1)
    assert code == 0, output
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r'rosbag2_\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d', path.name)
    assert (path / f'{path.name}_0.mcap').is_file()
    with BagReader(path) as bag:
        assert bag.counts == {'/left/number': sent}


def test_a_killed_recorder_leaves_a_bag_to_repair_and_says_so(node: Node, tmp_path: Path) -> None:
    words = [sys.executable, '-m', 'chunkpilot_core.cli', 'bag', 'record', '-o', 'cut', '/other']
    sender = node.create_publisher(Int32, '/other', 10)
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        end = time.monotonic() + 40.0
        while not sender.get_subscription_count():
            assert time.monotonic() < end
            time.sleep(0.05)
        sender.publish(Int32(data=1))
        children = Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
        for child in children:
            if b'recorder_node' in Path(f'/proc/{child}/cmdline').read_bytes():
                os.kill(int(child), signal.SIGKILL)
        output, _ = process.communicate(timeout=40.0)
    finally:
        process.kill()
        process.wait()
    left = tmp_path / 'cut.unfinished'
    assert process.returncode == 1, output
    assert 'cut.unfinished: unfinished' in output
    assert f'"chunkpilot bag repair {left.name}"' in output
    assert left.is_dir()


def test_what_can_not_be_recorded_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'taken').mkdir()
    for words, message in (
        ([], 'which topics?'),
        (['-a', '/x'], '--all and chosen topics'),
        (['-a', '-o', 'taken'], 'taken exists already'),
        (['-a', '-b', '-1'], '--max-bag-size -1'),
        (['-a', '--max-bag-duration', 'nan'], '--max-bag-duration nan'),
        (['-a', '--max-cache-size', '5'], '--max-cache-size 5'),
        (['-a', '--custom-data', 'x'], "--custom-data 'x'"),
        (['-e', '('], 'is no regular expression'),
        (['-a', '-o', 'a b'], "bag name 'a b'"),
    ):
        assert cli.main(['bag', 'record', *words]) == 1
        told = capsys.readouterr()
        assert message in told.err + told.out
    assert [path.name for path in tmp_path.iterdir()] == ['taken']
