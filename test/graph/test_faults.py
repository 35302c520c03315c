"""The whole graph with faults from a file: nodes sleep and die, messages are lost or NaN."""

import json
import os
from pathlib import Path
import subprocess
import sys

from chunkpilot_core.faults import plan
import pytest

pytest.importorskip('rclpy')

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(300)]

PLAN = """
begin: armed
topics:
  command:
    - {kind: nan, field: 'groups[0].values', index: 0, probability: 0.02}
    - {kind: drop, probability: 0.05}
  joint_states:
    - {kind: noise, sigma: 0.0002}
processes:
  - {kind: sigstop, node: policy_node, at_s: 1.0, for_s: 1.0}
  - {kind: kill, node: execution_node, at_s: 6.0}
  - {kind: kill, node: policy_node, at_s: 3000.0}
"""


@pytest.mark.matrix(18, 19)
def test_a_demo_full_of_faults_ends_and_some_episodes_succeed(tmp_path: Path) -> None:
    out, file = tmp_path / 'demo', tmp_path / 'faults.yaml'
    file.write_text(PLAN)
    words = ['demo', '--episodes', '6', '--out', str(out), f'faults:={file}']
    done = subprocess.run(
        [sys.executable, '-m', 'chunkpilot_core.cli', *words],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
        check=False,
    )
    logs = {log.stem: log.read_text() for log in (out / 'log').glob('*.log')}
    said = done.stdout + done.stderr + logs.get('fault_injector_node', '')
    assert (out / 'summary.json').exists(), said
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['episodes'] == 6, said
    assert summary['successes'] >= 1, said
    assert summary['node_restarts'] == {'execution_node': 1}, said
    took_place = {entry['fault']: entry['applied'] for entry in summary['faults']}
    assert list(took_place) == plan.described(plan.load(file))
    assert took_place['policy_node: sigstop at 1 s'] == 1, said
    assert took_place['execution_node: kill at 6 s'] == 1, said
    assert took_place['policy_node: kill at 3000 s'] == 0, said
    assert 20 < took_place['command: drop'] < took_place['joint_states: noise'], said
    assert 'command: drop: applied' in done.stdout
    assert 'policy_node: kill at 3000 s: did not take place' in done.stdout
    assert 'sigstop: policy_node' in logs['fault_injector_node']
    assert 'is nan' in logs['guard_node']
    assert 'Traceback' not in ''.join(logs.values()), said
