"""Distances of the arm: against PyBullet's own, by hand, and never much too large."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.base import Clearance, REACH_M
from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape, TOOL
from chunkpilot_core.clearance.runtime.meshes import find_urdf
from chunkpilot_core.clearance.runtime.segments import box_distances, SegmentPairs
from chunkpilot_core.errors import ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.sim.bullet import silence
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

ROBOT = robots.load('panda')
HOME = np.array([*ROBOT.home, 0.04, 0.04])
LOWER, UPPER = ROBOT.limit_array('min_position'), ROBOT.limit_array('max_position')
UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0])
OVER_M = 0.005  # by which capsules may call a pair clearer than its meshes are


def importable(name: str) -> bool:
    try:
        registry.get('clearance', name)(ROBOT)
    except ConfigError:
        return False
    return True


BACKENDS = [name for name in registry.names('clearance') if importable(name)]


@pytest.fixture(params=BACKENDS)
def clearance(request: Any) -> Clearance:
    made: Clearance = registry.get('clearance', request.param)(ROBOT)
    return made


@pytest.fixture(scope='module')
def capsules() -> Clearance:
    made: Clearance = registry.get('clearance', 'capsules')(ROBOT)
    return made


@pytest.fixture(scope='module')
def meshes() -> Iterator[tuple[Any, int, dict[str, int], list[int]]]:
    """Return PyBullet itself, with the robot in its own world: body, links, joints."""
    with silence():
        import pybullet
        from pybullet_utils.bullet_client import BulletClient

        client = BulletClient(pybullet.DIRECT)
    arm = client.loadURDF(
        str(find_urdf('franka_panda/panda.urdf')), ROBOT.base_xyz, useFixedBase=1
    )
    infos = [client.getJointInfo(arm, i) for i in range(client.getNumJoints(arm))]
    links = {info[12].decode(): info[0] for info in infos} | {'panda_link0': -1}
    names = {info[1].decode(): info[0] for info in infos}
    yield client, arm, links, [names[joint] for joint in ROBOT.joints]
    client.disconnect()


def box(name: str = 'wall', at: Any = (0.0, 0.0, 0.5), size: Any = (0.1, 0.1, 0.1), **more: Any):
    return Obstacle(name, Shape.BOX, tuple(size), np.array(at, float), UPRIGHT, **more)


def joints(shares: Any) -> np.ndarray:
    return LOWER + np.array(shares) * (UPPER - LOWER)


SHARES = st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9)


# ---- geometry by hand ---------------------------------------------------------------------------


def apart(a: Any, b: Any, c: Any, d: Any) -> float:
    segments = np.array([[[a, np.subtract(b, a)], [c, np.subtract(d, c)]]], float)
    lengths = np.linalg.norm(segments[0, :, 1], axis=1)
    pairs = SegmentPairs(np.array([0]), np.array([1]), lengths)
    return float(pairs.distances(segments)[0, 0])


@pytest.mark.parametrize(
    ('a', 'b', 'c', 'd', 'expected'),
    [
        ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), 1.0),  # parallel
        ((0, 0, 0), (1, 0, 0), (3, 0, 0), (5, 0, 0), 2.0),  # on one line
        ((0, 0, 0), (1, 0, 0), (-5, 0, 0), (-3, 0, 0), 3.0),  # on one line, the other way
        ((-1, 0, 0), (1, 0, 0), (0, -1, 0.5), (0, 1, 0.5), 0.5),  # crossing
        ((0, 0, 0), (1, 0, 0), (2, 1, 0), (2, 5, 0), np.sqrt(2)),  # end to end
        ((0, 0, 0), (0, 0, 0), (0, 3, 0), (0, 3, 0), 3.0),  # two points
        ((0, 0, 0), (0, 0, 0), (-1, 2, 0), (1, 2, 0), 2.0),  # a point and a segment
        ((-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), 0.0),  # through each other
    ],
)
def test_segments_by_hand(a: Any, b: Any, c: Any, d: Any, expected: float) -> None:
    for one, other in (((a, b), (c, d)), ((b, a), (c, d)), ((c, d), (a, b)), ((c, d), (b, a))):
        assert apart(*one, *other) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ('a', 'b', 'expected'),
    [
        ((-1, 0, 2), (1, 0, 2), 1.5),  # above a face
        ((0, 0, 3), (0, 0, 1), 0.5),  # pointing at it
        ((1.5, 1.5, 0), (1.5, 1.5, 0), np.sqrt(2)),  # beside an edge
        ((1.5, 1.5, 1.5), (3, 3, 3), np.sqrt(3)),  # off a corner
        ((2, -1, 0), (-1, 2, 0), 0.0),  # touching an edge from outside
        ((3, -1, 0), (-1, 3, 0), np.sqrt(0.5)),  # past an edge, nearest in the middle
        ((0, 0, 0.3), (0, 0, 0.1), -0.4),  # inside: up to the top by the lower end
        ((0, 0, -2), (0, 0, 2), -0.5),  # through: out by the side
    ],
)
def test_a_segment_and_a_cube_of_edge_one_by_hand(a: Any, b: Any, expected: float) -> None:
    segments = np.array([[[a, np.subtract(b, a)]]], float)
    found = box_distances(segments, np.full((1, 3), 0.5), np.array([10.0]))[0, 0]
    assert found == pytest.approx(expected, abs=1e-6)


POINT = st.tuples(*[st.floats(-2.0, 2.0)] * 3)


@settings(max_examples=200)
@given(POINT, POINT, POINT)
def test_no_point_of_a_segment_is_nearer_to_a_box(a: Any, b: Any, half: Any) -> None:
    edges = np.abs(half) + 0.05
    start, axis = np.array(a), np.subtract(b, a)
    found = box_distances(np.array([[[start, axis]]]), edges[None], np.array([10.0]))[0, 0]
    points = start + np.linspace(0.0, 1.0, 2001)[:, None] * axis
    seen = np.linalg.norm(np.maximum(np.abs(points) - edges, 0.0), axis=1).min()
    assert max(found, 0.0) <= seen + 1e-9
    assert max(found, 0.0) >= seen - np.linalg.norm(axis) / 2000 - 1e-9


# ---- against PyBullet ---------------------------------------------------------------------------


def test_meshes_are_as_far_apart_as_pybullet_says(meshes: Any) -> None:
    client, arm, links, numbers = meshes
    ours = registry.get('clearance', 'pybullet')(ROBOT)
    link_of = {body.name: links[body.urdf_link] for body in ROBOT.collision.bodies}
    shape = client.createCollisionShape(client.GEOM_BOX, halfExtents=[0.55, 0.35, 0.2])
    table = client.createMultiBody(0.0, shape, basePosition=[-0.3, 0.0, -0.2])
    rng = np.random.default_rng(3)
    nearer = 0
    for q in rng.uniform(LOWER, UPPER, (150, 9)):
        for number, value in zip(numbers, q, strict=True):
            client.resetJointState(arm, number, value)
        found = ours.distances(q)
        for i, (first, second) in enumerate(ours.pairs):
            other = (table, -1) if second == 'table' else (arm, link_of[second])
            points = client.getClosestPoints(arm, other[0], REACH_M, link_of[first], other[1])
            expected = min([REACH_M, *(point[8] for point in points)])
            assert found[i] == pytest.approx(expected, abs=1e-6), ours.names[i]
            nearer += expected < REACH_M
    assert nearer > 500
    client.removeBody(table)


@settings(max_examples=150, deadline=None)
@given(SHARES)
def test_capsules_are_never_much_clearer_than_meshes(capsules: Clearance, shares: Any) -> None:
    true = MESHES.distances(joints(shares))
    called = capsules.distances(joints(shares))
    outside = true > 0.0
    assert np.all(called[outside] <= true[outside] + OVER_M), dict(
        zip(np.array(capsules.names)[outside], (called - true)[outside], strict=True)
    )


MESHES = registry.get('clearance', 'pybullet')(ROBOT)


@settings(max_examples=60, deadline=None)
@given(SHARES, POINT, st.sampled_from(list(Shape)), st.floats(0.02, 0.3), st.booleans())
def test_obstacles_too(shares: Any, at: Any, shape: Shape, size: float, held: bool) -> None:
    """A box, a ball and a capsule, turned, in the world or in the hand."""
    place = np.array([0.0, 0.0, 0.02]) if held else np.array(at) * 0.4 + [0.0, 0.0, 0.4]
    sizes = {Shape.BOX: (size, size / 2, size / 3), Shape.SPHERE: (size / 2,)}
    turn = np.array([0.3, -0.2, 0.4, 0.8])
    turn /= np.linalg.norm(turn)
    kind = (shape, sizes.get(shape, (size / 3, size)), place, turn)
    thing = Obstacle('thing', *kind, TOOL if held else 'world')
    both = [registry.get('clearance', name)(ROBOT) for name in ('pybullet', 'capsules')]
    for one in both:
        one.set_obstacles([thing, box()])
    true, called = (one.distances(joints(shares)) for one in both)
    outside = true > 0.0
    assert np.all(called[outside] <= true[outside] + OVER_M), dict(
        zip(np.array(both[0].names)[outside], (called - true)[outside], strict=True)
    )


# ---- the interface ------------------------------------------------------------------------------


def test_many_poses_at_once_are_the_same_as_one_by_one(clearance: Clearance) -> None:
    clearance.set_obstacles([box(at=(0.1, 0.1, 0.3))])
    poses = np.random.default_rng(5).uniform(LOWER, UPPER, (12, 9))
    together = clearance.sweep(poses)
    assert together.shape == (12, len(clearance.names))
    for pose, found in zip(poses, together, strict=True):
        np.testing.assert_allclose(clearance.distances(pose), found, atol=1e-9)


def test_the_same_pose_gives_the_same_bits(clearance: Clearance) -> None:
    poses = np.random.default_rng(6).uniform(LOWER, UPPER, (20, 9))
    first = [clearance.distances(pose) for pose in poses]
    again = registry.get('clearance', type(clearance).__module__.rpartition('.')[2])(ROBOT)
    for pose, found in zip(reversed(poses), reversed(first), strict=True):
        assert np.array_equal(clearance.distances(pose), found)
        assert np.array_equal(again.distances(pose), found)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_no_distance_for_joints_that_are_no_numbers(clearance: Clearance, bad: float) -> None:
    for column in (0, 6, 8):
        broken = HOME.copy()
        broken[column] = bad
        with pytest.raises(InvalidDataError, match='not finite'):
            clearance.distances(broken)
    with pytest.raises(InvalidDataError, match='shape'):
        clearance.distances(HOME[:7])
    assert np.isfinite(clearance.distances(HOME)).all()


def test_home_is_clear_and_the_hand_over_the_table_by_its_height(clearance: Clearance) -> None:
    found = dict(zip(clearance.names, clearance.distances(HOME), strict=True))
    assert all(
        found[name] > slow for name, slow in zip(clearance.names, clearance.slow, strict=True)
    )
    tool = clearance.kinematics.forward(HOME[:7]).position
    # At home the tool points down; the finger tips are 7.1 mm beyond the tool point.
    low = HOME.copy()
    down = clearance.kinematics
    solution = down.inverse(np.array([*tool[:2], 0.05]), down.tool_rotation, HOME[:7])
    for _ in range(20):
        solution = down.inverse(np.array([*tool[:2], 0.05]), down.tool_rotation, solution.joints)
    low[:7] = solution.joints
    found = dict(zip(clearance.names, clearance.distances(low), strict=True))
    assert found['finger1-table'] == pytest.approx(0.0429, abs=0.002)
    assert found['hand-table'] == pytest.approx(0.0889, abs=0.015)


def test_obstacles_come_and_go_with_their_pairs(clearance: Clearance) -> None:
    before = clearance.names
    tool = clearance.kinematics.forward(HOME[:7]).position
    clearance.set_obstacles([box('crate', at=tool - [0.0, 0.0, 0.15])])
    found = dict(zip(clearance.names, clearance.distances(HOME), strict=True))
    assert found['finger1-crate'] == pytest.approx(0.15 - 0.05 - 0.0071, abs=0.002)
    assert set(clearance.names) - set(before) == {
        f'{body.name}-crate' for body in ROBOT.collision.bodies if body.frame != 'base'
    }
    version, names = clearance.version, clearance.names
    clearance.set_obstacles([box('crate', at=tool - [0.0, 0.0, 0.12])])  # it moves
    assert clearance.version > version
    assert clearance.names == names
    moved = dict(zip(clearance.names, clearance.distances(HOME), strict=True))
    assert moved['finger1-crate'] == pytest.approx(found['finger1-crate'] - 0.03, abs=5e-6)
    clearance.set_obstacles([box('crate', at=tool - [0.0, 0.0, 0.1], graspable=True)])
    assert 'finger1-crate' not in clearance.names
    assert 'hand-crate' in clearance.names
    clearance.set_obstacles([])
    assert clearance.names == before


def test_obstacles_that_move_are_where_new_ones_would_be(clearance: Clearance) -> None:
    """Every shape, in the world and in the hand, told at its place and moved there."""
    turn = np.array([0.3, -0.2, 0.4, 0.8])
    turn /= np.linalg.norm(turn)

    def things(shift: float) -> list[Obstacle]:
        at = np.array([0.05 + shift, 0.1, 0.3])
        return [
            Obstacle('box', Shape.BOX, (0.1, 0.05, 0.2), at, UPRIGHT if shift else turn),
            Obstacle('ball', Shape.SPHERE, (0.05,), at - np.array([0.0, 0.3, 0.0]), UPRIGHT),
            Obstacle('ball2', Shape.SPHERE, (0.05,), at - np.array([0.1, 0.1, 0.2]), UPRIGHT),
            Obstacle('post', Shape.CAPSULE, (0.03, 0.2), at + np.array([0.0, 0.2, 0.1]), turn),
            Obstacle('cube', Shape.BOX, (0.04, 0.04, 0.05), at * 0.1, turn, TOOL),
        ]

    fresh = registry.get('clearance', type(clearance).__module__.rpartition('.')[2])(ROBOT)
    fresh.set_obstacles(things(0.0))
    clearance.set_obstacles(things(0.07)[::-1])
    clearance.set_obstacles([box('box', size=(0.3, 0.3, 0.3)), *things(0.07)[1:]])
    clearance.set_obstacles(things(0.07))
    clearance.set_obstacles(things(0.0))
    poses = np.random.default_rng(8).uniform(LOWER, UPPER, (10, 9))
    assert np.array_equal(clearance.sweep(poses), fresh.sweep(poses))


def surrounded() -> list[Obstacle]:
    """Something in every shape, in the world and in the hand."""
    turn = np.array([0.3, -0.2, 0.4, 0.8])
    turn /= np.linalg.norm(turn)
    return [
        box(at=(0.05, 0.34, 0.1), size=(0.1, 0.1, 0.2)),
        Obstacle('ball', Shape.SPHERE, (0.05,), np.array([0.0, -0.36, 0.1]), UPRIGHT),
        Obstacle('post', Shape.CAPSULE, (0.03, 0.4), np.array([0.3, 0.0, 0.2]), turn),
        Obstacle('pen', Shape.CAPSULE, (0.01, 0.15), np.array([0.02, 0.0, 0.05]), turn, TOOL),
    ]


def test_no_distance_changes_by_more_than_its_levers_allow(clearance: Clearance) -> None:
    clearance.set_obstacles(surrounded())
    rng = np.random.default_rng(9)
    far = np.full(len(clearance.pairs), 3.0)
    for _ in range(60):
        one = rng.uniform(LOWER, UPPER)
        other = one + rng.choice([0.02, 0.3]) * rng.normal(size=9)
        poses = np.clip([one, other], LOWER, UPPER)
        found = clearance.sweep(poses, reach=far)
        apart = (found > 0.0).all(axis=0)  # how deep hulls are in each other is not as smooth
        most = np.abs(poses[1] - poses[0]) @ clearance.levers + 1e-5
        assert np.all(np.abs(found[1] - found[0])[apart] <= most[apart])


def test_a_way_in_ticks_has_the_distances_of_each_pose(clearance: Clearance) -> None:
    """What was measured before changes nothing, however the arm got there."""
    fresh = registry.get('clearance', type(clearance).__module__.rpartition('.')[2])
    rng = np.random.default_rng(10)
    pose, velocity, near = HOME, np.zeros(9), 0
    for tick in range(400):
        if tick % 100 == 50:
            clearance.set_obstacles(surrounded())
        reach = np.array([clearance.slow + 0.03, clearance.slow])
        velocity = 0.9 * velocity + rng.normal(size=9) * 0.3
        pose = np.clip(pose + 0.02 * velocity, LOWER, UPPER)
        poses = np.clip([pose, pose + 0.1 * velocity], LOWER, UPPER)
        found = clearance.sweep(poses, reach=reach)
        if tick % 5 == 0:
            other = fresh(ROBOT)
            other.set_obstacles(clearance.obstacles)
            assert np.array_equal(found, other.sweep(poses, reach=reach))
            near += int((found < reach).sum())
    assert near > 100


def test_what_is_held_is_looked_at_as_a_part_of_the_arm(clearance: Clearance) -> None:
    cube = box('cube', at=(0, 0, 0.02), size=(0.04, 0.04, 0.04), frame=TOOL)
    clearance.set_obstacles([cube, box('shelf', at=(0.0, 0.0, 0.6))])
    assert 'cube-table' in clearance.names
    assert 'cube-shelf' in clearance.names
    assert not any(name in clearance.names for name in ('finger1-cube', 'hand-cube', 'link7-cube'))
    tool = clearance.kinematics.forward(HOME[:7])
    at = dict(zip(clearance.names, clearance.distances(HOME), strict=True))
    # The tool points down: the cube's far side is 4 cm below the tool point.
    expected = min(tool.position[2] - 0.04, REACH_M)
    assert at['cube-table'] == pytest.approx(expected, abs=0.003)
    thresholds = dict(zip(clearance.names, clearance.stop, strict=True))
    assert thresholds['cube-table'] < 0.0  # or nothing could ever be put down
    assert thresholds['link3-shelf'] == ROBOT.collision.stop


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'position': np.array([0.0, np.nan, 0.0])}, 'position'),
        ({'position': np.array([0.0, 0.0, 1e9])}, 'position'),
        ({'position': np.zeros(2)}, 'position'),
        ({'orientation': np.zeros(4)}, 'quaternion'),
        ({'orientation': np.full(4, np.nan)}, 'quaternion'),
        ({'size': (0.1, -0.1, 0.1)}, 'size'),
        ({'size': (0.1, 0.1)}, 'size'),
        ({'size': (0.1, np.inf, 0.1)}, 'size'),
        ({'name': 'table'}, 'name'),
        ({'name': 'hand'}, 'name'),
        ({'name': ''}, 'name'),
        ({'frame': 'somewhere'}, 'frame'),
    ],
)
def test_an_obstacle_that_is_none_is_refused_and_the_old_ones_stay(
    clearance: Clearance, change: Any, words: str
) -> None:
    clearance.set_obstacles([box()])
    names, found = clearance.names, clearance.distances(HOME)
    with pytest.raises(InvalidDataError, match=words):
        clearance.set_obstacles([box('other'), replace(box(), **change)])
    assert clearance.names == names
    assert np.array_equal(clearance.distances(HOME), found)


def test_two_obstacles_of_one_name_and_too_many_are_refused(clearance: Clearance) -> None:
    with pytest.raises(InvalidDataError, match='name of its own'):
        clearance.set_obstacles([box(), box()])
    with pytest.raises(InvalidDataError, match='at most 50'):
        clearance.set_obstacles([box(f'box{i}') for i in range(101)])


def test_a_robot_whose_shape_nobody_knows_gets_no_distances() -> None:
    bare = replace(ROBOT, collision=None)
    assert choice.make('auto', bare) is None
    with pytest.raises(ConfigError, match='collision'):
        registry.get('clearance', 'capsules')(bare)


def test_auto_is_pybullet_where_there_are_meshes_and_capsules_elsewhere() -> None:
    assert choice.resolve('auto', ROBOT) == 'pybullet'
    blind = replace(ROBOT, collision=replace(ROBOT.collision, urdf=''))
    assert choice.resolve('auto', blind) == 'capsules'
    assert choice.resolve('capsules', ROBOT) == 'capsules'
    with pytest.raises(UnknownNameError, match="Did you mean 'capsules'"):
        choice.make('capsule', ROBOT)
    lost = replace(ROBOT, collision=replace(ROBOT.collision, urdf='franka/none.urdf'))
    with pytest.raises(ConfigError, match=r'franka/none\.urdf'):
        choice.make('pybullet', lost)
