"""Delay quantiles and lateness."""

from chunkpilot_core.timing import DelayEstimator, Pacer
import pytest

MS = 1_000_000


def test_before_any_answer_the_initial_guess_stands() -> None:
    delays = DelayEstimator(initial_s=0.3)
    assert delays.value_s == 0.3
    assert delays.cold_start_s != delays.cold_start_s  # NaN


def test_a_cold_start_is_kept_apart_and_forgotten_with_the_first_warm_answer() -> None:
    delays = DelayEstimator()
    delays.add(1.2)
    assert (delays.cold_start_s, delays.value_s) == (1.2, 1.2)  # nothing better is known
    delays.add(0.2)
    assert (delays.cold_start_s, delays.value_s, delays.at(0.5)) == (1.2, 0.2, 0.2)


def test_a_restarted_policy_is_cold_again_while_the_window_stays() -> None:
    delays = DelayEstimator()
    for delay_s in (9.0, 0.1, 0.1):
        delays.add(delay_s)
    delays.restart()
    delays.add(5.0)
    assert (delays.cold_start_s, delays.value_s) == (5.0, 0.1)


def test_quantile_is_rounded_up_so_that_few_samples_give_their_largest() -> None:
    delays = DelayEstimator(window=100, quantile=0.95)
    delays.add(0.0)
    for i in range(1, 11):
        delays.add(i / 10)
    assert delays.value_s == 1.0
    for i in range(11, 101):
        delays.add(i / 10)
    assert delays.value_s == 9.6  # the 96th of 1..100
    assert delays.at(0.5) == 5.1


def test_old_answers_leave_the_window() -> None:
    delays = DelayEstimator(window=4)
    for delay_s in (0.0, 8.0, 8.0, 0.1, 0.1, 0.1, 0.1):
        delays.add(delay_s)
    assert delays.value_s == 0.1


def late(pacer: Pacer, *ticks_ms: float) -> list[float]:
    return [round(pacer.lateness_s(round(tick * MS)) * 1e3, 6) for tick in ticks_ms]


def test_lateness_is_against_absolute_deadlines() -> None:
    assert late(Pacer(0.01), 0, 10, 21, 30, 44, 50) == [0, 0, 1, 0, 4, 0]


def test_missed_deadlines_are_skipped_not_made_up_for() -> None:
    assert late(Pacer(0.01), 0, 45, 50, 60) == [0, 35, 0, 0]


def test_a_late_first_tick_does_not_hide_lateness_for_ever() -> None:
    pacer = Pacer(0.01)
    assert late(pacer, 4, 10, 20, 36) == [0, 0, 0, 6]


def test_a_period_is_taken_from_its_own_grid() -> None:
    assert late(Pacer(0.005), 0, 5, 10, 15) == pytest.approx([0, 0, 0, 0])
