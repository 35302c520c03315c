"""The closed loop with the shipped policy: it works, and it is the same every time."""

import copy
from dataclasses import replace
import json
import os
import time

from chunkpilot_core.cli import main
from chunkpilot_core.errors import ChunkpilotError, ConfigError
from chunkpilot_core.eval import runner, summary
from chunkpilot_core.eval.forked import forked
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import Frame, Loop
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.sim.disturbance import DisturbanceConfig
import cv2
import pytest

POLICY = 'mlp_pick_and_place'
FIXED = runner.Entry('fixed', 'fixed', {'horizon': 8})
LONGER = runner.Entry('upcycling', 'upcycling', {'horizon': 8, 'ratio': 1.5})


def _settings(*entries: runner.Entry, episodes: int = 2, **more) -> runner.Settings:
    settings = runner.Settings('pick_and_place', POLICY, entries or (FIXED,), episodes)
    return replace(settings, calibration_episodes=1, **more)


@pytest.fixture(name='loop', scope='module')
def _loop():
    loop = _settings().loop()
    yield loop
    loop.close()


def test_the_shipped_policy_solves_its_task_without_starving(loop) -> None:
    results = [loop.run(seed, FIXED.build()) for seed in range(2)]
    assert all(result.success for result in results)
    for result in results:
        assert result.starved_ticks == 0
        assert result.chunks_rejected == result.unanswered == 0
        assert set(result.reactions) <= {'PASS', 'CLAMP'}
        assert result.executed_rows >= 0.9 * result.duration_s / 0.04 - 3
        assert 0.0 < result.rms_jerk < result.peak_jerk
        assert 0.05 <= result.first_action_s < 0.15


def test_an_episode_depends_on_its_seed_only(loop) -> None:
    alone = loop.run(5, FIXED.build())
    loop.run(6, FIXED.build())
    assert loop.run(5, FIXED.build()) == alone


def test_what_was_sent_can_be_watched(loop) -> None:
    frames: list[Frame] = []
    result = loop.run(1, FIXED.build(), frames.append)
    rows = [rows for frame in frames for rows in frame.executed]
    stamps = [stamp for batch in rows for stamp in batch.stamps_ns]
    assert stamps == sorted(stamps)
    assert sum(len(batch.rows) for batch in rows) >= 0.8 * result.executed_rows
    assert {batch.episode_id for batch in rows} == {'seed-1'}
    assert frames[-1].observation is not None


@pytest.mark.parametrize(('latency_s', 'horizon'), [(0.15, 8), (0.3, 16)])
def test_no_starvation_at_fixed_latency_when_the_horizon_is_twice_the_delay(
    loop, latency_s: float, horizon: int
) -> None:
    settings = _settings(latency_s=latency_s)
    slow = Loop('pick_and_place', loop.policy, settings.latency(), None, settings.built_parts())
    result = slow.run(0, Fixed(Fixed.Config(horizon=horizon)))
    slow.close()
    assert result.starved_ticks == 0
    assert result.first_action_s >= latency_s


def test_more_latency_than_rows_starves_and_is_counted(loop) -> None:
    slow = Loop('pick_and_place', loop.policy, LatencyModel(0.4))
    result = slow.run(0, Fixed(Fixed.Config(horizon=4)))
    slow.close()
    assert result.starved_ticks > 0.3 * result.ticks


def test_upcycling_calls_less_and_begins_each_episode_alike(loop) -> None:
    prepared = loop.calibrate(LONGER.build(), range(10**7, 10**7 + 1))
    results = [loop.run(seed, loop.calibrate(prepared, range(0))) for seed in (0, 0)]
    assert results[0] == results[1]
    assert results[0].policy_calls < loop.run(0, FIXED.build()).policy_calls
    assert results[0].mean_horizon > 8


@pytest.mark.slow
def test_same_results_in_processes_and_after_an_interruption(tmp_path) -> None:
    settings = _settings(FIXED, LONGER)
    partial = tmp_path / 'partial'
    whole = runner.run(settings, workers=1)
    progress = runner.Progress(partial, settings.key())
    progress.add('fixed', whole['fixed'][1])
    with open(partial, 'a') as file:
        file.write('{"strategy": "upcyc')  # killed while writing
    assert runner.run(settings, workers=2, partial=partial) == whole
    assert not partial.exists()


def test_an_interrupted_run_takes_up_what_was_finished(loop, tmp_path) -> None:
    settings = _settings(episodes=1)
    partial = tmp_path / 'partial'
    finished = replace(loop.run(0, FIXED.build()), notes=('from the file',))
    runner.Progress(partial, settings.key()).add('fixed', finished)
    with open(partial, 'a') as file:
        file.write('{"strategy": "fix')  # killed while writing
    assert runner.run(settings, partial=partial) == {'fixed': [finished]}
    assert not partial.exists()


def test_progress_of_other_settings_is_not_taken(tmp_path) -> None:
    partial = tmp_path / 'partial'
    runner.Progress(partial, 'another program').results.clear()
    assert runner.Progress(partial, _settings().key()).results == {}
    assert _settings().key() != _settings(latency_s=0.1).key()


