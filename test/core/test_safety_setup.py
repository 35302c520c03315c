"""What a guard's decisions rest on is told whole, however it was named."""

from pathlib import Path

from chunkpilot_core import robot as robots
from chunkpilot_core.safety.runtime import setup
import pytest


@pytest.mark.parametrize('named', ['{home}/a.yaml', '~/a.yaml', '~/a', 'a'])
def test_the_calibration_in_force_is_told_by_whatever_name_it_was_found(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setattr(robots, 'config_dir', lambda: tmp_path / 'config')
    (tmp_path / 'config' / 'guard').mkdir(parents=True)
    for file in (tmp_path / 'a.yaml', tmp_path / 'a', tmp_path / 'config' / 'guard' / 'a.yaml'):
        file.write_text('what was in it')
    named = named.format(home=tmp_path)
    assert setup.files_of({'calibration': named}) == {'calibration': 'what was in it'}
    assert setup.files_of({'calibration': ''}) == {}
