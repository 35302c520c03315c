"""How long the policy takes on the virtual clock: fixed, with jitter, or as recorded in a file."""

import copy
from pathlib import Path

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import F64
import numpy as np


class LatencyModel:
    """
    Latencies of successive inferences, the same for every strategy and every run.

    Jitter is Gaussian around the mean, cut off at 0. A trace is played from a place that the seed
    picks, over and over.
    """

    def __init__(self, mean_s: float = 0.05, jitter_s: float = 0.0, trace: str = '') -> None:
        """
        Describe the latency.

        :param trace: file with one latency [s] a line ('#' comments); replaces mean and jitter
        :raises ConfigError: negative numbers, or a trace that can't be read
        """
        if not (0.0 <= mean_s < 60.0 and 0.0 <= jitter_s < 60.0):
            raise ConfigError(f'latency {mean_s} s, jitter {jitter_s} s: allowed 0 to 60 s')
        self.mean_s, self.jitter_s = mean_s, jitter_s
        self._trace = read_trace(trace) if trace else np.zeros(0)
        self._random = np.random.default_rng(0)
        self._next = 0

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self._random = np.random.default_rng((seed, 1))
        if len(self._trace):
            self._next = int(self._random.integers(len(self._trace)))

    def __call__(self) -> float:
        """Return the next latency [s]."""
        if len(self._trace):
            latency = self._trace[self._next]
            self._next = (self._next + 1) % len(self._trace)
            return float(latency)
        return max(self.mean_s + self.jitter_s * float(self._random.standard_normal()), 0.0)

    def history(self, count: int, seed: int) -> list[float]:
        """Return latencies of inferences before the episode that begins with ``seed`` [s]."""
        before = copy.copy(self)
        before.reset(seed ^ 0x5EED)
        return [before() for _ in range(count)]


def read_trace(path: str | Path) -> F64:
    """
    Read latencies, shape (N,) [s].

    :raises ConfigError: unreadable, empty, or a value outside of 0 to 60 s
    """
    try:
        lines = Path(path).read_text(encoding='utf-8').splitlines()
        values = np.array([float(line) for line in lines if line and not line.startswith('#')])
    except (OSError, ValueError) as error:
        raise ConfigError(f'latency trace {path}: {error}') from error
    if not len(values):
        raise ConfigError(f'latency trace {path}: is empty')
    bad = values[~((values >= 0) & (values < 60))]
    if len(bad):
        raise ConfigError(f'latency trace {path}: {bad[0]} s, allowed 0 to 60 s')
    return values
