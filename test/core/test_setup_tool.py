"""tools/setup.py, what ``make setup`` runs: what it says while something takes long, and fails."""

from importlib import util
from pathlib import Path
import sys
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / 'tools/setup.py'


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Give the tool with a log of its own, in more of a hurry than it is."""
    spec = util.spec_from_file_location('setup_tool', FILE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, 'LOG', tmp_path / 'env/setup.log')
    monkeypatch.setattr(module, 'SIGN_OF_LIFE_S', 0.3)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, '-u', '-c', f'import time\n{code}']


def test_who_waits_in_a_pipe_sees_what_is_being_installed(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        'time.sleep(1.0)\n'
        'print("Collecting numpy==1.26.4 (from -r requirements/lock.txt (line 3))")\n'
        'time.sleep(1.0)\n'
        'print("Installing collected packages: " + "many, " * 100)\n'
        'time.sleep(1.0)'
    )
    setup.run(python(code), 'pip install')
    told = [line.partition(' s: ')[2] for line in capsys.readouterr().out.splitlines()]
    assert told[0] == 'no output yet'
    assert 'Collecting numpy==1.26.4' in told
    assert told[-1].startswith('Installing collected packages: many, ')
    assert max(map(len, told)) <= setup.WIDTH
    assert len(told) >= 3


def test_what_is_done_soon_or_before_is_not_told(
    setup: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, 'SIGN_OF_LIFE_S', 60.0)
    setup.run(python('print("one")'), 'the first')
    assert capsys.readouterr().out == ''
    monkeypatch.setattr(setup, 'SIGN_OF_LIFE_S', 0.3)
    setup.run(python('time.sleep(1.0)'), 'the second')
    assert {line[-13:] for line in capsys.readouterr().out.splitlines()} == {'no output yet'}


def test_a_failure_is_one_reason_and_an_interrupt_leaves_nothing_running(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(setup.SetupError, match='pip install failed: ERROR: no such package'):
        setup.run(python('print("ERROR: no such package")\nraise SystemExit(1)'), 'pip install')

    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, 'say', interrupt)
    late = tmp_path / 'late'
    with pytest.raises(KeyboardInterrupt):
        setup.run(python(f'time.sleep(1.5)\nopen({str(late)!r}, "w")'), 'pip install')
    setup.time.sleep(2.0)
    assert not late.exists()
