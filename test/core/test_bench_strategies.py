"""`chunkpilot bench strategies`: what it writes, what it keeps, and what makes it begin anew."""

import argparse
from dataclasses import replace
import json
import math
from pathlib import Path

from chunkpilot_core import spaces
from chunkpilot_core.cli import eval as eval_verb
from chunkpilot_core.cli import main
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval import overlaps, runner, sources
from chunkpilot_core.eval.grid import plan as plans
from chunkpilot_core.eval.grid import rows
from chunkpilot_core.eval.grid.store import Store
from chunkpilot_core.eval.loop import EpisodeResult
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.robot import config_dir
from chunkpilot_core.types import ActionChunk, Id, PolicySpec
import numpy as np
import pytest
import yaml

KEYS = [
    'task',
    'policy',
    'strategy',
    'disturbance',
    'base_h',
    'latency_s',
    'episodes',
    'success',
    'success_ci',
    'success_difference_ci',
    'calls_per_episode',
    'calls_ratio',
    'mean_horizon',
    'peak_jerk',
]
PLAN = """
short:
  tasks: [pick_and_place]
  policies: [mlp]
  disturbances: [none, object_jump]
  latencies_s: [0.02]
  horizons: [8, 16]
  episodes: 1
  choice_episodes: 1
  overlap_episodes: 1
  calibration_episodes: 1
  entries:
  - {label: upcycling+surprise, plugin: upcycling, parts: {surprise: {enabled: true}}}
"""


def a_plan(**changes) -> plans.Plan:
    plan = plans.Plan(
        ('pick_and_place',), ('mlp',), ('none',), (0.02,), (4, 8), 3, 2, 1, (), **changes
    )
    plan.check()
    return plan


def an_episode(seed: int, success: bool = True, calls: int = 10, **changes) -> EpisodeResult:
    numbers = dict.fromkeys(EpisodeResult.__dataclass_fields__, 0)
    numbers |= {
        'reactions': {'PASS': 3},
        'notes': ('a note',),
        'interrupts': (),
        'touched': (),
        'mean_horizon': 8.0,
    }
    numbers |= {'seed': seed, 'success': success, 'policy_calls': calls, 'ticks': 100}
    return EpisodeResult(**{**numbers, **changes})


def test_a_small_run_writes_rows_and_goes_on(tmp_path: Path, capsys) -> None:
    file = tmp_path / 'plan.yaml'
    file.write_text(PLAN)
    words = ['bench', 'strategies', '--plan', str(file), '--workers', '1']
    words += ['--out', str(tmp_path / 'out')]
    assert main([*words, '--only', 'disturbance=none']) == 0
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    assert {row['disturbance'] for row in summary['rows']} == {'none'}
    cells = {path: path.read_bytes() for path in (tmp_path / 'out' / 'cells').iterdir()}
    assert main(words) == 0
    assert all(path.read_bytes() == content for path, content in cells.items())
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    for row in summary['rows']:
        assert list(row) == KEYS
        assert row['episodes'] == 1
        assert row['base_h'] == summary['choices'][0]['base_h']
        low, high = row['success_ci']
        assert 0.0 <= low <= row['success'] <= high <= 1.0
    base = summary['choices'][0]['base_h']
    others = [f'fixed@{8 if base == 16 else 16}', 'upcycling+surprise']
    names = [(row['disturbance'], row['strategy']) for row in summary['rows']]
    assert names == [
        (kind, name) for kind in ('none', 'object_jump') for name in ('fixed', *others)
    ]
    reference = summary['rows'][0]
    assert (reference['calls_ratio'], reference['success_difference_ci']) == (1.0, [0.0, 0.0])
    assert summary['details'][2]['parts'] == {'surprise': {'enabled': True}}
    assert summary['details'][3]['disturbances'] > 0.0
    assert summary['overlaps'][0]['rows'] > 0
    page = (tmp_path / 'out' / 'summary.md').read_text()
    assert '## pick_and_place, mlp, disturbance object_jump, 20 ms' in page
    assert page in capsys.readouterr().out
    assert (tmp_path / 'out' / 'pareto-object_jump-20ms.png').stat().st_size > 1000


