"""Pacing: no drift, bounded bursts, honest lag."""

from chunkpilot_core.sim.pacer import Pacer
from hypothesis import given
from hypothesis import strategies as st
import pytest


def test_late_wake_ups_do_not_add_up():
    pacer = Pacer(0.01, 0.0)
    steps = sum(pacer.due(0.01 * i + (0.004 if i % 3 else 0.0005)) for i in range(1, 1001))
    assert steps == 1000
    assert pacer.rate_hz == pytest.approx(100.0, rel=0.02)
    assert pacer.slipped_s == 0.0


def test_a_gap_is_made_up_for_in_bursts():
    pacer = Pacer(0.01, 0.0, max_burst=5)
    assert pacer.due(0.1201) == 5
    assert pacer.lag_s == pytest.approx(0.06, abs=1e-3)
    assert [pacer.due(0.1201 + 0.01 * i) for i in range(1, 4)] == [5, 4, 1]
    assert pacer.lag_s == 0.0


def test_a_gap_that_is_too_long_is_given_up_and_counted():
    pacer = Pacer(0.01, 0.0, max_burst=5, max_lag_s=0.2)
    assert pacer.due(3.0) == 5
    assert pacer.slipped_s == pytest.approx(2.94, abs=0.02)
    assert pacer.due(3.0) <= 1
    assert pacer.due(3.0101) >= 1


@given(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=200))
def test_never_ahead_of_time_and_never_a_burst_too_long(gaps):
    now, done, pacer = 0.0, 0, Pacer(0.01, 0.0)
    for gap in gaps:
        now += gap
        steps = pacer.due(now)
        assert 0 <= steps <= 5
        done += steps
        assert done * 0.01 <= now + 1e-6
        assert pacer.lag_s >= 0.0
