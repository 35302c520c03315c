"""The command chunkpilot: verbs, errors, exit codes."""

import subprocess
import sys

from chunkpilot_core import cli
from chunkpilot_core.errors import ConfigError
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


def test_every_verb_has_help():
    for verb in cli.verbs():
        assert cli._help(verb), f'{verb} has no HELP'
