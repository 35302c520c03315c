"""A robot's YAML file: what is read, and what is refused with its place."""

from pathlib import Path
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError, UnknownNameError
import numpy as np
import pytest
import yaml


@pytest.fixture
def data() -> dict[str, Any]:
    """Return the shipped file, to be broken."""
    loaded: dict[str, Any] = yaml.safe_load(robots.find('panda').read_text())
    return loaded


def load(data: dict[str, Any], folder: Path) -> robots.Robot:
    file = folder / 'mine.yaml'
    file.write_text(yaml.safe_dump(data))
    return robots.load(file)


def test_the_shipped_robot_has_the_makers_limits() -> None:
    robot = robots.load('panda')
    assert robot.joints[:7] == tuple(f'panda_joint{i}' for i in range(1, 8))
    assert robot.limit_array('max_position')[:7].tolist() == [
        2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973
    ]  # fmt: skip
    assert robot.limit_array('max_velocity')[[0, 6]].tolist() == [2.175, 2.61]
    assert robot.limit_array('max_acceleration')[[0, 1]].tolist() == [15.0, 7.5]
    assert robot.limit_array('max_position')[7:].tolist() == [0.04, 0.04]
    soft = robot.position_margin
    assert np.all(np.array(robot.home) > robot.limit_array('min_position')[:7] + soft)


def test_pybullets_urdf_has_the_same_joints() -> None:
    """Its limits are wider than the maker's: a guard that believed it would be too late."""
    pybullet_data = pytest.importorskip('pybullet_data')
    import xml.etree.ElementTree as ElementTree

    urdf = Path(pybullet_data.getDataPath()) / 'franka_panda' / 'panda.urdf'
    root = ElementTree.parse(urdf).getroot()
    robot = robots.load('panda')
    for name, limit in zip(robot.arm_joints, robot.limits, strict=True):
        found = root.find(f"joint[@name='{name}']/limit")
        assert found is not None, name
        assert limit.min_position >= float(found.attrib['lower']) - 1e-4, name
        assert limit.max_position <= float(found.attrib['upper']) + 1e-4, name


