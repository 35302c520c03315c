"""Way points: what lies between them is straight, in every kind of space."""

import math

from chunkpilot_core import spaces, waypoints
from chunkpilot_core.types import ActionGroup, ActionSpace, Kind, Reference, Rotation
import numpy as np
import pytest

EE = spaces.ee_delta_space()


def space_of(kind: Kind, size: int, **changes) -> ActionSpace:
    group = ActionGroup(
        'arm',
        0,
        size,
        kind,
        names=('j1', 'j2') if size == 2 else (),
        scale=(1.0,) * size,
        offset=(0.0,) * size,
        **changes,
    )
    one = (1.0,) * size
    return spaces.make(
        ActionSpace((group,), (-9.0,) * size, (9.0,) * size, one, one, one, (False,) * size)
    )


def straightened(space: ActionSpace, rows, marked, last_row=None) -> np.ndarray:
    given = np.array(rows, np.float32)
    last = np.zeros(space.size, np.float32) if last_row is None else np.array(last_row, np.float32)
    return waypoints.straightened(space, given, np.array(marked, bool), last)


def test_displacements_up_to_a_way_point_are_spread_evenly() -> None:
    """The way point itself is reached when it was, and rows after the last one stay dense."""
    rows = [[0.1, 0.4, 0, 1], [0.5, -0.4, 0, 1], [0.3, 0.3, 0, -1], [0.7, 0, 0, -1]]
    found = straightened(EE, rows, [0, 0, 1, 0])
    assert found[:3, 0] == pytest.approx([0.3] * 3)
    assert found[:3, 1] == pytest.approx([0.1] * 3)
    assert found[3] == pytest.approx(rows[3])
    assert found[:, 3] == pytest.approx([1, 1, -1, -1])  # grippers are not interpolated


def test_a_run_of_way_points_is_dense() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32)
    np.testing.assert_array_equal(straightened(EE, rows, [1] * 6), rows)
    np.testing.assert_array_equal(straightened(EE, rows, [0] * 6), rows)
    mixed = straightened(EE, rows, [1, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(mixed[[0, 1, 4, 5]], rows[[0, 1, 4, 5]])
    assert mixed[2:4, :3] == pytest.approx(np.tile(rows[2:4, :3].mean(axis=0), (2, 1)), abs=1e-6)


def test_absolute_rows_lead_straight_on_from_the_last_command() -> None:
    space = space_of(Kind.JOINT_POSITION, 2)
    rows = [[1, 9], [1, 9], [7, 9], [8, 3]]
    found = straightened(space, rows, [0, 0, 1, 1], [1, 6])
    assert found == pytest.approx(np.array([[3, 7], [5, 8], [7, 9], [8, 3]]))


def test_rows_from_the_start_of_the_chunk_are_places_too() -> None:
    space = space_of(Kind.JOINT_DELTA, 2, reference=Reference.CHUNK_START)
    found = straightened(space, [[9, 0], [2, 4], [5, 5]], [0, 1, 0])
    assert found == pytest.approx(np.array([[1, 2], [2, 4], [5, 5]]))


def test_turns_are_interpolated_along_the_shorter_arc() -> None:
    turning = {'reference': Reference.COMMANDED, 'rotation': Rotation.VECTOR}
    space = space_of(Kind.EE_DELTA, 6, **turning)
    rows = np.zeros((3, 6))
    rows[:, 5] = [0.9, 0.1, 0.2]  # about z
    found = straightened(space, rows, [0, 0, 1])
    assert found[:, 5] == pytest.approx([0.4] * 3, abs=1e-6)
    pose = space_of(Kind.EE_POSE, 7, rotation=Rotation.QUATERNION)
    upright, turned = [0, 0, 0, 1], [0, 0, math.sin(0.4), math.cos(0.4)]
    poses = [[5, 5, 5, *upright], [2, 0, 0, *turned]]
    found = straightened(pose, poses, [0, 1], [0, 0, 0, *upright])
    assert found[0] == pytest.approx([1, 0, 0, 0, 0, math.sin(0.2), math.cos(0.2)], abs=1e-6)


def test_velocities_are_left_alone() -> None:
    space = space_of(Kind.JOINT_VELOCITY, 2)
    rows = np.array([[1, 0], [5, 0], [0, 1]], np.float32)
    np.testing.assert_allclose(straightened(space, rows, [0, 0, 1]), rows)


def test_demonstrations_are_relabelled_consistently() -> None:
    """Two demonstrations that wiggle differently to the same way point become the same."""
    random = np.random.default_rng(1)
    straight = np.tile([0.2, 0.1, 0.0, 1.0], (8, 1))
    marked = [0, 0, 0, 0, 1, 1, 1, 1]
    labels = []
    for _ in range(2):
        wiggle = np.zeros((8, 4))
        wiggle[:5, :3] = random.normal(scale=0.1, size=(5, 3))
        wiggle[:5] -= wiggle[:5].mean(axis=0)
        labels.append(straightened(EE, straight + wiggle, marked))
    np.testing.assert_allclose(labels[0], labels[1], atol=1e-6)
    np.testing.assert_allclose(labels[0], straight, atol=1e-6)
