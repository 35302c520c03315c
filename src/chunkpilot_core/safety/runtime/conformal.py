"""
Thresholds that successful episodes stay below with a given probability.

Split conformal prediction: of n episodes that were not used for fitting, the
ceil((n + 1)(1 - alpha))-th smallest of their largest scores; a further episode exceeds it with a
probability of at most alpha. The time-varying threshold is FAIL-Detect's functional band
(arXiv 2503.08558): mean and spread by time from one half of the episodes, the width in units of
the spread from the other, one-sided.
"""

from collections.abc import Sequence
import math

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import F64
import numpy as np

MIN_EPISODES = 20
MIN_HELD_OUT = MIN_EPISODES // 2
SPREAD_FLOOR = 0.1  # of the mean spread: a bin that hardly varied in a few episodes may yet


def rank(count: int, alpha: float) -> int:
    """Return which of ``count`` ascending scores is the threshold; more than that = none is."""
    return math.ceil((count + 1) * (1.0 - alpha) - 1e-9)


def constant(peaks: Sequence[float], alpha: float) -> tuple[float, float]:
    """
    Return a constant threshold, and the false alarm rate per episode that it guarantees.

    Where there are too few episodes for ``alpha`` the largest score is taken.

    :param peaks: largest score of each episode
    :raises ConfigError: fewer than 10 episodes
    """
    count = len(peaks)
    if count < MIN_HELD_OUT:
        raise ConfigError(f'{count} episodes held out, at least {MIN_HELD_OUT} are needed')
    wanted = min(rank(count, alpha), count)
    return float(np.sort(peaks)[wanted - 1]), max(alpha, 1.0 - count / (count + 1))


def band(
    fitting: Sequence[F64], held_out: Sequence[F64], bins: int, alpha: float
) -> tuple[F64, float]:
    """
    Return a threshold by time, shape (bins,), and the false alarm rate that it guarantees.

    :param fitting: per episode (K, 2) times in bins and scores, for mean and spread
    :param held_out: the same of other episodes, for the width
    :raises ConfigError: fewer than 10 episodes held out
    """
    mean, spread = _course(fitting, bins)
    peaks = []
    for entries in held_out:
        at = np.minimum(entries[:, 0].astype(int), bins - 1)
        away = (entries[:, 1] - mean[at]) / spread[at]
        peaks.append(float(away.max(initial=-math.inf)))
    width, guaranteed = constant(peaks, alpha)
    return mean + max(width, 0.0) * spread, guaranteed


def _course(fitting: Sequence[F64], bins: int) -> tuple[F64, F64]:
    """Return mean and spread by time; where few episodes lasted that long, those before."""
    entries = np.concatenate(fitting)
    at = np.minimum(entries[:, 0].astype(int), bins - 1)
    overall = entries[:, 1]
    mean, spread = np.full(bins, overall.mean()), np.full(bins, overall.std())
    floor = max(SPREAD_FLOOR * float(overall.std()), 1e-9)
    for i in range(bins):
        scores = overall[at == i]
        if len(scores) >= MIN_EPISODES // 2:
            mean[i], spread[i] = scores.mean(), scores.std()
        elif i:
            mean[i], spread[i] = max(mean[i - 1], overall.mean()), spread[i - 1]
    return mean, np.maximum(spread, floor)
