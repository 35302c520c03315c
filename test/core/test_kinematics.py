"""Kinematics against PyBullet's own, and inverse against forward."""

from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core import rotations
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import F64
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

ROBOT = robots.load('panda')
HOME = np.array(ROBOT.home)
KINEMATICS = Kinematics(ROBOT)
LOWER = np.array([limit.min_position for limit in ROBOT.limits])
UPPER = np.array([limit.max_position for limit in ROBOT.limits])


def poses(count: int, seed: int = 0) -> F64:
    return np.random.default_rng(seed).uniform(LOWER, UPPER, (count, 7))


@pytest.fixture(scope='module')
def bullet() -> Any:
    """Give a client with the robot where panda-gym puts it, and its tool link's index."""
    pybullet = pytest.importorskip('pybullet')
    pybullet_data = pytest.importorskip('pybullet_data')
    client = pybullet.connect(pybullet.DIRECT)
    path = f'{pybullet_data.getDataPath()}/franka_panda/panda.urdf'
    body = pybullet.loadURDF(path, ROBOT.base_xyz, useFixedBase=True, physicsClientId=client)
    yield pybullet, client, body
    pybullet.disconnect(client)


def test_forward_agrees_with_pybullet(bullet: Any) -> None:
    """The tool point lies between the finger tips, in PyBullet's URDF the grasp target link."""
    pybullet, client, body = bullet
    names = {
        pybullet.getJointInfo(body, i, physicsClientId=client)[1].decode(): i
        for i in range(pybullet.getNumJoints(body, physicsClientId=client))
    }
    hand = names['panda_grasptarget_hand']
    for joints in poses(20):
        for name, value in zip(ROBOT.arm_joints, joints, strict=True):
            pybullet.resetJointState(body, names[name], float(value), physicsClientId=client)
        state = pybullet.getLinkState(
            body, hand, computeForwardKinematics=True, physicsClientId=client
        )
        pose = KINEMATICS.forward(joints)
        assert np.abs(pose.position - state[4]).max() < 1e-3
        turn = rotations.between(pose.rotation, rotations.from_quaternion(np.array(state[5])))
        assert np.linalg.norm(turn) < 1e-3


def test_the_jacobian_is_the_derivative() -> None:
    for joints in poses(5, seed=1):
        jacobian = KINEMATICS.jacobian(joints)
        for i in range(7):
            step = np.zeros(7)
            step[i] = 1e-6
            after, before = KINEMATICS.forward(joints + step), KINEMATICS.forward(joints - step)
            linear = (after.position - before.position) / 2e-6
            angular = rotations.between(before.rotation, after.rotation) / 2e-6
            assert np.allclose(jacobian[:3, i], linear, atol=1e-6)
            assert np.allclose(jacobian[3:, i], angular, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.floats(-0.15, 0.13), st.floats(-0.2, 0.2), st.floats(0.03, 0.3)),
    st.tuples(*[st.floats(-0.02, 0.02)] * 3),
)
def test_inverse_tracks_the_tool_from_where_the_arm_is(
    place: tuple[float, ...], step: tuple[float, ...]
) -> None:
    """As at the control rate: from one target to the next, which lies near."""
    position = np.array(place)
    start = HOME
    for share in np.linspace(0.1, 1.0, 10):  # on the way there
        between = KINEMATICS.forward(HOME).position * (1 - share) + position * share
        start = KINEMATICS.inverse(between, KINEMATICS.tool_rotation, start).joints
    target = position + np.array(step)
    solution = KINEMATICS.inverse(target, KINEMATICS.tool_rotation, start)
    assert solution.converged
    reached = KINEMATICS.forward(solution.joints)
    assert np.abs(reached.position - target).max() < 1e-6
    assert np.linalg.norm(rotations.between(reached.rotation, KINEMATICS.tool_rotation)) < 1e-6
    assert np.all(solution.joints >= LOWER)
    assert np.all(solution.joints <= UPPER)
    assert np.abs(solution.joints - start).max() < 0.5, 'no jump to another branch'


def test_a_reached_target_leaves_the_joints_as_they_are() -> None:
    pose = KINEMATICS.forward(HOME)
    assert np.array_equal(KINEMATICS.inverse(pose.position, pose.rotation, HOME).joints, HOME)


def test_out_of_reach_is_told_with_what_is_left() -> None:
    far = np.array([1.5, 0.0, 0.2])
    solution = KINEMATICS.inverse(far, KINEMATICS.tool_rotation, HOME)
    assert not solution.converged
    assert solution.position_error > 0.5
    assert np.isfinite(solution.joints).all()


def test_joints_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(InvalidDataError, match='shape'):
        KINEMATICS.forward(np.zeros(6))


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.floats(-3.1, 3.1)] * 3))
def test_rotation_vectors_survive_the_way_through_matrices(values: tuple[float, ...]) -> None:
    vector = np.array(values)
    if np.linalg.norm(vector) > 3.14:
        vector *= 3.14 / np.linalg.norm(vector)
    matrix = rotations.from_quaternion(rotations.from_vector(vector))
    back = rotations.between(np.eye(3), matrix)
    again = rotations.from_quaternion(rotations.from_vector(back))
    assert np.allclose(again, matrix, atol=1e-7)
    assert np.allclose(back, vector, atol=1e-6) or np.linalg.norm(vector) > 3.1