@pytest.mark.parametrize('garbage', ['garbage', '[]', '{"strategy": "fixed"}', '\x00'])
def test_damaged_progress_is_said_and_what_is_before_it_kept(
    loop, tmp_path, capsys, garbage: str
) -> None:
    partial, key = tmp_path / 'partial', _settings().key()
    partial.write_text(f'{garbage}\n')
    assert runner.Progress(partial, key).results == {}
    assert 'partial: line 1 is damaged' in capsys.readouterr().err
    result = loop.run(0, FIXED.build())
    runner.Progress(partial, key).add('fixed', result)
    with open(partial, 'a') as file:
        file.write(f'{garbage}\n')
    assert runner.Progress(partial, key).results == {('fixed', 0): result}
    assert 'line 3 is damaged, 1 episodes before it are kept' in capsys.readouterr().err
    assert len(partial.read_text().splitlines()) == 2


def test_command_writes_the_same_file_twice(tmp_path, capsys) -> None:
    files = [tmp_path / 'one.json', tmp_path / 'two.json']
    for file in files:
        words = ['eval', '--policy', 'mlp', '--strategies', 'fixed,fixed@16', '--episodes', '2']
        assert main([*words, '--workers', '1', '--json', str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert 'fixed@16' in capsys.readouterr().out
    document = json.loads(files[0].read_text())
    first, second = document['rows']
    assert first['success']['low'] < first['success']['value'] <= 1.0
    assert second['calls_ratio']['value'] > 1.2
    assert 'success_difference' not in first
    assert [result['seed'] for result in second['results']] == [0, 1]
    assert (
        document['policy']['weights_sha256']
        == (checkpoint.read_manifest(POLICY)['weights_sha256'])
    )


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--strategies', 'fixed,upcyling'], 'upcycling'),
        (['--strategies', 'fixed@x'], 'number of rows'),
        (['--strategies', 'fixed,fixed'], 'each once'),
        (['--policy', 'mlp_pick_and_plase'], 'mlp_pick_and_place'),
        (['--task', 'pick'], 'pick_and_place'),
        (['--episodes', '0'], '--episodes 0: allowed 1 to'),
        (['--workers', '0'], '--workers 0: allowed 1 to'),
        (['--seed', '-1'], '--seed -1: allowed 0 to'),
        (['--latency', 'nan'], '--latency nan: allowed 0.0 to'),
        (['--jitter', '-0.1'], '--jitter -0.1: allowed 0.0 to'),
        (['--json', '/tmp'], '--json /tmp: is a folder'),
        (['--json', '/dev/null/x.json'], '--json /dev/null/x.json: can not be written'),
        (['--set', 'upcycling.ratoi=2'], 'ratio'),
        (['--set', 'guards.period_s=0.01'], 'guard'),
        (['--set', 'ratio=2'], 'PART.NAME=VALUE'),
        (['--set', 'world.action_yaw_deg=500'], 'maximum'),
        (['--horizon', '17'], 'longer than the chunks'),
        (['--latency', '-1'], 'latency'),
        (['--trace', '/no/such'], '/no/such'),
    ],
)
def test_wrong_calls_say_what_is_allowed(words: list[str], message: str, capsys) -> None:
    assert main(['eval', '--workers', '1', *words]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert 'Traceback' not in error


def test_json_has_no_nan() -> None:
    assert summary.plain({'a': float('nan'), 'b': [float('inf'), 1.0]}) == {
        'a': None,
        'b': [None, 1.0],
    }


def test_strategies_that_share_what_comes_before_the_start_end_as_alone(loop) -> None:
    prepared = loop.calibrate(LONGER.build(), range(10**7, 10**7 + 1))
    slow = Executor.Config(starvation='late', margin=1.0)
    runs = [(FIXED.build(), {}), (prepared, {}), (FIXED.build(), {'executor': slow})]
    surprised = {'surprise': Surprise.Config(enabled=True)}
    jump = {'disturbance': DisturbanceConfig(kind='object_jump')}
    runs.append((prepared, surprised))
    together = loop.run_each(3, [(strategy, {**parts, **jump}) for strategy, parts in runs])
    for (strategy, parts), result in zip(runs, together, strict=True):
        assert loop.run(3, copy.deepcopy(strategy), None, {**parts, **jump}) == result
    assert together[0] != together[1] != together[3]
    with pytest.raises(ConfigError, match='begin differently'):
        loop.run_each(3, [(FIXED.build(), {}), (FIXED.build(), jump)])


def test_opencv_has_no_threads_that_a_copy_of_the_process_would_wait_for(loop) -> None:
    loop.run(0, FIXED.build())
    assert cv2.getNumThreads() == 1


def test_what_goes_wrong_in_a_copy_of_the_process_is_told() -> None:
    seen = []
    assert forked(lambda: seen.append(1) or 'done') == 'done'
    assert not seen, 'the copy has its own'

    def fail() -> None:
        raise ConfigError('so it is')

    with pytest.raises(ConfigError, match='so it is'):
        forked(fail)
    with pytest.raises(ChunkpilotError, match='died'):
        forked(lambda: os._exit(3))
    with pytest.raises(ChunkpilotError, match='longer than'):
        forked(lambda: time.sleep(60.0), timeout_s=0.1)
