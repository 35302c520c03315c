"""The simulated robot: kinematics that agree, commands that are refused, episodes that repeat."""

import math

from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.sim.world import CONTROL_DT_NS, World
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import numpy as np
import pytest

PANDA = robots.load('panda')
KINEMATICS = Kinematics(PANDA)
HOME = np.array([*PANDA.home, 0.0, 0.0])


@pytest.fixture(name='world', scope='module')
def _world():
    world = World('pick_and_place', PANDA)
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _fresh(world):
    world.reset(0)


def tool(world: World) -> np.ndarray:
    return KINEMATICS.forward(world.joint_state().positions[:7]).position


def run(world: World, targets: np.ndarray, seconds: float) -> None:
    for _ in range(round(seconds / 0.01)):
        world.step(targets)


def test_forward_kinematics_is_that_of_the_simulated_links(world):
    rng = np.random.default_rng(3)
    for _ in range(20):
        joints = HOME + np.array([*rng.uniform(-0.5, 0.5, 7), 0.0, 0.0])
        for index, value in zip(world._indices, joints, strict=True):
            world._client.resetJointState(world._body, index, value)
        link = world._client.getLinkState(world._body, 11, computeForwardKinematics=True)
        pose = KINEMATICS.forward(joints[:7])
        assert np.allclose(pose.position, link[4], atol=1e-5)
        turned = np.array(world._client.getMatrixFromQuaternion(link[5])).reshape(3, 3)
        assert np.allclose(pose.rotation, turned, atol=1e-4)


def test_targets_are_reached_and_held(world):
    targets = HOME + np.array([0.2, -0.1, 0.1, 0.1, 0.0, 0.1, -0.2, 0.03, 0.03])
    run(world, targets, 0.6)
    assert np.allclose(world.joint_state().positions, targets, atol=2e-3)
    for _ in range(100):
        world.step()  # no command: a position controller keeps its last target
    assert np.allclose(world.joint_state().positions, targets, atol=2e-3)
    assert np.allclose(world.joint_state().velocities, 0.0, atol=0.01)


def test_joints_follow_names_not_pybullets_order(world):
    assert world.joint_state().names == PANDA.joints
    run(world, HOME + np.eye(9)[3] * 0.1, 0.5)
    moved = world.joint_state().positions - HOME
    assert moved[3] == pytest.approx(0.1, abs=2e-3)
    assert np.allclose(np.delete(moved, 3), 0.0, atol=2e-3)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({0: math.nan}, 'panda_joint1 is nan'),
        ({6: math.inf}, 'panda_joint7 is inf'),
        ({3: -math.inf}, 'panda_joint4 is -inf'),
        ({1: 1e300}, 'panda_joint2 is 1e'),
        ({5: 9.0}, r'panda_joint6 is 9.0, allowed -0.0675 to 3.80'),
        ({8: 0.2}, 'panda_finger_joint2 is 0.2'),
    ],
)
def test_a_target_that_is_not_allowed_is_refused_and_the_last_one_stays(world, change, message):
    goal = HOME + np.eye(9)[0] * 0.1
    run(world, goal, 0.3)
    bad = goal.copy()
    for column, value in change.items():
        bad[column] = value
    before = world.time_ns
    with pytest.raises(InvalidDataError, match=message):
        world.step(bad)
    assert world.time_ns == before
    for _ in range(30):
        world.step()
    state = world.joint_state()
    assert np.all(np.isfinite(state.positions))
    assert np.allclose(state.positions, goal, atol=2e-3)


@pytest.mark.parametrize('targets', [np.zeros(8), np.zeros((9, 1)), np.zeros(0), 'home', None])
def test_a_target_of_another_shape_is_refused(world, targets):
    with pytest.raises(InvalidDataError):
        world.command(targets)
    world.step()
    assert np.all(np.isfinite(world.joint_state().positions))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(width=64), min_size=9, max_size=9))
def test_nothing_that_is_sent_breaks_the_physics(world, numbers):
    try:
        world.step(np.array(numbers))
    except InvalidDataError:
        world.step()
    state = world.joint_state()
    assert np.all(np.isfinite(state.positions))
    assert np.all(np.isfinite(state.velocities))


def test_time_goes_on_through_resets_and_task_changes(world):
    world.step()
    before = world.time_ns
    world.reset(5)
    assert world.time_ns == before
    other = World('reach', PANDA)
    other.step()
    other.set_task('stack')
    other.reset(1)
    other.step()
    assert other.time_ns == 2 * CONTROL_DT_NS
    assert other.scene().bodies == ('object', 'object2')
    other.close()


def test_a_seed_decides_the_whole_episode_whatever_came_before(world):
    def episode():
        task = world.reset(11)
        for i in range(60):
            swing = 0.3 * np.sin(0.2 * i) * np.eye(9)[1]
            world.step(HOME + swing + [0, 0, 0, 0, 0, 0, 0, 0.02, 0.02])
        return task, world.scene()

    task, scene = episode()
    world.reset(3)
    run(
        world, HOME + np.array([0.3] * 7 + [0.03] * 2), 0.2
    )  # leaves another history of contacts behind
    again, scene_again = episode()
    assert np.array_equal(task.goal, again.goal)
    assert task.id != again.id
    assert np.array_equal(scene.positions, scene_again.positions)
    assert np.array_equal(scene.joint_positions, scene_again.joint_positions)
    assert not np.array_equal(world.reset(12).goal, task.goal)


