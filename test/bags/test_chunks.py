"""Calibration from recorded episodes: the same as from the chunks themselves."""

from dataclasses import replace
from pathlib import Path
import shutil

from chunkpilot.msg import EpisodeEvent, Outcome
from chunkpilot_core import cli, spaces
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.runtime import calibration
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.safety.runtime import calibration as calibrations
from chunkpilot_core.types import ActionChunk, Id, Task
from chunkpilot_nodes import convert
import numpy as np
import pytest
from rclpy.serialization import serialize_message

pytestmark = pytest.mark.ros
SPEC = checkpoint.load(checkpoint.find('mlp_pick_and_place')).spec


def make_chunk(number: int) -> ActionChunk:
    random = np.random.default_rng(number)
    steps = random.normal(0.0, 0.1, (SPEC.horizon, SPEC.space.size)).cumsum(axis=0)
    rows = np.clip(steps, -1.0, 1.0).astype(np.float32)
    return ActionChunk(
        Id(1, number), Id(2, number), 1, 't', Id(3, number), number * 10**9, number * 10**9,
        SPEC.dt_s, rows, SPEC.space.hash, SPEC.policy, 3,
    )  # fmt: skip


def write_episode(
    path: Path, chunks: list[ActionChunk], kind: str, outcome: int = Outcome.UNKNOWN
) -> None:
    messages = [
        ('/task', convert.task_to_msg(Task('t', kind), 0)),
        ('/episode', EpisodeEvent(event=EpisodeEvent.START, episode_id='e', task_id='t')),
        *(('/chunk', convert.chunk_to_msg(chunk)) for chunk in chunks),
        ('/outcome', Outcome(episode_id='e', outcome=outcome)),
    ]
    with BagWriter(path) as bag:
        for i, (topic, msg) in enumerate(messages):
            bag.add_topic(topic, f'chunkpilot/msg/{type(msg).__name__}', TopicQos())
            bag.write(topic, i, bytes(serialize_message(msg)))


def test_recorded_episodes_calibrate_as_their_chunks_do(tmp_path: Path) -> None:
    chunks = [make_chunk(number) for number in range(1, 13)]
    write_episode(tmp_path / 'bags' / 'one', chunks[:5], 'pick_and_place')
    foreign = replace(make_chunk(99), policy='flow')
    write_episode(tmp_path / 'bags' / 'two', [*chunks[5:], foreign], 'pick_and_place')
    out = tmp_path / 'c.json'
    words = ['--policy', 'mlp_pick_and_place', '--horizon', '4', '--out', str(out)]
    assert cli.main(['calibrate', 'upcycling', '--bags', str(tmp_path / 'bags'), *words]) == 0
    strategy = Upcycling(Upcycling.Config(4, pool=4096))
    strategy.configure(SPEC)
    for chunk in chunks:
        still = np.zeros(spaces.ee_delta_space().size, np.float32)
        strategy.horizon(chunk, ExecutionState(0, still, 0, 0.0, 0.0))
    assert calibration.load(out) == strategy.calibration()


def test_bags_of_another_policy_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_episode(tmp_path / 'bags' / 'one', [make_chunk(1)], 'push')
    words = ['--policy', 'mlp_pick_and_place', '--out', str(tmp_path / 'c.json')]
    assert cli.main(['calibrate', 'upcycling', '--bags', str(tmp_path / 'bags'), *words]) == 1
    assert "task 'push'" in capsys.readouterr().err
    assert cli.main(['calibrate', 'upcycling', '--bags', str(tmp_path / 'none'), *words]) == 1
    assert 'no finished bags' in capsys.readouterr().err


def test_recorded_successes_calibrate_the_guard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        chunks = [make_chunk(10 * number + i) for i in range(1, 6)]
        outcome = Outcome.FAILURE if number == 3 else Outcome.SUCCESS
        write_episode(tmp_path / 'bags' / f'{number:02}', chunks, 'pick_and_place', outcome)
    out = tmp_path / 'c.yaml'
    words = ['--policy', 'mlp_pick_and_place', '--out', str(out)]
    assert cli.main(['calibrate', 'guard', '--bags', str(tmp_path / 'bags'), *words]) == 0
    assert '115 chunks of 23 successful episodes of 24' in capsys.readouterr().out
    found = calibrations.load(out)
    assert found.detectors['odd_chunk'].threshold[0] > 0.5
    assert 'odd_observation' not in found.detectors, 'nothing was observed in these bags'
    shutil.rmtree(tmp_path / 'bags' / '01')
    shutil.rmtree(tmp_path / 'bags' / '02')
    for number in (4, 5):
        shutil.rmtree(tmp_path / 'bags' / f'{number:02}')
    assert cli.main(['calibrate', 'guard', '--bags', str(tmp_path / 'bags'), *words]) == 1
    assert '19 successful episodes, at least 20' in capsys.readouterr().err
