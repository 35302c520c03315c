"""The command chunkpilot: verbs, errors, exit codes."""

from importlib import import_module
from pathlib import Path
import subprocess
import sys

from chunkpilot_core import cli
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.files import write_json
from chunkpilot_core.runs.episodes import Finish
from chunkpilot_core.runs.summary import Tally
from chunkpilot_core.types import EpisodeOutcome, ExecutionStats, Task
import pytest


def test_overview_lists_verbs_with_their_help(capsys):
    assert cli.main(['--help']) == 0
    out = capsys.readouterr().out
    assert 'up ' in out
    assert 'start the nodes of a launch file' in out
    assert 'demo ' in out


def test_without_a_verb_the_overview_is_shown_as_an_error(capsys):
    assert cli.main([]) == 2
    assert 'usage' in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(['--version']) == 0
    assert capsys.readouterr().out.startswith('chunkpilot ')


def test_unknown_verb_names_the_nearest(capsys):
    assert cli.main(['upp']) == 2
    assert "Did you mean 'up'?" in capsys.readouterr().err


def test_errors_are_one_line_and_exit_code_1(capsys):
    assert cli.main(['up', 'no_such.launch.yaml']) == 1
    err = capsys.readouterr().err
    assert err.count('\n') == 1
    assert 'no_such.launch.yaml' in err
    assert 'Traceback' not in err


@pytest.mark.parametrize(
    ('raised', 'code'), [(KeyboardInterrupt(), 130), (ConfigError('too much'), 1)]
)
def test_exceptions_become_exit_codes(monkeypatch, raised, code):
    from chunkpilot_core.cli import up

    def fail(_args):
        raise raised

    monkeypatch.setattr(up, 'main', fail)
    assert cli.main(['up', 'demo']) == code


def test_wrong_options_are_argparse_errors(capsys):
    assert cli.main(['up', '--no-such-option']) == 2
    assert cli.main(['up', 'demo', 'task=push']) == 1
    assert 'NAME:=VALUE' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--episodes', '0'], 'episodes is 0'),
        (['--episodes', '-3'], 'episodes is -3'),
        (['--timeout', '-5'], 'timeout is -5 s'),
        (['--timeout', 'nan'], 'timeout is nan s'),
        (['--seed', '-1'], 'seed is -1'),
        (['--out', '/proc/nowhere'], '--out /proc/nowhere'),
        (['--out', __file__], 'must be a folder to write to'),
    ],
)
def test_demo_refuses_before_the_graph_starts(monkeypatch, tmp_path, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('chunkpilot_core.cli.demo.Supervisor', None)
    assert cli.main(['demo', *words]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count('\n') == 1


@pytest.mark.parametrize(
    ('words', 'outcomes', 'code', 'message'),
    [
        ((), ('SUCCESS', 'FAILURE'), 0, ''),
        ((), ('SUCCESS', 'ABORTED'), 0, ''),
        (('--strict',), ('SUCCESS', 'FAILURE'), 0, ''),
        (('--strict',), ('SUCCESS', 'ABORTED'), 1, '1 of 2 episodes were aborted, see above'),
    ],
)
def test_a_demo_with_an_aborted_episode_is_an_error_only_where_that_is_asked_for(
    monkeypatch, tmp_path, capsys, words, outcomes, code, message
):
    """An unsolved task is a figure; of an aborted episode the reason is told in any case."""

    class Graph:
        """Ends at once with what the task node would have summed up."""

        interrupted = False

        def __init__(self, *_):
            self.restarts = {}

        def run(self):
            ends = [
                Finish(f'run-{i}', Task('', 'push'), i, EpisodeOutcome[name], 'it holds', 1.0)
                for i, name in enumerate(outcomes)
            ]
            stats = ExecutionStats(0, 1, 'fixed', 0, episode_id='run-0', executed_rows=30)
            tally = Tally(finished=ends, stats={'run-0': stats})
            summary = tally.summary(task='push', policy='mlp', strategy='fixed')
            write_json(tmp_path / 'run.json', summary)
            return 0

    monkeypatch.setattr('chunkpilot_core.cli.demo.Supervisor', Graph)
    assert cli.main(['demo', '--out', str(tmp_path), *words]) == code
    told = capsys.readouterr()
    assert message in told.err
    assert bool(told.err) == bool(code)
    assert ('seed 1 aborted' in told.out) == ('it holds' in told.out) == ('ABORTED' in outcomes)


def test_show_args_and_dry_run(capsys):
    assert cli.main(['up', 'demo', '--show-args']) == 0
    out = capsys.readouterr().out
    assert 'strategy: ' in out
    assert "default: 'upcycling'" in out


def test_overview_imports_nothing_heavy():
    code = (
        'import sys\nfrom chunkpilot_core import cli\ncli.main(["--help"])\n'
        'heavy = {"torch", "pybullet", "numpy", "cv2", "rclpy"}\n'
        'print(sorted(heavy & set(sys.modules)))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == '[]'


def test_every_verb_and_sub_verb_has_help(capsys):
    for verb in cli.verbs():
        assert cli._help(verb), f'{verb} has no HELP'
        module = import_module(f'chunkpilot_core.cli.{verb.replace("-", "_")}')
        for words in [[verb], *([verb, sub] for sub in getattr(module, 'SUB_VERBS', ()))]:
            assert cli.main([*words, '--help']) == 0, words
            told = capsys.readouterr().out
            assert told.startswith(('usage: chunkpilot', f'chunkpilot {verb}')), told
            assert 'Traceback' not in told


def test_the_demo_refuses_a_policy_that_is_not_there_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(['demo', '--out', str(tmp_path / 'demo'), 'policy:=mlq']) == 1
    error = capsys.readouterr().err
    assert "unknown checkpoint 'mlq'" in error
    assert 'mlp_pick_and_place' in error


def test_sub_verbs_are_listed_and_misspelt_ones_are_told(capsys):
    assert cli.main(['bag']) == 2
    overview = capsys.readouterr().out
    for name in ('info', 'play', 'check', 'repair', 'cut', 'merge'):
        assert f'  {name} ' in overview
    assert cli.main(['bag', '--help']) == 0
    assert cli.main(['bag', 'repiar', 'x']) == 2
    assert "Did you mean 'repair'" in capsys.readouterr().err
    assert cli.main(['bag', 'cut', '--help']) == 0
    assert 'usage: chunkpilot bag cut' in capsys.readouterr().out