def test_a_reset_can_leave_the_robot_where_it_is(world):
    targets = HOME + np.eye(9)[0] * 0.4
    run(world, targets, 0.5)
    world.reset(4, reset_robot=False)
    for _ in range(50):
        world.step()
    assert np.allclose(world.joint_state().positions, targets, atol=3e-3)
    world.reset(4)
    assert np.allclose(world.joint_state().positions, HOME, atol=1e-9)


@pytest.mark.parametrize('seed', [-1, 1.5, True, 'zero'])
def test_a_wrong_seed_is_refused(world, seed):
    with pytest.raises(InvalidDataError, match='seed'):
        world.reset(seed)


def test_an_unknown_task_names_the_known_ones_and_leaves_the_world(world):
    with pytest.raises(UnknownNameError, match='pick_and_place'):
        world.set_task('pick_and_plase')
    world.step()
    assert world.scene().task_kind == 'pick_and_place'


def test_a_foreign_robot_is_refused():
    from dataclasses import replace

    chain = (replace(PANDA.chain[0], joint='elbow'), *PANDA.chain[1:])
    with pytest.raises(ConfigError, match='elbow'):
        World('reach', replace(PANDA, chain=chain))


def test_an_object_can_be_moved_by_hand(world):
    world.move_body('object', np.array([0.1, -0.1, 0.02]))
    run(world, HOME, 0.1)
    assert np.allclose(world.scene().position('object'), [0.1, -0.1, 0.02], atol=1e-3)
    with pytest.raises(InvalidDataError):
        world.move_body('object', np.array([0.1, math.nan, 0.02]))
    with pytest.raises(UnknownNameError, match='object'):
        world.move_body('cube', np.zeros(3))


def test_holding_stops_the_arm_and_drops_what_is_on_its_way():
    world = World('reach', PANDA, World.Config(command_latency_s=0.1))
    run(world, HOME + np.eye(9)[0] * 0.8, 0.15)
    assert abs(world.joint_state().velocities[0]) > 0.5
    world.hold()
    held = world.joint_state().positions
    for _ in range(100):
        world.step()
    assert np.allclose(world.joint_state().positions, held, atol=0.03)
    world.close()


def test_command_latency_delays_by_just_that():
    now, late = World('reach', PANDA), World('reach', PANDA, World.Config(command_latency_s=0.05))
    targets = HOME + np.eye(9)[0] * 0.3
    history: dict[World, list[float]] = {now: [], late: []}
    for _ in range(30):
        for world, positions in history.items():
            world.step(targets)
            positions.append(world.joint_state().positions[0])
    assert np.allclose(history[late][5:], history[now][:-5], atol=1e-4)
    assert np.allclose(history[late][:5], 0.0, atol=1e-4)
    now.close()
    late.close()


@pytest.mark.parametrize(
    ('config', 'expected'),
    [
        (World.Config(), [0.08, 0.04, 0.0]),
        (World.Config(action_gain=0.5), [0.04, 0.02, 0.0]),
        (World.Config(action_yaw_deg=90.0), [-0.04, 0.08, 0.0]),
        (World.Config(action_bias=(0.0, 0.0, 0.03)), [0.08, 0.04, 0.03]),
    ],
)
def test_action_errors_distort_the_tools_displacement_since_the_reset(config, expected):
    world = World('reach', PANDA, config)
    start = tool(world)
    solution = KINEMATICS.inverse(
        start + np.array((0.08, 0.04, 0.0)), KINEMATICS.tool_rotation, HOME[:7], max_iterations=50
    )
    way = np.array([*solution.joints, 0.0, 0.0]) - HOME
    for fraction in np.linspace(0.0, 1.0, 60):
        world.step(HOME + fraction * way)
    run(world, HOME + way, 0.3)
    assert np.allclose(tool(world) - start, expected, atol=2e-3)
    world.close()


def test_action_errors_do_nothing_at_the_first_command():
    config = World.Config(action_gain=0.5, action_yaw_deg=40.0, action_bias=(0.05, 0.05, 0.05))
    world = World('reach', PANDA, config)
    start = tool(world)
    run(world, HOME, 0.2)
    assert np.allclose(tool(world), start, atol=1e-3)
    world.close()


def test_wrong_errors_are_refused():
    with pytest.raises(ConfigError, match='3 values'):
        World.Config(action_bias=(0.1,))


def test_nothing_is_printed(capfd):
    World('push', PANDA).close()
    assert capfd.readouterr() == ('', '')


def test_what_is_placed_is_told_when_it_is_touched_and_gone_after_a_reset() -> None:
    from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape

    world = World('reach')
    upright = np.array([0.0, 0.0, 0.0, 1.0])
    tool = Kinematics(world.robot).forward(world.joint_state().positions[:7]).position
    near = Obstacle('ball', Shape.SPHERE, (0.03,), tool, upright)
    far = Obstacle('post', Shape.CAPSULE, (0.02, 0.2), tool + np.eye(3)[1] * 0.3, upright)
    assert not world.touched()
    world.place((near, far))
    world.step()
    assert world.touched() == {'ball'}
    world.reset(0)
    world.step()
    assert not world.touched()
    world.close()
