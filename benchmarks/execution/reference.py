"""
What every system under test gets: one smooth motion, and a policy that knows it but is slow.

Numpy only, so that it also runs where a rival is installed and chunkpilot is not.

Who means what by row i of a chunk whose observation is from t: chunkpilot reaches it at the *end*
of its interval, at t + (i + 1) dt; LeRobot sends it at the *start*, at t + i dt. Each system's
fake policy answers in its own convention, so both are on the reference when nothing is late.
"""

from dataclasses import asdict, dataclass
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HZ = 30.0
DT_S = 1.0 / HZ
JOINTS = 6
AMPLITUDE = 0.5  # [rad], no joint goes further from its middle; the fastest reaches 1.35 rad/s
END, START = 1, 0  # of a row's interval: when its target is reached
DEGREES = 180.0 / np.pi

F64 = NDArray[np.float64]

_FREQUENCIES = np.linspace(0.15, 0.325, JOINTS)  # [Hz]
_PHASES = np.linspace(0.0, 5.0, JOINTS)
_OVERTONE, _SHARE = 2.3, 0.25
_OVERTONE_PHASES = np.linspace(1.0, 8.0, JOINTS)


def positions(times_s: F64 | float) -> F64:
    """
    Return the reference.

    :param times_s: shape (N,) or one time, seconds since the run began
    :returns: shape (N, 6) or (6,) [rad]
    """
    turns = 2.0 * np.pi * np.multiply.outer(np.asarray(times_s, float), _FREQUENCIES)
    slow = (1.0 - _SHARE) * np.sin(turns + _PHASES)
    values: F64 = AMPLITUDE * (slow + _SHARE * np.sin(_OVERTONE * turns + _OVERTONE_PHASES))
    return values


@dataclass(frozen=True)
class Case:
    """One measurement. Everything in seconds; ``noise`` in amplitudes; the horizon in rows."""

    system: str
    strategy: str
    horizon: int
    latency_s: float
    jitter_s: float = 0.0
    noise: float = 0.0
    cold_start_s: float = 0.0
    in_flight: int = 1
    seconds: float = 20.0
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name, and what the progress bar shows."""
        parts = [self.system, self.strategy, f'H{self.horizon}', f'{self.latency_s:g}s']
        parts += [f'jitter{self.jitter_s:.3g}'] * (self.jitter_s > 0.0)
        parts += [f'noise{self.noise:g}'] * (self.noise > 0.0)
        parts += [f'cold{self.cold_start_s:g}'] * (self.cold_start_s > 0.0)
        parts += [f'x{self.in_flight}'] * (self.in_flight > 1)
        return '-'.join(parts).replace('/', '_')

    def write(self, file: Path) -> None:
        """Hand the case to another process."""
        file.write_text(json.dumps(asdict(self)), encoding='utf-8')

    @classmethod
    def read(cls, file: Path) -> 'Case':
        """Take a case from another process."""
        return cls(**json.loads(file.read_text(encoding='utf-8')))


class FakePolicy:
    """
    Answers with the reference, late and a little off.

    Call k takes ``latency(k)`` and its rows are all displaced by ``offset(k)``: both depend on the
    case's seed and k alone, so every system gets the same.
    """

    def __init__(self, case: Case, row_end: int) -> None:
        self._case = case
        self._rows: F64 = np.arange(case.horizon, dtype=np.float64) + row_end

    def latency_s(self, call: int) -> float:
        """Return how long call ``call`` (0 is the first) takes."""
        case = self._case
        draw = self._random(call).standard_normal()
        cold_s = case.cold_start_s if call == 0 else 0.0
        return max(0.1 * case.latency_s, case.latency_s + case.jitter_s * draw) + cold_s

    def offset(self, call: int) -> F64:
        """Return what all rows of a call are displaced by, shape (6,) [rad]."""
        random = self._random(call)
        random.standard_normal()  # the latency's
        return self._case.noise * AMPLITUDE * random.standard_normal(JOINTS)

    def rows(self, observed_s: float, call: int) -> F64:
        """
        Return a chunk, shape (H, 6) [rad].

        :param observed_s: time of the observation, seconds since the run began
        """
        times: F64 = observed_s + DT_S * self._rows
        return positions(times) + self.offset(call)

    def _random(self, call: int) -> np.random.Generator:
        return np.random.default_rng((self._case.seed, call))
