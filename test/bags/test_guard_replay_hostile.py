"""Bags come from anywhere: no module is imported and no file misplaced because one says so."""

from pathlib import Path
import sys
from typing import Any

import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import GuardEvent, GuardParameters
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ChunkpilotError, ConfigError
from chunkpilot_core.types import Input
from chunkpilot_nodes import guard_replay
from chunkpilot_nodes.guard_replay_bag import REQUEST, Taken

pytestmark = pytest.mark.ros


def parameters(file: tuple[str, str] | None = None, **values: str) -> Any:
    """Return what a guard tells of itself, with values as JSON."""
    return GuardParameters(
        session=1,
        arm_epoch=1,
        robot_yaml=robots.find('panda').read_text(),
        names=list(values),
        values=list(values.values()),
        file_names=[file[0]] if file else [],
        file_texts=[file[1]] if file else [],
    )


@pytest.mark.parametrize(
    'values', [{'extra_checks': '["evil_of_a_bag:Check"]'}, {'distances': '"evil_of_a_bag:Check"'}]
)
def test_no_module_is_imported_because_a_bag_names_it(
    values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'evil_of_a_bag.py').write_text('Check = 1')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match='not run'):
        guard_replay.Follower(parameters(**values), 0.0, tmp_path)
    assert 'evil_of_a_bag' not in sys.modules


@pytest.mark.parametrize('name', ['../../out.yaml', '/etc/out.yaml', 'a/\\u0000out.yaml'])
def test_files_are_put_nowhere_but_into_their_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / 'files'
    told = parameters(('calibration', 'not: a calibration'), calibration=f'"{name}"')
    with pytest.raises(ChunkpilotError):  # its content is none
        guard_replay.Follower(told, 0.0, folder)
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == [folder / '0.yaml']


@pytest.mark.parametrize('name', ['"x"', '7', '"x."', '"..\\u0000"', '"a.y/b"', '".."'])
def test_a_file_of_any_name_is_put_there_too(name: str, tmp_path: Path) -> None:
    told = parameters(('calibration', 'not: a calibration'), calibration=name)
    with pytest.raises(ChunkpilotError):
        guard_replay.Follower(told, 0.0, tmp_path)
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == [tmp_path / '0']


def test_a_file_of_a_parameter_that_is_not_told_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nothing' of the guard names a file"):
        guard_replay.Follower(parameters(('nothing', '')), 0.0, tmp_path)


def with_urdf(told: Any, urdf: Path) -> Any:
    told.robot_yaml = told.robot_yaml.replace('franka_panda/panda.urdf', str(urdf))
    assert str(urdf) in told.robot_yaml
    return told


@pytest.mark.parametrize('distances', ['"auto"', '"pybullet"', '"coal"'])
def test_no_file_is_read_because_a_bag_names_it_as_a_urdf(distances: str, tmp_path: Path) -> None:
    secret = tmp_path / 'secret.urdf'
    secret.write_text('<robot name="secret"/>')
    told = with_urdf(parameters(distances=distances), secret)
    with pytest.raises(ConfigError, match='no robot of config/robots names'):
        guard_replay.Follower(told, 0.0, tmp_path)


def test_the_urdf_of_a_robot_file_that_is_named_here_is_read(tmp_path: Path) -> None:
    told = with_urdf(parameters(distances='"pybullet"'), tmp_path / 'mine.urdf')
    (tmp_path / 'mine.urdf').write_text('<robot name="mine"><link name="only"/></robot>')
    (tmp_path / 'mine.yaml').write_text(told.robot_yaml)
    with pytest.raises(ConfigError, match="URDF 'panda_joint1'"):  # it has no joints
        guard_replay.Follower(told, 0.0, tmp_path, str(tmp_path / 'mine.yaml'))


def test_who_needs_no_urdf_is_asked_for_none(tmp_path: Path) -> None:
    told = with_urdf(parameters(distances='"capsules"'), tmp_path / 'gone.urdf')
    assert guard_replay.Follower(told, 0.0, tmp_path).guard.robot.name == 'panda'


@pytest.mark.parametrize('check', ['tick', '__init__', 'nothing', ''])
def test_a_request_of_no_service_is_an_error(check: str, tmp_path: Path) -> None:
    follower = guard_replay.Follower(parameters(), 0.0, tmp_path)
    with pytest.raises(ChunkpilotError, match='known: arm, recover'):
        follower.remember([Taken(Input(REQUEST, 1, 1), GuardEvent(kind=REQUEST, check=check))])
