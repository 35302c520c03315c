"""What the bag tools print: for people, for pipes, and about what is not a bag."""

from importlib import import_module
import io
from pathlib import Path
import sys

from chunkpilot_core import cli
from chunkpilot_core.bags.definitions import share_folders
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.cli import _frames
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.runs.progress import progress_bar
import pytest

importing = import_module('chunkpilot_core.cli.import')
STRING, S = 'std_msgs/msg/String', 1_000_000_000
HELLO = b'\0\1\0\0\6\0\0\0hello\0'
pytestmark = pytest.mark.skipif(
    not any((folder / 'std_msgs').is_dir() for folder in share_folders()),
    reason='definitions of std_msgs are not in AMENT_PREFIX_PATH: source env.sh',
)
LONG = '/a_robot_of_some_name/arm_controller/with_a_long_name/and_a_longer_one/observation'


def make(path: Path, topic: str = '/text', complete: bool = True, **custom: str) -> Path:
    bag = BagWriter(path)
    bag.add_topic(topic, STRING, TopicQos())
    for i in range(100):
        if not 40 <= i < 60:
            bag.write(topic, (100 * S) + i * S // 10, HELLO)
    if not complete:
        bag.abort()
        return path.with_name(f'{path.name}.unfinished')
    return bag.close(custom)


Said = pytest.CaptureFixture[str]


def test_an_unfinished_bag_is_named_with_what_repairs_it(tmp_path: Path, capsys: Said) -> None:
    left = make(tmp_path / 'bags' / 'cut off', complete=False)
    for word in (left, tmp_path / 'bags', left.parent / 'cut off'):
        for verb in ('info', 'check'):
            assert cli.main(['bag', verb, str(word)]) == 1
            said = ''.join(capsys.readouterr())
            assert 'cut off' in said, said
            assert 'chunkpilot bag repair' in said, said
    assert cli.main(['bag', 'info', str(left)]) == 1
    said = capsys.readouterr().err
    assert f'{left}: unfinished' in said
    assert f"chunkpilot bag repair '{left}'" in said  # can be pasted
    assert cli.main(['bag', 'repair', str(left)]) == 0


def test_tables_are_whole_in_a_pipe(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('COLUMNS', '80')
    folder = tmp_path / ('a_folder_of_many_letters_' * 4)
    bag = make(folder / 'bag', LONG)
    assert cli.main(['bag', 'info', str(bag)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if LONG in line]
    assert line.split()[:3] == [LONG, 'std_msgs/String', '80']
    assert cli.main(['bag', 'check', str(bag)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(bag)
    (line,) = [line for line in lines if LONG in line]
    assert 'nothing for 2.100 s, usual are 0.1000 s' in line


def test_an_episode_without_an_outcome_was_aborted(tmp_path: Path, capsys: Said) -> None:
    make(tmp_path / 'bags' / 'no_episode')
    make(tmp_path / 'bags' / 'solved', episode_id='a', outcome='success')
    cut = make(tmp_path / 'bags' / 'stopped', episode_id='b')
    assert cli.main(['bag', 'info', str(tmp_path / 'bags')]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows if row[0] != 'no_episode'] == [
        ('solved', 'success'),
        ('stopped', 'aborted'),
    ]
    assert 'aborted' not in ' '.join(rows[0])
    assert cli.main(['bag', 'info', str(cut)]) == 0
    assert 'outcome: aborted' in capsys.readouterr().out


def test_progress_is_shown_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, 'stderr', stream)
        with _frames.bar('bags', 2) as progress:
            progress(2, 2)
        with importing._Bars(quiet=False) as progress:
            progress('rows', 1, 2)
        progress_bar('epochs', 1).close()
        for what in ('bags', 'rows', 'epochs'):
            assert (what in stream.getvalue()) is shown, what


def test_only_what_is_near_is_suggested() -> None:
    topics = ['/rosout', '/chunk', '/observation', '/joint_states']
    assert UnknownNameError('topic', '/nosuch', topics).nearest is None
    assert UnknownNameError('topic', '/observations', topics).nearest == '/observation'
    assert UnknownNameError('topic', '/joint_state', topics).nearest == '/joint_states'
