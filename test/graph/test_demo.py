"""The whole graph, as `make demo` runs it, for two episodes."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip('rclpy')

from PIL import Image

pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]


def test_two_episodes_end_to_end(tmp_path):
    out = tmp_path / 'demo'
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'chunkpilot_core.cli',
            'demo',
            '--episodes',
            '2',
            '--out',
            str(out),
        ],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
    )
    said = (
        done.stdout
        + done.stderr
        + ''.join(
            f'\n{file.name}: {file.read_text()[-2000:]}' for file in (out / 'log').glob('*.log')
        )
    )
    assert done.returncode == 0, said
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['episodes'] == 2, said
    assert summary['successes'] >= 1, said
    assert summary['aborted'] == 0, said
    assert summary['executed_rows'] > 20
    assert summary['policy_calls_per_episode'] > 0
    assert summary['node_restarts'] == {}
    assert summary['command_latency_ms']['p50'] < 20.0
    assert summary['strategy'] == 'upcycling'
    with Image.open(out / 'episode.gif') as film:
        assert film.n_frames > 5
    assert (out / 'episode.png').stat().st_size > 5000
    assert not (out / 'run.json').exists()
    assert left_over(out) == []


def left_over(out: Path) -> list[str]:
    """Return processes that speak of the demo's folder and are still there."""
    import psutil

    return [
        ' '.join(process.info['cmdline'])
        for process in psutil.process_iter(['cmdline'])
        if process.info['cmdline'] and str(out) in ' '.join(process.info['cmdline'])
    ]
