"""`chunkpilot bench policies`: what it writes, what it keeps, and which plans it refuses."""

import json
import math
from pathlib import Path
import re
from typing import Any

from chunkpilot_core.cli import main
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval import runner, speed
from chunkpilot_core.eval.grid import policies
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.robot import config_dir
import pytest
import yaml

KEYS = {
    'policy', 'task', 'steps', 'streaming', 'latency_ms_p50', 'latency_ms_p99', 'first_row_ratio',
    'throughput_ratio', 'success', 'success_ci', 'calls_per_episode', 'strong_call_ratio',
    'peak_memory_mb',
}  # fmt: skip
PLAN: dict[str, Any] = {
    'tasks': ['pick_and_place'],
    'episodes': 1,
    'calls': 20,
    'calibration_episodes': 1,
    'variants': [
        {'label': 'mlp', 'checkpoint': 'mlp_{task}'},
        {'label': 'flow', 'checkpoint': 'flow_{task}'},
        {'label': 'flow 1', 'checkpoint': 'flow_{task}', 'options': {'flow_steps': 1}},
    ],
    'entries': [{'label': 'fixed', 'plugin': 'fixed', 'options': {'horizon': 8}}],
}


def plan_file(folder: Path, **changes: Any) -> Path:
    file = folder / 'plan.yaml'
    file.write_text(yaml.safe_dump({'short': {**PLAN, **changes}}))
    return file


def test_a_small_run_writes_rows_and_goes_on(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / 'out'
    words = ['bench', 'policies', '--plan', str(plan_file(tmp_path)), '--out', str(out)]
    assert main([*words, '--workers', '1', '--only', 'policy=flow,flow 1']) == 0
    rows = json.loads((out / 'summary.json').read_text())['rows']
    assert [row['policy'] for row in rows] == ['flow', 'flow 1']
    assert all(set(row) >= KEYS for row in rows)
    assert [row['steps'] for row in rows] == [10, 1]
    assert rows[0]['throughput_ratio'] == 1.0
    assert rows[1]['throughput_ratio'] > 2.0, 'one step of ten'
    assert rows[1]['first_row_ratio'] < 0.5
    assert 10 < rows[0]['peak_memory_mb'] < 4000
    assert rows[0]['success_difference_ci'] is None
    low, high = rows[1]['success_difference_ci']
    assert low <= 0.0 <= high or rows[1]['success'] != rows[0]['success']
    cells = {file: file.read_bytes() for file in (out / 'cells').iterdir()}
    assert main([*words, '--workers', '1', '--only', 'policy=mlp']) == 0
    assert {file: file.read_bytes() for file in cells} == cells, 'nothing ran twice'
    rows = json.loads((out / 'summary.json').read_text())['rows']
    assert [row['policy'] for row in rows] == ['mlp', 'flow', 'flow 1']
    assert rows[0]['steps'] == 1
    assert rows[1]['latency_ms_p50'] is None, 'not measured in this run'
    assert '| flow 1 | 1 | fixed |' in capsys.readouterr().out


def test_the_shipped_plans_can_be_run() -> None:
    for section in ('short', 'full'):
        plan = policies.read(config_dir() / 'benchmarks' / 'policies.yaml', section)
        plan.check()
        assert len(policies.cells(plan)) == len(plan.tasks) * len(plan.variants) * 2


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'episodes': 0}, 'episodes: 0, must be a whole number from 1'),
        ({'calls': 1.5}, 'calls: 1.5, must be a whole number from 1'),
        ({'tasks': []}, 'tasks: at least one is needed'),
        ({'variants': []}, 'variants: at least one is needed'),
        ({'variants': [{'label': 'a', 'checkpoint': '{policy}'}]}, r'name in which \{task\} may'),
        ({'variants': [{'label': '', 'checkpoint': 'mlp_push'}]}, "label '', must be a name"),
        ({'variants': [PLAN['variants'][0]] * 2}, r"variants: \['mlp', 'mlp'\], each label once"),
        ({'variants': [{'label': 'a'}]}, 'checkpoint'),
        ({'nothing': 1}, 'nothing'),
        ({'entries': [{'label': 'a', 'plugin': 'fixd'}]}, "'fixd'.*Did you mean 'fixed'"),
        ({'tasks': ['psh']}, "'psh'.*Did you mean 'push'"),
    ],
)
def test_a_plan_with_a_wrong_value_is_refused(
    tmp_path: Path, capsys: Any, changes: dict[str, Any], said: str
) -> None:
    words = ['bench', 'policies', '--plan', str(plan_file(tmp_path, **changes))]
    assert main([*words, '--out', str(tmp_path / 'out')]) != 0
    error = capsys.readouterr().err
    assert re.search(said, error), error
    assert not (tmp_path / 'out' / 'summary.json').exists()


def test_filters_refuse_what_the_plan_does_not_have(tmp_path: Path) -> None:
    plan = policies.read(plan_file(tmp_path), 'short')
    assert len(policies.cells(policies.only(plan, {'policy': ['flow 1']}))) == 1
    with pytest.raises(UnknownNameError, match=r"policy 'flow 2'\. Did you mean 'flow"):
        policies.only(plan, {'policy': ['flow 2']})
    with pytest.raises(UnknownNameError, match="filter 'polcy'"):
        policies.only(plan, {'polcy': ['flow']})


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'flow_stps': 2}, "flow_stps.*Did you mean 'flow.flow_steps'"),
        ({'flow_steps': 0}, 'flow_steps'),
        ({'width': 128}, 'width=128: these weights are of another network'),
        ({'network': 'dit'}, 'network=dit: these weights are of another network'),
    ],
)
def test_options_that_do_not_fit_the_weights_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        checkpoint.load('flow_push').varied(options)


def test_eval_takes_options_of_the_policy() -> None:
    entry = runner.Entry('fixed', 'fixed', {})
    settings = runner.Settings('push', 'flow_push', (entry,), 1, policy_options={'flow_steps': 3})
    assert settings.served().config.flow_steps == 3
    plain = runner.Settings('push', 'flow_push', (entry,), 1)
    assert plain.served().config.flow_steps == 10
    assert plain.key() != settings.key(), 'other results'


def test_times_are_of_the_first_rows_and_of_the_whole_answer() -> None:
    now = iter(range(10_000))
    (found,) = speed._measure('mlp_push', [{}], 5, lambda: float(next(now)))
    assert (found.first_p50_s, found.whole_p50_s, found.whole_p99_s) == (1.0, 2.0, 2.0)
    assert math.isclose(found.rows_per_s, 16 / 2.0)
