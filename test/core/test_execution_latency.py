"""Starvation and smoothness against latency: the targets of EXECUTION.md, on a virtual clock."""

import re
from typing import Any

from benchmarks import bench_latency
from benchmarks.bench_latency import GRID, JITTER, law
from benchmarks.execution.reference import Case, DT_S, positions
import numpy as np
import pytest

COVERED = [case for case in GRID if law(*case) == 0.0]
SHORT = [case for case in GRID if law(*case) > 0.0]


def play(
    horizon: int,
    latency_s: float,
    jitter: float = 0.0,
    *,
    for_s: float = 60.0,
    noise: float = 0.0,
    cold_s: float = 0.0,
    seed: int = 0,
    in_flight: int = 1,
    **config: Any,
) -> bench_latency.Score:
    """
    Let a policy of that latency be executed on a virtual clock.

    :param jitter: standard deviation of the latency as a fraction of its mean
    """
    case = Case(
        'test',
        'fixed',
        horizon,
        latency_s,
        jitter * latency_s,
        noise,
        cold_s,
        in_flight,
        for_s,
        seed,
    )
    return bench_latency.play(case, **config)


@pytest.mark.parametrize(('horizon', 'latency_s'), COVERED)
def test_where_the_horizon_is_twice_the_delay_nothing_starves_and_all_is_smooth(
    horizon: int, latency_s: float
) -> None:
    score = play(horizon, latency_s, for_s=12.0)
    assert score.starved == 0.0
    assert score.rms_error <= 0.05
    assert score.largest_step <= 0.12
    assert score.stats.chunks_rejected == 0


@pytest.mark.parametrize(('horizon', 'latency_s'), SHORT)
@pytest.mark.parametrize('jitter', [0.0, JITTER])
def test_beyond_it_starvation_is_below_the_law(
    horizon: int, latency_s: float, jitter: float
) -> None:
    """The law is that of a fixed latency; the sum of two that vary is more often too long."""
    allowed = law(horizon, latency_s) + (0.0 if jitter == 0.0 else 2.0)
    one = play(horizon, latency_s, jitter, for_s=20.0).starved
    assert one <= allowed
    if horizon * DT_S > 0.6 * latency_s:
        assert play(horizon, latency_s, jitter, for_s=20.0, in_flight=2).starved < one


@pytest.mark.parametrize(
    ('horizon', 'latency_s', 'config'),
    [
        (50, 0.1, {}),
        (50, 0.3, {}),
        (20, 0.1, {}),
        (16, 0.1, {}),
        (10, 0.1, {}),
        (50, 0.6, {'in_flight': 2}),
        (20, 0.3, {'in_flight': 2, 'starvation': 'stretch'}),
        (50, 0.6, {'starvation': 'stretch'}),
    ],
)
def test_jitter_of_a_third_starves_hardly_a_tick(horizon, latency_s, config) -> None:
    """Where two delays that follow each other are often longer than the horizon, two requests."""
    runs = [play(horizon, latency_s, JITTER, seed=seed, for_s=30.0, **config) for seed in range(4)]
    starved = [run.starved for run in runs]
    assert np.mean(starved) <= 0.5


def least_starved(horizon_s: float, latency_s: float) -> float:
    """
    Return the least starvation of one request in flight with jitter, of all thresholds [%].

    Whoever asks when r is left to run starves for max(d - r, 0), then has what was not run of H.
    """
    draws = np.random.default_rng(0).standard_normal(10_000)
    delays = np.maximum(latency_s * (1 + JITTER * draws), 0.1 * latency_s) + DT_S / 2
    shares = []
    for threshold in horizon_s * np.array([0.5, 0.6, 0.7, 1.0]):
        left, starved, passed = threshold, 0.0, 0.0
        for delay in delays:
            starved += max(delay - left, 0.0)
            rest = horizon_s - min(left, delay)
            passed += delay + max(rest - threshold, 0.0)
            left = min(threshold, rest)
        shares.append(100.0 * starved / passed)
    return float(min(shares))


@pytest.mark.parametrize(('horizon', 'latency_s'), [(50, 0.6), (20, 0.3), (10, 0.1)])
def test_with_one_request_jitter_costs_what_no_schedule_can_avoid(horizon, latency_s) -> None:
    """It is 0.8 % at H 50, 0.6 s and 7 % at H 20, 0.3 s, although H >= 2 d."""
    least = least_starved(horizon * DT_S, latency_s)
    runs = [play(horizon, latency_s, JITTER, seed=seed) for seed in range(3)]
    starved = float(np.mean([run.starved for run in runs]))
    assert starved <= 1.35 * least + 0.3


@pytest.mark.parametrize(('horizon', 'latency_s'), [(50, 0.1), (50, 0.6), (20, 0.3), (10, 0.1)])
@pytest.mark.parametrize('jitter', [0.0, JITTER])
def test_chunks_that_disagree_are_merged_without_a_jump(horizon, latency_s, jitter) -> None:
    score = play(horizon, latency_s, jitter, noise=0.1, for_s=30.0)
    assert score.largest_step <= 0.2
    assert score.rms_error <= 0.15  # the noise itself is 0.1


