"""
Limits of the surprise interrupt from undisturbed successful episodes, and the file of them.

Conformal prediction per source (arXiv 2107.07511; Bonferroni over the sources): of n chunks the
ceil((n + 1)(1 - alpha / k))-th smallest departure, or the largest where n is too small for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
import json
import math
from pathlib import Path

from chunkpilot_core import files
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import PolicySpec

FORMAT = 'chunkpilot-surprise-1'
MIN_CHUNKS = 20
FLOORS = {  # less does not matter to a chunk, whatever a quiet simulation says
    'object': 0.01,
    'contact': 0.015,
    'held': 0.02,
    'goal': 0.01,
    'arm': 0.01,
    'joints': 0.02,
}
SWITCHES = ('grip',)  # it happened or not: nothing to calibrate


@dataclass(frozen=True)
class SurpriseLimits:
    """
    Limits by source, and what they were measured with.

    ``alpha`` is the share of undisturbed chunks that may be cut, ``guaranteed`` what the number of
    ``chunks`` really promises.
    """

    policy: str
    policy_version: int
    space_hash: str
    task: str
    horizon: int
    episodes: int
    chunks: int
    alpha: float
    guaranteed: float
    limits: Mapping[str, float]
    format: str = FORMAT

    def check(self, spec: PolicySpec) -> None:
        """
        Refuse another policy or space; another version of the policy is allowed.

        :raises ConfigError: naming what was calibrated and what is in force
        """
        for what, own, other in (
            ('policy', self.policy, spec.name),
            ('action space', self.space_hash, spec.space.hash),
        ):
            if own != other:
                raise ConfigError(
                    f'surprise calibration is for {what} {own!r}, in force is {other!r}; '
                    'run `chunkpilot calibrate surprise` again'
                )


def make(
    spec: PolicySpec,
    task: str,
    episodes: int,
    departures: Sequence[Mapping[str, float]],
    alpha: float,
) -> SurpriseLimits:
    """
    Return limits from the largest departures of each chunk.

    :param departures: per chunk, by source
    :param alpha: share of undisturbed chunks that may be cut, above 0
    :raises ConfigError: too few chunks
    """
    count = len(departures)
    if count < MIN_CHUNKS:
        raise ConfigError(f'surprise calibration needs {MIN_CHUNKS} chunks, got {count}')
    sources = sorted({source for chunk in departures for source in chunk} - set(SWITCHES))
    rank = math.ceil((count + 1) * (1.0 - alpha / max(len(sources), 1)))
    limits = {}
    for source in sources:
        # a source that a chunk never showed did not depart in it
        ordered = sorted(chunk.get(source, 0.0) for chunk in departures)
        limits[source] = max(ordered[min(rank, count) - 1], FLOORS.get(source, 0.0))
    return SurpriseLimits(
        spec.name,
        spec.version,
        spec.space.hash,
        task,
        spec.horizon,
        episodes,
        count,
        alpha,
        alpha if rank <= count else len(sources) / (count + 1),
        limits,
    )


def save(limits: SurpriseLimits, path: str | Path) -> None:
    """Write limits as JSON."""
    files.write(path, json.dumps(asdict(limits), indent=1) + '\n')


def load(path: str | Path) -> SurpriseLimits:
    """
    Read limits.

    :raises ConfigError: unreadable, of another format, or not finite and above 0
    """
    try:
        found = SurpriseLimits(**files.parsed(files.read(path)))
        fits = found.format == FORMAT and all(
            type(limit) in (float, int) and math.isfinite(limit) and limit > 0.0
            for limit in found.limits.values()
        )
    except TypeError as error:  # keys of another file, e.g. of `chunkpilot calibrate upcycling`
        raise ConfigError(
            f'surprise calibration {path}: not a file of `chunkpilot calibrate surprise`'
        ) from error
    except (OSError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f'surprise calibration {path}: {error}') from error
    if not fits:
        raise ConfigError(f'surprise calibration {path}: not limits of format {FORMAT!r}')
    return found
