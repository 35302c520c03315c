"""``chunkpilot calibrate upcycling``: refusals at once, and the whole way with a real policy."""

import errno
import json
import os
from pathlib import Path

from chunkpilot_core import cli, files
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.runtime import calibration, surprise_limits
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
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


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--alpha', '0'], '--alpha 0.0: allowed 1e-06 to 0.5'),
        (['--alpha', 'nan'], '--alpha nan: allowed'),
        (['--bags', '/tmp'], 'calibrated in simulation only'),
        (['--out', '/dev/null/c.json'], 'can not be written'),
        (['--episodes', '0'], '--episodes 0: allowed 1 to'),
    ],
)
def test_limits_of_surprise_refuse_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    pytest.importorskip('torch')
    out = tmp_path / 'c.json'
    command = ['calibrate', 'surprise', '--policy', str(CHECKPOINT), '--out', str(out)]
    assert cli.main([*command, *words]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_limits_of_a_real_policy_serve_the_surprise_interrupt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('pybullet')
    checkpoint = pytest.importorskip('chunkpilot_core.policies.runtime.checkpoint')
    out = tmp_path / 'limits.json'
    words = ['--policy', str(CHECKPOINT), '--episodes', '10', '--out', str(out)]
    assert cli.main(['calibrate', 'surprise', *words]) == 0
    text = capsys.readouterr().out
    assert 'of 10 solved episodes of 10' in text
    assert 'use it with surprise.calibration:=' in text
    monitor = Surprise(SurpriseConfig(enabled=True, calibration=str(out)))
    monitor.configure(checkpoint.load(CHECKPOINT).spec)
    assert 0.0 < monitor.limits['object'] < 0.02


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'chunks': 0}, 'chunks is 0, must be a whole number from 1 on'),
        ({'chunks': '5'}, "chunks is '5', must be"),
        ({'base': 4.0}, 'base is 4.0, must be'),
        ({'signals': []}, 'signals of shape'),
        ({'signals': [0.1] * 7}, r'signals of shape \(7,\), expected those of 5 chunks'),
        ({'signals': [3.0, 1.0] * 10}, 'signals must ascend'),
        ({'signals': [-1.0] * 20}, 'finite and 0 or more'),
        ({'signals': [float('nan')] * 20}, 'finite and 0 or more'),
        ({'signals': [10**400] * 20}, 'too large'),
        ({'signals': 'abc'}, 'could not convert'),
        ({'policy': None, 'extra': 1}, 'extra'),
    ],
)
def test_an_edited_calibration_is_refused_before_anything_runs(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    fields = {'policy': 'p', 'policy_version': 1, 'space_hash': 'h', 'base': 4, 'horizon': 8}
    fields |= {'dt_s': 0.04, 'chunks': 5, 'signals': [0.1 * i for i in range(20)]}
    file = tmp_path / 'c.json'
    file.write_text(json.dumps(fields))
    assert calibration.load(file).chunks == 5
    file.write_text(json.dumps({**fields, **changes}))
    with pytest.raises(ConfigError, match=f'upcycling calibration .*{message}'):
        calibration.load(file)


@pytest.mark.parametrize('content', ['', '5', '[1]', 'null', '[' * 100_000, '{"limits": null}'])
def test_a_file_that_is_no_calibration_is_one_clear_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / 'c.json'
    file.write_text(content)
    for read in (calibration.load, surprise_limits.load):
        with pytest.raises(ConfigError, match=r'calibration .*c\.json: '):
            read(file)


def test_a_full_disk_keeps_the_calibration_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / 'c.json'
    files.write(file, 'old')

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        files.write(file, 'new')
    assert [entry.name for entry in tmp_path.iterdir()] == ['c.json']
    assert file.read_text() == 'old'
