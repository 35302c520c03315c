"""Each strategy in the whole graph: one episode, or a refusal that says why."""

import json
import os
from pathlib import Path
import subprocess
import sys

from chunkpilot_core import registry
import pytest

pytest.importorskip('rclpy')

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(180)]

FLOW = ('bid', 'real_time_chunking', 'vote')
REFUSED = {
    'confidence': 'needs confidence from the policy',
    'corrector': 'a corrector must be named',
    'hybrid_waypoint': 'needs waypoints from the policy',
    'mixture_of_horizons': 'needs horizons from the policy',
    'trim': 'needs trusted_rows from the policy',
}


def demo(out: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run one episode; returns the process and all that it and its nodes said."""
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'chunkpilot_core.cli',
            'demo',
            *('--episodes', '1', '--out', str(out)),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
    )
    logs = [file.read_text() for file in (out / 'log').glob('*.log')]
    return done, '\n'.join([done.stdout, done.stderr, *logs])


@pytest.mark.parametrize('name', sorted(set(registry.names('execution')) - set(REFUSED)))
def test_it_runs_an_episode(name: str, tmp_path) -> None:
    policy = f'{"flow" if name in FLOW else "mlp"}_pick_and_place'
    done, said = demo(tmp_path, f'strategy:={name}', f'policy:={policy}')
    assert done.returncode == 0, said[-3000:]
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['strategy'] == name
    assert summary['aborted'] == 0, said[-3000:]
    assert summary['successes'] == 1, said[-3000:]
    assert summary['node_restarts'] == {}


@pytest.mark.parametrize(('name', 'reason'), REFUSED.items())
def test_it_says_why_the_shipped_policy_does_not_do(name: str, reason: str, tmp_path) -> None:
    _, said = demo(tmp_path, f'strategy:={name}', '--timeout', '5')
    assert reason in said, said[-3000:]