@pytest.mark.matrix(9, 10)
@pytest.mark.parametrize(
    ('path', 'value', 'words'),
    [
        ('joint_limits.panda_joint3.max_velocity', float('nan'), 'panda_joint3.max_velocity'),
        ('joint_limits.panda_joint3.max_velocity', -2.0, 'must be above 0'),
        ('joint_limits.panda_joint3.max_acceleration', 0, 'must be above 0'),
        ('joint_limits.panda_joint3.min_position', 9.0, 'is not below'),
        ('joint_limits.panda_joint3.has_velocity_limits', False, 'must be true'),
        ('joint_limits.panda_joint3.max_position', '2.9', 'no finite number'),
        ('joint_limits.panda_joint3.max_velocity', 1e308, 'max_velocity: 1e.308: .*most|allowed'),
        ('joint_limits.panda_joint3.max_acceleration', 1e308, 'panda_joint3.max_acceleration'),
        ('joint_limits.panda_joint3.max_jerk', float('inf'), 'panda_joint3.max_jerk'),
        ('joint_limits.panda_joint3.max_jerk', 1e308, 'allowed .* to 1e.07'),
        ('joint_limits.panda_joint3.max_velocity', 10**400, 'max_velocity'),
        ('joint_limits.panda_joint3.max_position', 1e6, 'allowed -100 to 100'),
        ('joint_limits.panda_joint3.has_jerk_limits', 'no', 'true or false'),
        ('gripper.max_velocity', 1e308, 'gripper.max_velocity'),
        ('max_tool_speed', 1e9, 'max_tool_speed'),
        ('max_row_age_s', 1e9, 'max_row_age_s'),
        ('workspace.upper', [1e9, 0.4, 0.6], 'upper'),
        ('base.xyz', [True, 0.0, 0.0], 'no finite number'),
        ('positon_margin', 0.1, "Did you mean 'position_margin'"),
        ('home', [0.0, 0.0], 'home'),
        ('home', [0.0, 0.41, 0.0, -1.85, 0.0, 9.0, 0.79], 'panda_joint6'),
        ('workspace.lower', [-0.45, -0.40, 2.0], 'lower z'),
        ('max_tool_speed', float('inf'), 'max_tool_speed'),
        ('position_margin', -0.05, 'position_margin'),
        ('gripper.max_width', -0.1, 'max_width'),
        ('outputs', [], 'outputs drive'),
        ('max_effort', {'panda_joint9': 20.0}, "Did you mean 'panda_joint"),
        ('max_effort', {'panda_joint1': 20.0}, "missing key 'panda_joint2'"),
        ('max_effort', {f'panda_joint{i}': -1.0 for i in range(1, 8)}, 'must be above 0'),
        ('tool.orientation', [1.0, 1.0, 0.0, 0.0], 'no unit quaternion'),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    data: dict[str, Any], tmp_path: Path, path: str, value: Any, words: str
) -> None:
    *parents, last = path.split('.')
    node = data['robot']
    for name in parents:
        node = node[name]
    node[last] = value
    with pytest.raises(ConfigError, match=words) as caught:
        load(data, tmp_path)
    assert 'mine.yaml' in str(caught.value)


def test_a_missing_limit_and_an_unknown_robot_are_named(
    data: dict[str, Any], tmp_path: Path
) -> None:
    del data['robot']['joint_limits']['panda_joint4']['max_velocity']
    with pytest.raises(ConfigError, match='max_velocity'):
        load(data, tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'panda'"):
        robots.load('panada')


def test_the_hash_tells_limits_apart(data: dict[str, Any], tmp_path: Path) -> None:
    same = load(data, tmp_path).limits_hash
    assert same == robots.load('panda').limits_hash
    data['robot']['joint_limits']['panda_joint1']['max_velocity'] = 2.0
    assert load(data, tmp_path).limits_hash != same


# ---- shape and limits that depend on the pose ---------------------------------------------------


def test_slow_ends_are_read_with_the_makers_words_and_hashed(data: Any, tmp_path: Path) -> None:
    plain = load(data, tmp_path)
    entry = data['robot']['joint_limits']['panda_joint2']
    entry['position_based_velocity_limits'] = {'velocity_offset': 0.2, 'deceleration_limit': 2.585}
    robot = load(data, tmp_path)
    assert robot.limits[1].velocity_offset == 0.2
    assert robot.limits[1].deceleration_limit == 2.585
    assert np.isinf(robot.limits[0].deceleration_limit)
    assert robot.limits_hash != plain.limits_hash
    for bad, words in (
        ({'velocity_offset': -0.1, 'deceleration_limit': 2.0}, 'velocity_offset'),
        ({'velocity_offset': 0.1, 'deceleration_limit': 0.0}, 'deceleration_limit'),
        ({'velocity_offset': float('nan'), 'deceleration_limit': 1.0}, 'finite'),
        ({'velocity_ofset': 0.1, 'deceleration_limit': 1.0}, 'velocity_offset'),
    ):
        entry['position_based_velocity_limits'] = bad
        with pytest.raises(ConfigError, match=words):
            load(data, tmp_path)


def test_the_shape_of_the_robot_is_a_part_of_the_limits_hash(data: Any, tmp_path: Path) -> None:
    before = load(data, tmp_path)
    data['robot']['collision']['bodies'][4]['capsules'][0]['radius'] += 0.001
    assert load(data, tmp_path).limits_hash != before.limits_hash
    del data['robot']['collision']
    bare = load(data, tmp_path)
    assert bare.collision is None
    assert bare.limits_hash != before.limits_hash


def change(*path: Any, to: Any) -> Any:
    def apply(shape: Any) -> None:
        for key in path[:-1]:
            shape = shape[key]
        shape[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ('wrong', 'words'),
    [
        (change('bodies', 3, 'frame', to='panda_joint'), 'panda_joint1'),
        (change('bodies', 3, 'name', to='link4'), "'link4'.*more than once"),
        (change('bodies', 3, 'name', to='a-b'), 'no name'),
        (change('bodies', 3, 'capsules', to=[]), 'at least one capsule'),
        (change('bodies', 3, 'capsules', 0, 'radius', to=0.0), 'radius'),
        (change('bodies', 3, 'capsules', 0, 'radius', to=float('nan')), 'radius'),
        (change('bodies', 3, 'capsules', 0, 'to', to=[0.0, 0.0]), '3 numbers'),
        (change('bodies', 3, 'capsule', to=[]), 'capsules'),
        (change('environment', 0, 'size', to=[1.0, 1.0, -1.0]), 'size'),
        (change('environment', 0, 'name', to='hand'), 'more than once'),
        (change('allowed', 0, to=['link0', 'link11']), 'link1'),
        (change('allowed', 0, to='link0'), 'two names'),
        (change('thresholds', 0, 'stop', to=0.5), 'stop'),
        (change('thresholds', 0, 'slow', to=-0.05), 'not below slow'),
        (change('thresholds', 0, 'pair', to=['*', 'link5']), 'comes second'),
        (change('fingers', 0, 'joint', to='panda_finger'), 'panda_finger_joint1'),
        (change('fingers', 0, 'axis', to=[0.0, 2.0, 0.0]), 'length 1'),
        (change('stop', to=0.06), 'not below slow'),
        (change('bodys', to=[]), 'bodies'),
    ],
)
def test_a_shape_that_is_none_is_refused_with_its_place(
    data: Any, tmp_path: Path, wrong: Any, words: str
) -> None:
    wrong(data['robot']['collision'])
    with pytest.raises(ConfigError, match=words):
        load(data, tmp_path)