def test_more_episodes_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    plan = a_plan()
    (group,) = plans.groups(plan)
    one = plans.cell(plan, group, plans.fixed(8))
    Store(tmp_path).add(one, an_episode(0), an_episode(2))
    assert Store(tmp_path).missing(one) == [1]
    assert Store(tmp_path).results(one) is None
    (file,) = tmp_path.iterdir()
    with open(file, 'a') as stream:
        stream.write('{"seed": 1, "success": tr')  # killed while writing
    store = Store(tmp_path)
    assert store.missing(one) == [1]
    store.add(one, an_episode(1))
    results = Store(tmp_path).results(one)
    assert results == [an_episode(seed) for seed in range(3)]
    more = plans.cell(replace(plan, episodes=5), group, plans.fixed(8))
    assert Store(tmp_path).missing(more) == [3, 4]
    other = plans.cell(plan, group, plans.fixed(4))
    assert Store(tmp_path).missing(other) == [0, 1, 2]


def test_a_row_is_compared_with_the_reference_on_the_same_seeds(tmp_path: Path) -> None:
    plan = a_plan()
    (group,) = plans.groups(plan)
    store = Store(tmp_path)
    assert rows.summary(plan, store)['rows'] == []
    choice = plans.choice_cells(plan, group)
    first = plans.CHOICE_SEED
    store.add(choice[4], an_episode(first), an_episode(first + 1))
    store.add(choice[8], an_episode(first, False), an_episode(first + 1))
    assert rows.chosen(plan, store, group) == 4
    reference, other = plans.cells(plan, group, 4)
    assert (reference.entry.label, other.entry.label) == ('fixed', 'fixed@8')
    store.add(reference, *[an_episode(seed, calls=12) for seed in range(3)])
    store.add(other, *[an_episode(seed, success=seed > 0, calls=4) for seed in range(3)])
    found = rows.summary(plan, store)
    row, detail = found['rows'][1], found['details'][1]
    assert (row['strategy'], row['base_h'], row['calls_ratio']) == ('fixed@8', 4, 3.0)
    assert row['success'] == pytest.approx(2 / 3)
    assert row['success_difference_ci'][0] < detail['success_difference'] < 0.0
    assert detail['success_difference'] == pytest.approx(-1 / 3)


def test_the_longest_horizon_within_a_point_of_the_best_is_the_reference() -> None:
    assert plans.choose({1: 0.95, 4: 0.99, 8: 0.98, 16: 0.97}) == 8
    assert plans.choose({1: 0.5, 4: 0.5}) == 4
    assert plans.choose({1: 0.9, 4: 0.8}) == 1


def test_filters_keep_the_plan_and_refuse_what_it_does_not_have() -> None:
    plan = plans.read(config_dir() / 'benchmarks' / 'strategies.yaml', 'full')
    plan.check()
    part = plans.only(plan, {'task': ['push'], 'strategy': ['upcycling', 'fixed@24']})
    assert part.tasks == ('push',)
    assert [entry.label for entry in part.entries] == ['upcycling']
    assert (part.curve, part.horizons) == ((24,), plan.horizons)
    assert part.policies == plan.policies
    with pytest.raises(UnknownNameError, match='push_moving'):
        plans.only(plan, {'task': ['push_mowing']})
    with pytest.raises(UnknownNameError, match='disturbance'):
        plans.only(plan, {'disturbanse': ['none']})
    with pytest.raises(UnknownNameError, match='upcycling'):
        plans.only(plan, {'strategy': ['upcyclink']})
    for section in ('short', 'all', 'disturbed'):
        plans.read(config_dir() / 'benchmarks' / 'strategies.yaml', section).check()
    plan = plans.read(config_dir() / 'benchmarks' / 'strategies.yaml', 'disturbed')
    part = plans.only(plan, {'strategy': ['fixed@1']})  # a row, though never the reference
    assert (part.curve, part.entries) == ((1,), ())


def test_a_wrong_plan_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / 'plan.yaml'
    file.write_text(PLAN.replace('horizons', 'horisons'))
    with pytest.raises(ConfigError, match='horisons'):
        plans.read(file, 'short')
    with pytest.raises(ConfigError, match='full'):
        plans.read(file, 'full')
    file.write_text(PLAN.replace('label: upcycling+surprise', 'label: fixed'))
    with pytest.raises(ConfigError, match="'fixed'"):
        plans.read(file, 'short')
    file.write_text(PLAN.replace('{enabled: true}', '{enabeld: true}'))
    with pytest.raises(UnknownNameError, match='enabled'):
        plans.read(file, 'short').check()
    entry = runner.Entry('a', 'fixed', {}, {'world': {'action_gain': 2.0}})
    with pytest.raises(ConfigError, match='world'):
        runner.Settings('push', 'mlp_push', (entry,), 1).check()


