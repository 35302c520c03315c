"""The calibration file of Action Upcycling: signals of one policy, space and base horizon."""

from dataclasses import asdict, dataclass, field
import json
import math
from pathlib import Path

from chunkpilot_core import files, smoothness
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
        wanted = smoothness.rank(self.chunks, self.base, ratio)
        if wanted <= 0:
            return 0.0
        return self.signals[wanted - 1] if wanted <= len(self.signals) else math.inf

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
    files.write(path, json.dumps(asdict(calibration)) + '\n')


def load(path: str | Path) -> Calibration:
    """
    Read a calibration.

    :raises ConfigError: unreadable, of another format, or not finite
    """
    try:
        data = files.parsed(files.read(path))
        found = Calibration(**{**data, 'signals': tuple(data['signals'])})
        fault = _fault(found)
    except KeyError as error:
        raise ConfigError(f'upcycling calibration {path}: lacks {error.args[0]!r}') from None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f'upcycling calibration {path}: {error}') from error
    if fault:
        raise ConfigError(f'upcycling calibration {path}: {fault}')
    return found


def _fault(found: Calibration) -> str:
    """Return what makes no sense in a file that somebody may have edited, '' if nothing."""
    if found.format != FORMAT:
        return f'not of format {FORMAT!r}'
    for name, least in (('base', 1), ('horizon', 1), ('chunks', 1)):
        value = getattr(found, name)
        if type(value) is not int or value < least:
            return f'{name} is {value!r}, must be a whole number from {least} on'
    signals = np.asarray(found.signals, np.float64)
    each = found.horizon - found.base
    if signals.shape != (max(each, 0) * found.chunks,):
        return (
            f'signals of shape {signals.shape}, expected those of {found.chunks} chunks with '
            f'{each} rows beyond the base horizon'
        )
    if not np.all(np.isfinite(signals)) or np.any(signals < 0.0):
        return 'signals must be finite and 0 or more'
    return '' if np.all(np.diff(signals) >= 0.0) else 'signals must ascend'
