"""How far something is that takes long, where nobody sits at a terminal."""

import subprocess
import sys
from typing import Any

from chunkpilot_core.cli import _bags
from chunkpilot_core.runs import progress
from chunkpilot_core.runs.progress import progress_bar
import pytest


class Clock:
    """Stands for the module ``time`` there; moved by hand."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, 'time', found)
    return found


def test_in_a_pipe_there_is_a_whole_line_now_and_then(capfd: Any, clock: Clock) -> None:
    with progress_bar('episodes', 200) as bar:
        bar.mininterval = 0.0
        for _ in range(100):  # a second each
            clock.now_s += 1.0
            bar.update()
            bar.set_postfix(loss='0.5')
    told = capfd.readouterr().err
    lines = told.splitlines()
    assert [line.partition(' after')[0] for line in lines] == [
        f'episodes: {count} of 200' for count in (30, 60, 90)
    ]
    assert all(line.endswith('loss=0.5') for line in lines[1:])
    assert '\r' not in told
    assert '\x1b' not in told
    assert told.endswith('\n')


def test_what_is_done_soon_says_nothing_in_a_pipe(capfd: Any, clock: Clock) -> None:
    assert list(_bags.told(iter(range(1000)), 'messages')) == list(range(1000))
    with progress_bar('bags', 3) as bar:
        clock.now_s += 29.0
        bar.update(3)
        bar.write('a word between', file=sys.stderr)
    assert capfd.readouterr().err == 'a word between\n'


def test_an_unknown_total_and_silence_where_machines_read(capfd: Any, clock: Clock) -> None:
    for quiet in (False, True):
        with progress_bar('messages', quiet=quiet) as bar:
            bar.mininterval = 0.0
            clock.now_s += 31.0
            bar.update(5)
    assert capfd.readouterr().err.startswith('messages: 5 of ? after')


def test_eval_in_a_pipe_tells_how_far_it_is() -> None:
    """The command itself, with lines that are due at once instead of after half a minute."""
    words = ['eval', '--task', 'push', '--episodes', '2', '--strategies', 'fixed']
    code = (
        'import sys\nfrom chunkpilot_core import cli\nfrom chunkpilot_core.runs import progress\n'
        'progress.EVERY_S = 0.0\n'
        f'sys.exit(cli.main({[*words, "--workers", "1"]!r}))'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'episodes: 1 of 2 after' in done.stderr, done.stderr
    assert '\r' not in done.stderr
    assert 'episodes:' not in done.stdout
