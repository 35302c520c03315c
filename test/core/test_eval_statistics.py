"""Intervals against published examples."""

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.eval.statistics import paired_difference, paired_ratio, wilson
import pytest


@pytest.mark.parametrize(
    ('successes', 'trials', 'low', 'high'),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_newcombes_table(
    successes: int, trials: int, low: float, high: float
) -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3."""
    estimate = wilson(successes, trials)
    assert estimate.value == successes / trials
    assert estimate.low == pytest.approx(low, abs=5e-5)
    assert estimate.high == pytest.approx(high, abs=5e-5)


def test_wilson_at_certain_success_is_not_certain() -> None:
    estimate = wilson(100, 100)
    assert estimate.high == 1.0
    assert estimate.low == pytest.approx(0.9630, abs=1e-4)


def _episodes(both: int, only_second: int, only_first: int, neither: int):
    first = [True] * both + [False] * only_second + [True] * only_first + [False] * neither
    second = [True] * both + [True] * only_second + [False] * only_first + [False] * neither
    return first, second


def test_paired_difference_matches_the_published_example() -> None:
    """Bentur et al. 2009, in Fagerland, Lydersen, Laake, chapter 8, square and add."""
    first, second = _episodes(1, 1, 7, 12)
    estimate = paired_difference(first, second)
    assert estimate.value == pytest.approx(-0.286, abs=5e-4)
    assert estimate.low == pytest.approx(-0.507, abs=5e-4)
    assert estimate.high == pytest.approx(-0.026, abs=5e-4)


def test_paired_difference_of_equal_results_has_a_width() -> None:
    estimate = paired_difference([True] * 50, [True] * 50)
    assert estimate.value == 0.0
    assert estimate.low < -0.02 < 0.02 < estimate.high


def test_paired_difference_changes_its_sign_with_the_order() -> None:
    first, second = _episodes(80, 6, 2, 12)
    forth, back = paired_difference(first, second), paired_difference(second, first)
    assert (forth.value, forth.low, forth.high) == pytest.approx(
        (-back.value, -back.high, -back.low)
    )


def test_paired_ratio_is_reproducible_and_brackets_a_constant_ratio() -> None:
    calls = [8, 9, 10, 12, 7]
    estimate = paired_ratio([2 * n for n in calls], calls, seed=3)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2.0, 2.0, 2.0))
    noisy = paired_ratio([8, 9, 11, 12], [5, 6, 4, 8], seed=3)
    assert noisy == paired_ratio([8, 9, 11, 12], [5, 6, 4, 8], seed=3)
    assert noisy.low < noisy.value < noisy.high


@pytest.mark.parametrize(
    'call',
    [
        lambda: wilson(0, 0),
        lambda: wilson(3, 2),
        lambda: paired_difference([], []),
        lambda: paired_difference([True], [True, False]),
        lambda: paired_ratio([1.0], [0.0], seed=0),
    ],
)
def test_impossible_counts_are_refused(call) -> None:
    with pytest.raises(ConfigError):
        call()
