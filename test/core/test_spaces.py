"""Rows to targets and back, for every kind, reference and rotation."""

from dataclasses import replace

from chunkpilot_core import robot as robots
from chunkpilot_core import rotations, spaces
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    F64,
    JointState,
    Kind,
    Reference,
    Rotation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

ROBOT = robots.load('panda')
HOME = np.array(ROBOT.home)
KINEMATICS = Kinematics(ROBOT)
GRIPPER = ('gripper', Kind.GRIPPER, Reference.NONE, Rotation.NONE, 1)


def space_of(*groups: tuple[str, Kind, Reference, Rotation, int]) -> ActionSpace:
    made, start = [], 0
    for name, kind, reference, rotation, size in groups:
        names = ROBOT.arm_joints if size == 7 and not kind.cartesian else ()
        made.append(
            ActionGroup(
                name, start, start + size, kind, 'world' if kind.cartesian else '', reference,
                rotation, names, scale=(0.05,) * size, offset=(0.01,) * size,
            )
        )  # fmt: skip
        start += size
    ones = (1.0,) * start
    return spaces.make(
        ActionSpace(tuple(made), (-1.0,) * start, ones, ones, ones, ones, (False,) * start)
    )


SPACES = {
    'shipped': spaces.ee_delta_space(),
    'joints': space_of(('arm', Kind.JOINT_POSITION, Reference.NONE, Rotation.NONE, 7), GRIPPER),
    'joint deltas': space_of(
        ('arm', Kind.JOINT_DELTA, Reference.COMMANDED, Rotation.NONE, 7), GRIPPER
    ),
    'from chunk start': space_of(
        ('arm', Kind.JOINT_DELTA, Reference.CHUNK_START, Rotation.NONE, 7), GRIPPER
    ),
    'turning': space_of(('arm', Kind.EE_DELTA, Reference.COMMANDED, Rotation.VECTOR, 6), GRIPPER),
    'pose, vector': space_of(('arm', Kind.EE_POSE, Reference.NONE, Rotation.VECTOR, 6), GRIPPER),
    'pose, quaternion': space_of(
        ('arm', Kind.EE_POSE, Reference.NONE, Rotation.QUATERNION, 7), GRIPPER
    ),
    'delta, quaternion': space_of(
        ('arm', Kind.EE_DELTA, Reference.COMMANDED, Rotation.QUATERNION, 7), GRIPPER
    ),
    'measured': space_of(('arm', Kind.EE_DELTA, Reference.MEASURED, Rotation.NONE, 3), GRIPPER),
}


def reference_of(space: ActionSpace) -> F64:
    state = JointState(0, ROBOT.joints, np.array([*HOME, 0.02, 0.02]), np.zeros(9))
    return spaces.from_joints(space, KINEMATICS, state)


@pytest.mark.parametrize('name', SPACES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_survive_the_way_to_targets_and_back(name: str, seed: int) -> None:
    space = SPACES[name]
    rows = np.random.default_rng(seed).uniform(-1, 1, (16, space.size)).astype(np.float32)
    if space.groups[0].rotation is Rotation.QUATERNION:
        turns = rows[:, 3:7] * 0.05 + 0.01
        rows[:, 3:7] = (turns / np.linalg.norm(turns, axis=1, keepdims=True) - 0.01) / 0.05
    targets = spaces.resolve(space, rows, reference_of(space))
    if space.groups[0].rotation is not Rotation.NONE:
        assert np.linalg.norm(targets[:, 3:7], axis=1) == pytest.approx(1.0)
    assert targets.shape == (16, space.target_size)
    back = spaces.to_rows(space, targets, reference_of(space))
    assert np.abs(back - rows).max() < 1e-4


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_survive_inverse_kinematics_too(seed: int) -> None:
    """What is learned from: rows -> targets -> joints as sent -> targets -> rows."""
    space = spaces.ee_delta_space()
    random = np.random.default_rng(seed)
    rows = (0.2 * random.uniform(-1, 1, (16, 4))).astype(np.float32)
    rows[:, 3] = random.choice([-1.0, 1.0])
    start = reference_of(space)
    joints, sent = HOME, []
    for target in spaces.resolve(space, rows, start):
        solution = KINEMATICS.inverse(target[:3], KINEMATICS.tool_rotation, joints)
        assert solution.converged
        joints = solution.joints
        state = np.array([*joints, target[3] / 2, target[3] / 2])
        sent.append(
            spaces.from_joints(space, KINEMATICS, JointState(0, ROBOT.joints, state, np.zeros(9)))
        )
    back = spaces.to_rows(space, np.array(sent), start)
    assert np.abs(back - rows).max() < 1e-4


def test_relative_rows_count_from_their_reference() -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[:, 0] = 1.0
    commanded = spaces.resolve(SPACES['joint deltas'], rows, reference_of(SPACES['joint deltas']))
    from_start = spaces.resolve(
        SPACES['from chunk start'], rows, reference_of(SPACES['from chunk start'])
    )
    assert np.allclose(commanded[:, 0] - HOME[0], [0.06, 0.12, 0.18])
    assert np.allclose(from_start[:, 0] - HOME[0], 0.06)


def test_joints_are_found_by_name() -> None:
    space = SPACES['joints']
    values = np.array([*HOME, 0.01, 0.03])
    order = np.random.default_rng(0).permutation(9)
    names = tuple(ROBOT.joints[i] for i in order)
    shuffled = JointState(0, names, values[order], np.zeros(9))
    target = spaces.from_joints(space, KINEMATICS, shuffled)
    assert np.allclose(target, [*HOME, 0.04])
    with pytest.raises(InvalidDataError, match='panda_joint1'):
        spaces.from_joints(space, KINEMATICS, replace(shuffled, names=('a',) * 9))


def test_interpolation_goes_straight_and_turns_evenly() -> None:
    space = SPACES['turning']
    before = reference_of(space)
    rows = np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]], np.float32)
    after = spaces.resolve(space, rows, before)[0]
    middle = spaces.interpolate(space, before, after, 0.5)
    assert np.allclose(middle[:3], (before[:3] + after[:3]) / 2)
    halves = [
        rotations.to_vector(rotations.multiply(b[3:7], rotations.conjugate(a[3:7])))
        for a, b in ((before, middle), (middle, after))
    ]
    assert np.allclose(*halves, atol=1e-9)
    assert np.linalg.norm(middle[3:7]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'scale': (0.0,) * 7}, 'not 0'),
        ({'scale': (1.0,)}, '7 values'),
        ({'start': 1}, 'columns'),
        ({'reference': Reference.COMMANDED}, 'does not go with'),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    space = SPACES['joints']
    broken = replace(space.groups[0], **change)
    with pytest.raises(ConfigError, match=words):
        spaces.make(replace(space, groups=(broken, *space.groups[1:])))


def test_the_hash_tells_spaces_apart() -> None:
    hashes = {space.hash for space in SPACES.values()}
    assert len(hashes) == len(SPACES)
    assert spaces.ee_delta_space().hash == spaces.ee_delta_space().hash
    assert spaces.ee_delta_space(step_m=0.04).hash != spaces.ee_delta_space().hash