@pytest.mark.parametrize('shape', ['linear', 'exponential'])
def test_weighted_means_are_smooth_where_plans_agree(shape: str) -> None:
    score = play(20, 0.3, for_s=12.0, merge=shape)
    assert score.rms_error <= 0.05
    assert score.largest_step <= 0.12


def test_without_a_merge_the_noise_goes_to_the_joints() -> None:
    assert play(20, 0.1, noise=0.1, for_s=12.0, blend_rows=0).largest_step > 0.25


@pytest.mark.parametrize('latency_s', [0.1, 0.3])
def test_a_cold_start_is_counted_apart_and_forgotten_within_five_chunks(latency_s: float) -> None:
    planned: list[float] = []

    def watch(executor, now_ns) -> None:
        if executor.stats().chunks_accepted == 5 and not planned:
            planned.append(executor.stats().delay_p95_s)

    score = play(20, latency_s, cold_s=1.0, for_s=12.0, watch=watch)
    assert score.starved == 0.0
    assert score.stats.cold_start_s == pytest.approx(1.0 + latency_s, abs=1e-6)
    assert planned[0] == pytest.approx(latency_s, abs=1e-6)
    warm = play(20, latency_s, for_s=12.0)
    assert score.stats.policy_calls <= warm.stats.policy_calls


def test_a_policy_of_two_milliseconds_is_asked_two_ticks_early() -> None:
    left: list[float] = []

    def watch(executor, now_ns) -> None:
        stats = executor.stats()
        if stats.policy_calls > stats.chunks_accepted > 3:
            left.append(stats.remaining_rows * DT_S)

    play(20, 0.002, period_s=0.01, for_s=6.0, watch=watch)
    assert min(left) >= 0.022
    assert max(left) <= 0.033


def test_two_requests_are_evenly_spaced_and_each_has_an_observation_of_its_own() -> None:
    asked: list[float] = []

    def watch(executor, now_ns) -> None:
        if len(asked) < executor.stats().policy_calls:
            asked.append(now_ns / 1e9)

    score = play(50, 1.0, for_s=30.0, in_flight=2, watch=watch)
    assert score.starved <= 1.5  # at the start; with one request it is 1 - H / (2 d) = 17 %
    apart = np.diff(asked[4:])
    assert apart.min() >= 0.4
    assert apart.max() <= 0.7


def test_a_second_request_is_not_sent_where_it_does_not_help() -> None:
    one, two = (play(50, 0.3, for_s=30.0, in_flight=n).stats.policy_calls for n in (1, 2))
    assert one == two


def test_a_policy_that_serves_one_at_a_time_is_not_hurt_by_two_requests() -> None:
    one, two = (play(50, 1.2, for_s=30.0, in_flight=n, serial=True).starved for n in (1, 2))
    assert two <= one + 1.0


def test_rows_by_time_keep_up_with_a_scene_that_moves_on() -> None:
    """A first chunk that is late by a second runs from its start, or from where the time is."""
    rested, timed = (
        play(50, 0.3, for_s=4.0, cold_s=0.7, alignment=alignment)
        for alignment in ('executed', 'time')
    )
    assert timed.starved == rested.starved == 0.0
    assert timed.stats.late_rows > rested.stats.late_rows + 25
    errors = [
        np.abs(run.trace.values - positions(run.trace.sent_s))[20:30].max()
        for run in (rested, timed)
    ]
    assert errors[1] < 0.01 < 0.3 < errors[0]


def test_stretching_takes_the_place_of_stopping() -> None:
    stopped, stretched = (
        play(50, 1.0, for_s=30.0, starvation=starvation).starved
        for starvation in ('decelerate', 'stretch')
    )
    assert stopped > 15.0
    assert stretched == 0.0


@pytest.mark.parametrize(
    ('horizon', 'latency_s', 'config'),
    [
        (50, 1.0, {}),
        (16, 0.3, {}),
        (16, 1.0, {}),
        (20, 0.6, {'in_flight': 2}),
        (16, 0.6, {'in_flight': 2}),
        (50, 1.0, {'alignment': 'time'}),
    ],
)
def test_it_is_said_how_many_ticks_will_starve(horizon: int, latency_s: float, config) -> None:
    said: list[str] = []

    def watch(executor, now_ns) -> None:
        said.append(executor.warning())

    score = play(horizon, latency_s, for_s=60.0, watch=watch, **config)
    assert said[0] == ''  # nothing is known yet
    share = re.search(r'about (\d+)% of the ticks will starve', said[-1])
    assert share, said[-1]
    assert float(share[1]) == pytest.approx(score.starved, abs=4.0)
    assert f'horizons of {horizon} rows' in said[-1]


def test_nothing_is_said_where_the_horizon_is_long_enough() -> None:
    said: set[str] = set()
    play(20, 0.3, for_s=6.0, watch=lambda executor, now_ns: said.add(executor.warning()))
    play(50, 1.0, for_s=6.0, in_flight=2, watch=lambda executor, _: said.add(executor.warning()))
    assert said == {''}