def test_only_what_an_episode_runs_decides_whether_results_still_count() -> None:
    fixed = sources.closure(['chunkpilot_core.eval.loop', 'chunkpilot_core.execution.fixed'])
    for module in ('sim.world', 'execution.runtime.queue', 'execution.base', 'kinematics'):
        assert f'chunkpilot_core.{module}' in fixed
    for package in ('cli', 'bags', 'launching', 'runs', 'eval.grid', 'execution.upcycling'):
        assert not any(name.startswith(f'chunkpilot_core.{package}') for name in fixed)
    one = sources.sha256(('execution.fixed', 'tasks.push'))
    assert one == sources.sha256(('execution.fixed', 'tasks.push'))
    assert one != sources.sha256(('execution.upcycling', 'tasks.push'))
    assert one != sources.sha256(('execution.fixed', 'tasks.reach'))


def test_words_about_the_program_do_not_change_it(tmp_path: Path, monkeypatch) -> None:
    def digest(text: str) -> str:
        (tmp_path / 'some.py').write_text(text)
        sources._tree.cache_clear()
        sources._digest.cache_clear()
        return sources._digest('chunkpilot_core.some')

    monkeypatch.setattr(sources, 'ROOT', tmp_path)
    code = 'def f(x):\n    """Say."""\n    return x + 1\n'
    assert digest(code) == digest(f'# why\n{code}'.replace('Say', 'Tell').replace('x + 1', 'x+1'))
    assert digest(code) != digest(code.replace('1', '2'))
    sources._tree.cache_clear()
    sources._digest.cache_clear()


def test_discarded_rows_are_compared_with_those_of_the_same_time() -> None:
    spec = PolicySpec('any', 'any', 1, spaces.ee_delta_space(), 8, 0.04, max_row_age_s=1.0)
    probe = overlaps.Overlaps(overlaps.Overlaps.Config(horizon=4))
    probe.configure(spec)
    path = np.zeros((16, 4), np.float32)
    path[:, 0] = 0.1 * np.arange(16)
    state = ExecutionState(0, np.zeros(4, np.float32), 0, 0.05, 3.0)
    for shift in (0, 4):  # the same motion, seen 4 rows later
        chunk = ActionChunk(
            Id(1, shift + 1),
            Id(1, shift + 1),
            1,
            't',
            Id(1, 1),
            0,
            shift * 40_000_000,
            0.04,
            path[shift : shift + 8],
            spec.space.hash,
            'any',
            1,
        )
        assert probe.horizon(chunk, state).chosen == 4
    assert len(probe.pairs) == 4
    signals, distances = zip(*probe.pairs, strict=True)
    assert np.allclose(distances, 0.0, atol=1e-6)
    assert np.allclose(np.diff(signals), signals[0])  # the speed changes alike from row to row


def test_rank_correlation_is_spearmans() -> None:
    first = [1.0, 2.0, 2.0, 3.0, 10.0, 7.0]
    second = [2.0, 1.0, 4.0, 4.0, 100.0, 5.0]
    stats = pytest.importorskip('scipy.stats')
    expected = stats.spearmanr(first, second).statistic
    assert overlaps.rank_correlation(first, second) == pytest.approx(expected)
    assert overlaps.rank_correlation(first, [x**3 for x in first]) == pytest.approx(1.0)
    assert math.isnan(overlaps.rank_correlation(first, [1.0] * 6))


def test_eval_takes_options_of_one_row_alone() -> None:
    parser = argparse.ArgumentParser()
    eval_verb.add_arguments(parser)
    words = ['--strategies', 'fixed,upcycling@4,upcycling@4+late', '--set']
    words += ['upcycling@4+late.executor.starvation=late', 'upcycling.ratio=2.0']
    settings = eval_verb._settings(parser.parse_args([*words, 'disturbance.kind=arm_push']))
    settings.check()
    fixed, plain, late = settings.entries
    assert (plain.options, plain.parts) == ({'horizon': 4, 'ratio': 2.0}, {})
    assert (late.options, late.parts) == (plain.options, {'executor': {'starvation': 'late'}})
    assert settings.built_parts(late)['executor'].starvation == 'late'
    assert settings.built_parts(late)['disturbance'].kind == 'arm_push'
    assert 'executor' not in settings.built_parts(fixed)
    words[-2] = 'upcyclink.executor.starvation=late'
    with pytest.raises(UnknownNameError, match='upcycling'):
        eval_verb._settings(parser.parse_args(words))


