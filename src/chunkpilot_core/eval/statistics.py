"""How sure the figures of an evaluation are: intervals of success, differences and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from statistics import NormalDist

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import F64
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its two-sided interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return the three numbers for a JSON file."""
        return {'value': self.value, 'low': self.low, 'high': self.high}


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """
    Return the share of successes with Wilson's score interval (1927, no continuity correction).

    Unlike the textbook interval it stays inside [0, 1] and is honest at 0 and 100 %.

    :raises ConfigError: no trials, or more successes than trials
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ConfigError(
            f'{successes} successes of {trials} trials: needs 0 <= successes <= trials'
        )
    z = _z(confidence)
    share = successes / trials
    centre = (successes + z * z / 2) / (trials + z * z)
    spread = share * (1 - share) / trials + z * z / (4 * trials * trials)
    half = z * math.sqrt(spread) / (1 + z * z / trials)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Estimate(share, low, high)


def paired_difference(
    first: Sequence[bool], second: Sequence[bool], confidence: float = 0.95
) -> Estimate:
    """
    Return success of ``second`` minus that of ``first`` on the same episodes.

    The interval is method 10 of Newcombe, "Improved confidence intervals for the difference
    between binomial proportions based on paired data", Statistics in Medicine 17 (1998): the
    Wilson limits of both shares squared and added, with their correlation. Sound for few
    discordant pairs, where a bootstrap gives a width of zero.

    :param first: success of each episode, same order as ``second``
    :raises ConfigError: no episodes, or not as many of each
    """
    if len(first) != len(second) or not first:
        raise ConfigError(f'{len(first)} and {len(second)} episodes cannot be paired')
    pairs = list(zip(first, second, strict=True))
    both = sum(a and b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    only_first = sum(a and not b for a, b in pairs)
    trials = len(pairs)
    one = wilson(both + only_second, trials, confidence)
    other = wilson(both + only_first, trials, confidence)
    phi = _correlation(both, only_second, only_first, trials - both - only_second - only_first)
    down, up = one.value - one.low, one.high - one.value
    other_down, other_up = other.value - other.low, other.high - other.value
    below = down**2 - 2 * phi * down * other_up + other_up**2
    above = other_down**2 - 2 * phi * other_down * up + up**2
    value = one.value - other.value
    return Estimate(value, value - math.sqrt(max(below, 0.0)), value + math.sqrt(max(above, 0.0)))


def _correlation(both: int, only_one: int, only_other: int, neither: int) -> float:
    trials = both + only_one + only_other + neither
    margins = (
        (both + only_one) * (only_other + neither) * (both + only_other) * (only_one + neither)
    )
    if margins == 0:
        return 0.0
    product: float = both * neither - only_one * only_other
    if product > 0:  # a positive correlation would narrow the interval: Newcombe is cautious
        product = max(product - trials / 2, 0.0)
    return product / math.sqrt(margins)


def paired_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 4000,
) -> Estimate:
    """
    Return the ratio of two means over the same episodes, with a percentile bootstrap interval.

    Episodes are resampled as pairs (Efron and Tibshirani 1993, chapter 13).

    :param numerator: e.g. policy calls of each episode with the first strategy, shape (N,)
    :param denominator: those of the other strategy on the same episodes, shape (N,)
    :param seed: of the resampling, so that a table can be reproduced
    :raises ConfigError: no episodes, not as many of each, or a denominator of zero
    """
    above, below = np.asarray(numerator, float), np.asarray(denominator, float)
    if above.shape != below.shape or above.ndim != 1 or not len(above):
        raise ConfigError(f'{above.shape} and {below.shape} episodes cannot be paired')
    if np.any(below < 0) or below.sum() <= 0:
        raise ConfigError('the denominator of a ratio must be positive')
    picks = np.random.default_rng(seed).integers(0, len(above), (resamples, len(above)))
    sums = below[picks].sum(axis=1)
    ratios: F64 = above[picks].sum(axis=1)[sums > 0] / sums[sums > 0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, (tail, 1 - tail))
    return Estimate(float(above.sum() / below.sum()), float(low), float(high))


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ConfigError(f'confidence {confidence}, must be between 0 and 1')
    return NormalDist().inv_cdf((1 + confidence) / 2)
