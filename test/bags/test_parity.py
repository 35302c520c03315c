"""
Live = bag: told what a recorded graph was told, the core observes, chooses and decides the same.

What is compared and how exactly is said in each test; how the order of messages is found, in
:mod:`parity`.
"""

import json
import os
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot_core.robot import config_dir
from chunkpilot_core.types import Health
from chunkpilot_nodes import guard_replay
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import parity

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(1200)]

HOLD_S, STOP_S = 0.4, 5.0  # patience with a loaded machine: of the run, and so of its replay
LADDER = 100


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> parity.Run:
    """Give one recorded run of the whole graph, from before the guard was armed."""
    for _ in range(3):
        folder = tmp_path_factory.mktemp('parity')
        record(folder)
        run = parity.Run.load(folder / 'run')
        if run.whole:
            return run
    pytest.skip('the machine is too busy to record a run without a hold and a gap')


def record(folder: Path) -> None:
    values = yaml.safe_load((config_dir() / 'demo.yaml').read_text())
    values['recorder_node'] = parameters(
        directory=str(folder), per_episode=False, start=True, name='run'
    )
    values['guard_node'] = parameters(
        **{'joint_state.hold_s': HOLD_S, 'joint_state.stop_s': STOP_S, 'ladder_count': LADDER}
    )
    values['task_node'] = parameters(observation_timeout_s=30.0, hold_grace_s=5.0, silence_s=4.0)
    file = folder / 'parameters.yaml'
    file.write_text(json.dumps(values))
    verb = [sys.executable, '-m', 'chunkpilot_core.cli', 'demo', '--episodes', '1']
    done = subprocess.run(
        [*verb, '--out', str(folder / 'demo'), 'record:=true', f'params:={file}'],
        capture_output=True,
        text=True,
        timeout=380,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
    )
    assert (folder / 'run/metadata.yaml').is_file(), done.stdout + done.stderr


def parameters(**values):
    return {'ros__parameters': values}


def test_observations_are_built_the_same_to_the_last_bit(run):
    """But for the health: it counts from when the node's clock was read, which no bag tells."""
    pairs = parity.observations_as_told(run)
    assert len(pairs) > 50
    for said, again in pairs:
        for name in ('stamp_ns', 'oldest_ns', 'state_names', 'feature_names', 'task_id'):
            assert getattr(said, name) == getattr(again, name)
        np.testing.assert_array_equal(said.state, again.state)
        np.testing.assert_array_equal(said.features, again.features)
        np.testing.assert_array_equal(said.goal, again.goal)
        for one, other in zip(said.objects, again.objects, strict=True):
            np.testing.assert_array_equal(one.position, other.position)
            assert one.status is other.status
    assert any(np.isfinite(said.features).all() for said, _ in pairs)
    for said, again in pairs:
        if said.health is not again.health:
            assert 'joint_states' in said.health_reason + again.health_reason
    assert Health.OK in {again.health for _, again in pairs}


def test_horizons_are_chosen_the_same(run):
    options = yaml.safe_load((config_dir() / 'strategies/upcycling.yaml').read_text())
    values = next(iter(options.values()))['ros__parameters']
    chosen = {
        key.removeprefix('upcycling.'): value
        for key, value in values.items()
        if key.startswith('upcycling.')
    }
    nested = values.get('upcycling', {})
    said, again = parity.decisions(run, 'upcycling', {**chosen, **nested})
    assert len(said) > 2
    for one, other in zip(said, again, strict=True):
        for name in ('chunk_id', 'base', 'chosen', 'reason', 'cut'):
            assert getattr(one, name) == getattr(other, name)
        np.testing.assert_array_equal(one.fluctuation, other.fluctuation)


def test_the_guard_decides_the_same_to_the_last_bit(run):
    """All that a verdict says but what the tick cost; from where the bag tells enough."""
    (replayed,) = guard_replay.replay(run.path)
    assert replayed.agrees, (replayed.differences, replayed.notes)
    assert replayed.identical == replayed.followed > 0.9 * replayed.verdicts
    moved = {tuple(np.round(verdict.sent, 3)) for verdict in run.all('/verdict')}
    assert len(moved) > 20
