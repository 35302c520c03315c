"""The curve within a row, against values computed by hand."""

from chunkpilot_core.execution.runtime.spline import border_velocity, piece
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest


def test_the_velocity_between_rows_is_their_mean_unless_the_motion_turns_or_ends() -> None:
    paces = np.array([1.0, 2.0, 1.0, 1.0, 0.0, -1.0, 1.0, -6.0])
    ahead = np.array([1.0, 4.0, 9.0, -1.0, 1.0, -3.0, 0.0, -1.0])
    assert list(border_velocity(paces, ahead)) == [1.0, 3.0, 3.0, 0.0, 0.0, -2.0, 0.0, -3.0]


def test_a_piece_has_the_given_ends_and_hand_computed_values_between() -> None:
    moved, start, end = (np.array(values) for values in ([1.0, 1, 2], [1.0, 0, 0], [1.0, 0, 4]))
    for u, distance, velocity in (
        (0.0, [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        (0.25, [0.25, 5 / 32, 1 / 8], [1.0, 9 / 8, 1.0]),  # u, 3 u^2 - 2 u^3, 2 u^2
        (0.5, [0.5, 0.5, 0.5], [1.0, 1.5, 2.0]),
        (1.0, [1.0, 1.0, 2.0], [1.0, 0.0, 4.0]),
    ):
        at = piece(u, moved, start, end)
        assert at[0] == pytest.approx(distance)
        assert at[1] == pytest.approx(velocity)


PACE = st.floats(-1e3, 1e3)


@given(PACE, PACE, PACE)
def test_between_border_velocities_it_never_goes_back(before: float, moved: float, after: float):
    paces = np.array([before, moved, after])
    start, end = border_velocity(paces[:-1], paces[1:])
    for u in np.linspace(0.0, 1.0, 21):
        distance, velocity = piece(u, paces[1], start, end)
        assert velocity * moved >= -1e-9 * moved**2
        assert abs(distance) <= abs(moved) * (1 + 1e-9)