@pytest.mark.parametrize(
    ('line', 'changes'),
    [
        (b'\xff\xfe{"seed": 1', {}),
        (b'[' * 100_000, {}),
        (b'5', {}),
        (b'', {'success': 'maybe'}),
        (b'', {'policy_calls': -3}),
        (b'', {'ticks': 1.5}),
        (b'', {'peak_jerk': None}),
        (b'', {'interrupts': [3]}),
    ],
)
def test_a_damaged_or_edited_episode_is_run_again(
    tmp_path: Path, line: bytes, changes: dict[str, object]
) -> None:
    plan = a_plan()
    (group,) = plans.groups(plan)
    one = plans.cell(plan, group, plans.fixed(8))
    Store(tmp_path).add(one, an_episode(0), an_episode(2))
    (file,) = tmp_path.iterdir()
    edited = json.dumps({**json.loads(file.read_text().splitlines()[0]), 'seed': 1, **changes})
    with open(file, 'ab') as stream:
        stream.write((line or edited.encode()) + b'\n')
    assert Store(tmp_path).missing(one) == [1]


@pytest.mark.parametrize('content', ['', '[[1', '[[1, "a"]]', '[1]', '[[NaN, 1]]', '{"a": 1}'])
def test_damaged_overlaps_are_measured_again(tmp_path: Path, content: str) -> None:
    plan = a_plan()
    (group,) = plans.groups(plan)
    one = plans.cell(plan, group, plans.fixed(8))
    Store(tmp_path).keep_pairs(one, [(0.1, 0.2)])
    assert Store(tmp_path).pairs(one) == [(0.1, 0.2)]
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert Store(tmp_path).pairs(one) is None


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'tasks': 'push'}, "tasks: 'push', must be a list of names"),
        ({'policies': [None]}, 'policies: .* must be a list of names'),
        ({'latencies_s': ['0.1']}, 'latencies_s: .* numbers of seconds'),
        ({'latencies_s': [math.nan]}, 'latency nan s'),
        ({'horizons': [0]}, 'horizons: .* whole numbers from 1'),
        ({'horizons': [True]}, 'horizons: .* whole numbers from 1'),
        ({'curve': [-1]}, 'curve: .* whole numbers from 1'),
        ({'episodes': 2.5}, 'episodes: 2.5, must be a whole number from 1'),
        ({'choice_episodes': None}, 'choice_episodes: None, must be a whole number'),
        ({'seed': -1}, 'seed: -1, must be a whole number from 0'),
        ({'parts': {'a': {}}}, "parts: unknown part 'a'"),
        ({'parts': {'surprise': 5}}, 'parts: .* must be options by name'),
        ({'parts': {'surprise': {'zz': 1}}}, 'surprise.zz'),
        ({'task_options': [1]}, 'task_options: .* must be options by name'),
        ({'checkpoint': '{x}_{task}'}, 'checkpoint: .* {policy} and {task} may stand'),
        ({'checkpoint': '{policy'}, 'checkpoint: '),
        ({'entries': [{'label': ['a'], 'plugin': 'fixed'}]}, r"label \['a'\], must be a name"),
        ({'entries': [{'label': 'a', 'plugin': 5}]}, 'plugin 5, must be a name'),
        ({'entries': [{'label': 'a', 'plugin': 'vote', 'options': 5}]}, 'must be options'),
        ({'entries': [{'label': 'a', 'plugin': 'vote', 'parts': {'guard': 5}}]}, 'parts: '),
    ],
)
def test_a_plan_with_a_value_of_the_wrong_kind_is_refused_by_its_name(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    file = tmp_path / 'plan.yaml'
    file.write_text(yaml.safe_dump({'short': {**yaml.safe_load(PLAN)['short'], **changes}}))
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        plans.read(file, 'short').check()


def test_a_plan_that_never_ends_nesting_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / 'plan.yaml'
    file.write_text('[' * 20_000)
    with pytest.raises(ConfigError, match='nested too deeply'):
        plans.read(file, 'short')
