"""The attacks of ``make fuzz``, a few of them; and that who judges them would see a fault."""

from dataclasses import replace
import json
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks.fuzz.attack import Episode
from benchmarks.fuzz.sim import SimEpisode
from chunkpilot_core import robot as robots
from chunkpilot_core.types import ArmState
import numpy as np
import pytest

ROBOT = robots.load('panda')


@pytest.mark.parametrize('number', range(6))
def test_nothing_is_wrong_with_a_guard_under_attack(number: int) -> None:
    episode = Episode(ROBOT, (1, number))
    armed = 0
    for tick in range(500):
        assert episode.step() == [], f'tick {tick}, {episode.mood.__name__}'
        armed += episode.guard.machine.state is ArmState.ARMED
    assert armed > 250, 'it is alive most of the time'


def test_the_same_seed_gives_the_same_attack() -> None:
    runs = []
    for _ in range(2):
        episode = Episode(ROBOT, (2, 5))
        runs.append([(episode.step(), repr(episode.tick)) for _ in range(200)])
    assert runs[0] == runs[1]


def test_the_arm_in_the_sim_touches_nothing() -> None:
    episode = SimEpisode(ROBOT, (1, 0))
    for tick in range(400):
        assert episode.step() == [], f'tick {tick}, {episode.mood.__name__}'
    episode.close()


def test_without_distances_it_would_touch_something() -> None:
    """What the judge of collisions sees: otherwise the test above could not fail."""
    episode = SimEpisode(ROBOT, (1, 0))
    episode.guard._situation.clearance = None
    wrong: list[str] = []
    while not wrong and episode.judge.ticks < 8000:
        wrong = [what for what in episode.step() if what.startswith('collision')]
    episode.close()
    assert wrong


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (lambda tick: {'positions': tick.positions + 0.05}, 'limit: step'),
        (lambda tick: {'positions': tick.positions * np.nan}, 'limit: not finite'),
        (lambda tick: {'positions': np.append(np.full(8, 9.0), 0.0)}, 'limit: position'),
        (lambda tick: {'positions': None}, 'silent in ARMED'),
    ],
)
def test_a_guard_that_broke_its_promises_would_be_seen(change: Any, words: str) -> None:
    episode = Episode(ROBOT, (1, 0))
    while episode.guard.machine.state is not ArmState.ARMED:
        episode.step()
    for _ in range(3):
        assert episode.step() == []
    tick = episode.tick
    assert tick is not None
    wrong = episode.judge.look(replace(tick, **change(tick)), 0.01, False, set())
    assert any(what.startswith(words) for what in wrong), wrong


def test_states_that_are_left_without_a_request_would_be_seen() -> None:
    episode = Episode(ROBOT, (1, 0))
    while episode.guard.machine.state is not ArmState.ARMED:
        episode.step()
    episode.guard.stop(episode.now_ns)
    stopped = episode.guard.tick(episode.now_ns, episode.steady_ns)
    episode.judge.look(stopped, 0.0, False, set())
    verdict = replace(stopped.verdict, state=ArmState.ARMED)
    status = replace(stopped.status, state=ArmState.ARMED)
    armed = replace(stopped, verdict=verdict, status=status)
    wrong = episode.judge.look(armed, 0.01, False, set())
    assert 'STOPPED -> ARMED without a reset' in wrong
    assert 'STOPPED -> ARMED without arming' in wrong


def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, '-m', 'benchmarks.fuzz', '--out', str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([*command, '--ticks', '1000000'], cwd=root)
    try:
        while not (tmp_path / 'progress.json').exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    before = json.loads((tmp_path / 'progress.json').read_text())['ticks']
    assert before > 0
    ticks = str(before + 100)
    done = subprocess.run(
        [*command, '--ticks', ticks, '--sim-ticks', '100'],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert (summary['ticks'], summary['sim_ticks']) == (before + 100, 100)
    assert summary['limit_violations'] == summary['property_failures'] == 0
    assert summary['collisions'] == 0
    assert not (tmp_path / 'progress.json').exists()
