"""The calibration file of Action Upcycling: signals of one policy, space and base horizon."""

from dataclasses import asdict, dataclass, field
import json
from pathlib import Path

from chunkpilot_core import smoothness
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import F64, PolicySpec
import numpy as np

FORMAT = 'chunkpilot-upcycling-1'
MIN_CHUNKS = 5


@dataclass(frozen=True)
class Calibration:
    """Sorted signals of ``chunks`` chunks, and what they were measured with."""

    policy: str
    policy_version: int
    space_hash: str
    base: int
    horizon: int
    dt_s: float
    chunks: int
    signals: tuple[float, ...] = field(repr=False)
    format: str = FORMAT

    def threshold(self, ratio: float) -> float:
        """Return tau for a ratio; one calibration serves all."""
        return smoothness.threshold(np.array(self.signals), self.chunks, self.base, ratio)

    def mean_horizon(self, ratio: float) -> float:
        """Return the rows that run on average, gripper gate apart; at most those of a chunk."""
        smooth = np.searchsorted(self.signals, self.threshold(ratio), side='right')
        return self.base + (float(smooth) / self.chunks if ratio > 1.0 else 0.0)

    def check(self, spec: PolicySpec, base: int) -> None:
        """
        Refuse another policy, space or base horizon; another version of the policy is allowed.

        :raises ConfigError: naming what was calibrated and what is in force
        """
        for what, own, other in (
            ('policy', self.policy, spec.name),
            ('action space', self.space_hash, spec.space.hash),
            ('chunk length', self.horizon, spec.horizon),
            ('row period', self.dt_s, spec.dt_s),
            ('base horizon', self.base, base),
        ):
            if own != other:
                raise ConfigError(
                    f'upcycling calibration is for {what} {own!r}, in force is {other!r}; '
                    'run `chunkpilot calibrate upcycling` again'
                )


def make(spec: PolicySpec | None, base: int, pool: F64) -> Calibration:
    """
    Return a calibration from the signals (N, H - h) of N chunks.

    :raises ConfigError: too few chunks, or no policy that they come from
    """
    if spec is None or len(pool) < MIN_CHUNKS:
        raise ConfigError(f'upcycling calibration needs {MIN_CHUNKS} chunks, got {len(pool)}')
    signals = tuple(float(value) for value in np.sort(pool, axis=None))
    return Calibration(
        spec.name,
        spec.version,
        spec.space.hash,
        base,
        spec.horizon,
        spec.dt_s,
        len(pool),
        signals,
    )


def save(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration as JSON."""
    Path(path).write_text(json.dumps(asdict(calibration)) + '\n', encoding='utf-8')


def load(path: str | Path) -> Calibration:
    """
    Read a calibration.

    :raises ConfigError: unreadable, of another format, or not finite
    """
    try:
        data = json.loads(Path(path).read_text(encoding='utf-8'))
        found = Calibration(**{**data, 'signals': tuple(data['signals'])})
        fits = found.format == FORMAT and bool(np.all(np.isfinite(found.signals)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'upcycling calibration {path}: {error}') from error
    if not fits:
        raise ConfigError(f'upcycling calibration {path}: not of format {FORMAT!r}')
    return found
