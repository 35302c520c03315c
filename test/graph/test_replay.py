"""One side of the graph is what a bag says, the rest is live: `launch/replay.launch.yaml`."""

import json
import os
from pathlib import Path
import subprocess
import sys

from chunkpilot_core.bags import episodes
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.launching import interpreter
import pytest

pytest.importorskip('rclpy')

pytestmark = [pytest.mark.ros, pytest.mark.timeout(400)]
LAUNCH = Path(__file__).resolve().parents[2] / 'launch'
SEED = '1000'
CHUNKPILOT = [sys.executable, '-m', 'chunkpilot_core.cli']


def test_every_side_has_one_stand_in_and_leaves_the_others_live(tmp_path):
    started = {
        side: {
            process.name: Path(process.command[0]).name
            for process in interpreter.interpret(
                LAUNCH / 'replay.launch.yaml', {'replay': str(tmp_path), 'side': side}
            )
        }
        for side in ('policy', 'perception', 'robot')
    }
    for side, nodes in started.items():
        assert {'execution_node', 'guard_node', 'policy_node', 'perception_node'} <= set(nodes)
        assert (nodes['policy_node'] == 'policy_replay_node') == (side == 'policy')
        assert (nodes['perception_node'] == 'perception_replay_node') == (side == 'perception')
        assert ('sim_node' in nodes) == (side != 'robot')
        assert ('camera_node' in nodes) == (side == 'policy')
    assert 'robot_replay_node' in started['robot']


@pytest.mark.parametrize('name', ['demo', 'teleop', 'replay'])
def test_launch_files_keep_to_eight_documented_arguments_and_faults(name):
    arguments = interpreter.declared(LAUNCH / f'{name}.launch.yaml')
    assert len(arguments.keys() - {'faults'}) <= 8
    assert all(argument.description for argument in arguments.values())


@pytest.fixture(scope='module')
def recorded(tmp_path_factory) -> Path:
    """Give the bag of an episode that succeeded."""
    folder = tmp_path_factory.mktemp('recorded')
    values = {'recorder_node': {'ros__parameters': {'directory': str(folder / 'bags')}}}
    run(folder, *params(folder, values), 'record:=true')
    return next(iter(episodes.bags(folder / 'bags')))


def params(folder: Path, more: dict) -> list[str]:
    """Return the demo's parameters with more, and with patience for a loaded machine."""
    import yaml

    values = yaml.safe_load((LAUNCH.parent / 'config/demo.yaml').read_text())
    values |= {
        'guard_node': {'ros__parameters': {'joint_state.hold_s': 0.4, 'joint_state.stop_s': 5.0}},
        'task_node': {'ros__parameters': {'observation_timeout_s': 30.0, 'silence_s': 4.0}},
        **more,
    }
    file = folder / 'parameters.yaml'
    file.write_text(json.dumps(values))
    return [f'params:={file}']


def run(folder: Path, *words: str) -> dict:
    done = subprocess.run(
        [
            *CHUNKPILOT,
            'demo',
            '--episodes',
            '1',
            '--seed',
            SEED,
            '--out',
            str(folder / 'out'),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=380,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
    )
    logs = ''.join(f'\n{f.name}: {f.read_text()[-1500:]}' for f in folder.glob('out/log/*.log'))
    assert (folder / 'out/summary.json').is_file(), done.stdout + done.stderr + logs
    return json.loads((folder / 'out/summary.json').read_text()) | {'said': logs}


@pytest.mark.slow
@pytest.mark.parametrize('side', ['policy', 'perception'])
def test_a_recorded_side_runs_with_the_live_rest(recorded, tmp_path, side):
    summary = run(
        tmp_path,
        *('--launch', 'replay.launch.yaml', f'replay:={recorded}', f'side:={side}'),
        *params(tmp_path, {}),
    )
    assert summary['executed_rows'] > 20, summary['said']
    assert summary['policy_calls_per_episode'] > 2
    assert (' recorded answers, ' in summary['said']) == (side == 'policy'), summary['said']


@pytest.mark.slow
def test_a_recorded_robot_is_watched_by_a_live_policy_and_guard(recorded, tmp_path):
    """The live graph asks, answers, chooses and commands for an arm that moves as it moved."""
    from chunkpilot_core.launching import isolation

    values = {
        'recorder_node': {
            'ros__parameters': {
                'directory': str(tmp_path),
                'per_episode': False,
                'start': True,
                'name': 'live',
                'use_sim_time': True,
            }
        }
    }
    (tmp_path / 'recorder.yaml').write_text(json.dumps(values))
    with isolation.own_domain() as domain:
        environment = {**os.environ, 'ROS_DOMAIN_ID': str(domain)}
        environment['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        node = [sys.executable, '-m', 'chunkpilot_nodes.recorder_node']
        recorder = subprocess.Popen(
            [*node, '--ros-args', '--params-file', str(tmp_path / 'recorder.yaml')],
            env=environment,
        )
        try:
            subprocess.run(
                [
                    *CHUNKPILOT,
                    'up',
                    'replay.launch.yaml',
                    f'replay:={recorded}',
                    'side:=robot',
                    *params(tmp_path, {}),
                ],
                env=environment,
                timeout=200,
                check=False,
            )
        finally:
            recorder.terminate()
            recorder.wait(60)
    with BagReader(tmp_path / 'live') as bag:
        counts = dict(bag.counts)
    assert counts.get('/chunk', 0) > 2, counts
    assert counts.get('/command', 0) > 50, counts
    assert counts.get('/arm_controller/commands', 0) > 50, counts
