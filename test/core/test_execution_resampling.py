"""What a chunk says between its rows."""

import math

from chunkpilot_core import spaces
from chunkpilot_core.execution.runtime.resampling import Resampler
from chunkpilot_core.types import ActionGroup, ActionSpace, Kind, Rotation
import numpy as np
import pytest

EE = spaces.ee_delta_space()


def rows_along_x(values, grips=None) -> np.ndarray:
    rows = np.zeros((len(values), 4), np.float32)
    rows[:, 0] = values
    rows[:, 3] = 1.0 if grips is None else grips
    return rows


def test_on_its_own_grid_a_chunk_is_what_it_is() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32)
    for first in (0.0, 1e-9, -1e-9):
        np.testing.assert_array_equal(Resampler(EE)(rows, first, 6), rows)


def test_between_two_rows_both_count_and_the_gripper_is_that_of_the_nearer() -> None:
    rows = rows_along_x([0.1, 0.3, 0.7], [1, -1, 1])
    found = Resampler(EE)(rows, 0.25, 2)
    assert found[:, 0] == pytest.approx([0.15, 0.4])
    assert found[:, 3] == pytest.approx([1, -1])
    assert Resampler(EE)(rows, 0.5, 2)[:, 3] == pytest.approx([-1, 1])


def test_past_its_ends_a_chunk_says_nothing() -> None:
    found = Resampler(EE)(rows_along_x([0.1, 0.3, 0.7]), -1.25, 6)[:, 0]
    assert found == pytest.approx([np.nan, 0.1, 0.25, 0.6, np.nan, np.nan], nan_ok=True)
    assert Resampler(EE)(rows_along_x([0.1]), 0.4, 2)[:, 0] == pytest.approx(
        [0.1, np.nan], nan_ok=True
    )


def test_a_steady_motion_is_the_same_whatever_the_grid() -> None:
    """Of absolute rows the nearest would lead or lag by up to half of what a row moves."""
    group = ActionGroup(
        'arm', 0, 1, Kind.JOINT_POSITION, names=('j',), unit='rad', scale=(1.0,), offset=(0.0,)
    )
    one = (1.0,)
    space = spaces.make(ActionSpace((group,), (-9.0,), (9.0,), one, one, one, (False,)))
    rows = np.arange(8, dtype=np.float32)[:, None]
    for first in (0.0, 0.2, 0.5, 0.9):
        found = Resampler(space)(rows, first, 6)[:, 0]
        assert found == pytest.approx(first + np.arange(6), abs=1e-6)


def test_orientations_stay_orientations() -> None:
    group = ActionGroup(
        'arm',
        0,
        7,
        Kind.EE_POSE,
        'world',
        rotation=Rotation.QUATERNION,
        scale=(1.0,) * 7,
        offset=(0.0,) * 7,
    )
    one = (1.0,) * 7
    space = spaces.make(
        ActionSpace((group,), (-9.0,) * 7, (9.0,) * 7, one, one, one, (False,) * 7)
    )
    rows = np.zeros((2, 7), np.float32)
    rows[0, 6] = 1.0
    rows[1, 5:] = -math.sin(0.4), -math.cos(0.4)  # the other sign of 0.8 rad about z
    turned = Resampler(space)(rows, 0.5, 1)[0, 3:]
    assert np.abs(turned) == pytest.approx([0, 0, math.sin(0.2), math.cos(0.2)], abs=1e-6)
    assert turned[2] * turned[3] > 0.0
