"""``chunkpilot calibrate upcycling``: refusals at once, and the whole way with a real policy."""

from pathlib import Path

from chunkpilot_core import cli
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.robot import config_dir
import pytest

CHECKPOINT = config_dir() / 'policies' / 'mlp_pick_and_place'


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--policy', 'mlp_pick_and_plaice'], 'mlp_pick_and_pla'),
        (['--policy', str(CHECKPOINT), '--horizon', '99'], 'base horizon 99 is longer'),
        (['--policy', str(CHECKPOINT), '--horizon', '0'], 'horizon: 0 is below the minimum'),
        (['--policy', str(CHECKPOINT), '--episodes', '0'], '--episodes 0: allowed 1 to'),
        (['--policy', str(CHECKPOINT), '--episodes', '-3'], '--episodes -3: allowed 1 to'),
        (['--policy', str(CHECKPOINT), '--latency', 'nan'], '--latency nan: allowed 0.0 to'),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    pytest.importorskip('torch')
    out = tmp_path / 'c.json'
    assert cli.main(['calibrate', 'upcycling', *words, '--out', str(out)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count('\n') == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ('out', 'message'), [('/tmp', 'is a folder'), ('/dev/null/c.json', 'can not be written')]
)
def test_a_place_that_can_not_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], out: str, message: str
) -> None:
    pytest.importorskip('torch')
    words = ['--policy', str(CHECKPOINT), '--out', out]
    assert cli.main(['calibrate', 'upcycling', *words]) == 1
    assert f'--out {out}: {message}' in capsys.readouterr().err


@pytest.mark.slow
def test_a_calibration_of_a_real_policy_serves_the_strategy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('pybullet')
    checkpoint = pytest.importorskip('chunkpilot_core.policies.runtime.checkpoint')
    out = tmp_path / 'folder' / 'c.json'
    words = ['--policy', str(CHECKPOINT), '--episodes', '2', '--out', str(out)]
    assert cli.main(['calibrate', 'upcycling', *words]) == 0
    assert 'ratio 1.5' in capsys.readouterr().out
    strategy = Upcycling(Upcycling.Config(8, ratio=1.5, calibration=str(out)))
    strategy.configure(checkpoint.load(CHECKPOINT).spec)
