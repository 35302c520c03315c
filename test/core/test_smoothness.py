"""The signal of Action Upcycling and its threshold, against cases computed by hand."""

import math

from chunkpilot_core import smoothness, spaces
from chunkpilot_core.types import ActionGroup, ActionSpace, Kind, Rotation
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest


def joints(count: int = 2, *, velocity: float = 2.0, kind: Kind = Kind.JOINT_POSITION):
    """Absolute joints (or their velocities) and a gripper; rows in rad."""
    names = tuple(f'j{i}' for i in range(count))
    ones, zeros, size = (1.0,) * count, (0.0,) * count, count + 1
    return spaces.make(
        ActionSpace(
            (
                ActionGroup(
                    'arm', 0, count, kind, names=names, unit='rad', scale=ones, offset=zeros
                ),
                ActionGroup('gripper', count, size, Kind.GRIPPER, scale=(1.0,), offset=(0.0,)),
            ),
            lower=(-9.0,) * size,
            upper=(9.0,) * size,
            max_velocity=(velocity,) * size,
            max_acceleration=(10.0,) * size,
            max_jerk=(1000.0,) * size,
            irreversible=(False,) * size,
        )
    )


def test_relative_rows_are_their_own_velocity_and_the_gripper_is_left_out() -> None:
    # one unit is 0.05 m in 0.04 s = 1.25 m/s, the limit is 1 m/s
    scale = smoothness.motion_scale(spaces.ee_delta_space(), 0.04)
    rows = np.array([[0.4, 0, 0, 1], [0.8, 0, 0, -1], [0.8, 0.4, 0, 1]], np.float32)
    velocity = smoothness.velocities(scale, rows, np.full(4, 9.0, np.float32))
    assert velocity == pytest.approx(np.array([[0.5, 0, 0], [1.0, 0, 0], [1.0, 0.5, 0]]))
    assert smoothness.fluctuation(velocity, 1) == pytest.approx([0.5, 1.0])


def test_absolute_rows_are_differenced_from_the_last_command_not_from_zero() -> None:
    scale = smoothness.motion_scale(joints(), 0.5)  # difference / (0.5 s * 2 rad/s) = difference
    rows = np.array([[5.0, 0, 0], [5.5, 0, 1], [5.5, 0.5, 0]], np.float32)
    velocity = smoothness.velocities(scale, rows, np.array([4.5, 0, 7], np.float32))
    assert velocity == pytest.approx(np.array([[0.5, 0], [0.5, 0], [0, 0.5]]))
    assert smoothness.fluctuation(velocity, 1) == pytest.approx([0.0, math.sqrt(0.5)])


def test_velocity_rows_are_velocities() -> None:
    scale = smoothness.motion_scale(joints(kind=Kind.JOINT_VELOCITY), 0.5)
    rows = np.array([[1.0, 0, 0], [2.0, 0, 0]], np.float32)
    velocity = smoothness.velocities(scale, rows, np.zeros(3, np.float32))
    assert velocity == pytest.approx(np.array([[0.5, 0], [1.0, 0]]))


def test_units_do_not_matter() -> None:
    """The same motion in another unit gives the same signal: that is what limits are for."""
    rows = np.cumsum(np.random.default_rng(0).normal(size=(10, 3)), axis=0).astype(np.float32)
    last = np.zeros(3, np.float32)
    radians = smoothness.velocities(smoothness.motion_scale(joints(velocity=2.0), 0.1), rows, last)
    degrees = smoothness.velocities(
        smoothness.motion_scale(joints(velocity=math.degrees(2.0)), 0.1), np.rad2deg(rows), last
    )
    assert degrees == pytest.approx(radians, rel=1e-5)


def test_a_quaternion_and_its_negative_are_no_motion() -> None:
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
    ones = (1.0,) * 7
    space = spaces.make(
        ActionSpace(
            (group,), tuple(-9 * i for i in ones), (9.0,) * 7, ones, ones, ones, (False,) * 7
        )
    )
    rows = np.zeros((4, 7), np.float32)
    rows[:, 6] = [1, -1, -1, 1]
    scale = smoothness.motion_scale(space, 0.1)
    velocity = smoothness.velocities(scale, rows, np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    assert not velocity.any()


SIGNAL = np.array([0.1, 0.2, 0.2, 0.5])  # c_3 .. c_6 of a chunk of 6 rows, h = 2


@pytest.mark.parametrize(
    ('tau', 'rows'),
    [(0.0, 2), (0.09, 2), (0.1, 3), (0.15, 3), (0.2, 5), (0.49, 5), (0.5, 6), (math.inf, 6)],
)
def test_longest_smooth_run_counts_ties(tau: float, rows: int) -> None:
    assert smoothness.longest(SIGNAL, 2, tau) == rows


def test_tau_zero_still_extends_a_uniform_tail() -> None:
    assert smoothness.longest(np.array([0.0, 0.0, 0.1]), 4, 0.0) == 6


def test_nothing_to_extend() -> None:
    velocity = np.ones((4, 3))
    assert smoothness.fluctuation(velocity, 4).shape == (0,)
    assert smoothness.longest(np.zeros(0), 4, math.inf) == 4
    assert smoothness.longest(smoothness.fluctuation(velocity[:1], 1), 1, math.inf) == 1


@pytest.mark.parametrize(
    ('ratio', 'tau'),
    [
        (0.5, 0.0),
        (1.0, 0.0),
        (1.25, 0.1),  # ceil(0.25 * 2 * 2) = 1st smallest
        (1.5, 0.1),  # 2nd
        (1.51, 0.2),  # ceil(2.04) = 3rd
        (2.0, 0.3),  # 4th
        (3.0, 0.9),  # 8th and last
        (3.01, math.inf),  # more than there are
    ],
)
def test_threshold_is_the_quantile_at_which_r_h_rows_run(ratio: float, tau: float) -> None:
    pool = np.array([[0.1, 0.3, 0.5, 0.9], [0.1, 0.2, 0.4, 0.6]])  # N = 2, h = 2, H = 6
    assert smoothness.threshold(pool, 2, 2, ratio) == tau


def test_rounding_does_not_ask_for_one_more() -> None:
    """(1.1 - 1) * 10 * 10 is 10.000000000000009 in floating point, and 10 is meant."""
    assert smoothness.threshold(np.arange(100.0), 10, 10, 1.1) == 9.0


@given(
    chunks=st.integers(1, 30),
    base=st.integers(1, 6),
    more=st.integers(0, 12),
    ratio=st.floats(1.0, 4.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_mean_horizon_of_the_pool_is_the_ratio(chunks, base, more, ratio, seed) -> None:
    """By construction, up to ties and to the end of the chunks."""
    changes = np.random.default_rng(seed).random((chunks, more)) + 1e-9
    pool = np.cumsum(changes, axis=1)
    tau = smoothness.threshold(pool, chunks, base, ratio)
    rows = [smoothness.longest(signal, base, tau) for signal in pool]
    wanted = min((ratio - 1.0) * base * chunks, chunks * more)
    assert wanted - 1e-6 <= sum(rows) - base * chunks <= wanted + 1.0
