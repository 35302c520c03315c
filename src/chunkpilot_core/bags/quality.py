"""
What is wrong with recorded episodes as training data, and which frames to leave out for it.

Nothing is corrected: a report names episode, frames, the number found and its limit. Training
leaves out what a user chooses of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.bags import disagreement, quality_checks
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError, damage, UnknownNameError
import numpy as np
from numpy.typing import NDArray

VERSION = 1
KINDS = {
    'idle': 'the robot is told to stand still for long',
    'frozen': 'measured values do not change although the robot is told to move',
    'duplicated': 'the same action again and again: recorded faster than it was sent',
    'saturated': 'actions at their bound: what was wanted is not known',
    'unknown': 'observations with unknown numbers, which no policy takes',
    'gaps': 'frames without rows or with an old observation, between good ones',
    'disagrees': 'another action than other episodes where the observation is the same',
}
DEFAULT_KINDS = ('idle', 'frozen', 'disagrees')
"""What is left out if nothing else is said: frames that teach the wrong thing."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class QualityOptions:
    """From where on something is a finding."""

    idle_s: float = option(
        1.0, 'longest stretch without motion that is none', unit='s', min=0.0, max=3600.0
    )
    still: float = option(
        0.01, 'motion below this share of what a row can ask for is none', min=0.0, max=1.0
    )
    frozen_s: float = option(
        0.5, 'longest stretch of equal measurements in motion', unit='s', min=0.0, max=3600.0
    )
    duplicated: float = option(
        0.3, 'largest share of moving frames that repeat the one before', min=0.0, max=1.0
    )
    saturated: float = option(
        0.5, 'largest share of frames with a motion column at its bound', min=0.0, max=1.0
    )
    unknown: float = option(0.1, 'largest share of frames with unknown numbers', min=0.0, max=1.0)
    gaps: float = option(0.02, 'largest share of frames that are not valid', min=0.0, max=1.0)
    disagrees: float = option(
        0.8,
        'largest distance (root mean square) to the actions of other episodes where observations '
        'are nearest, beyond their own, in standard deviations of actions',
        min=0.0,
        max=100.0,
    )
    neighbours: int = option(5, 'nearest frames of other episodes that are asked', min=1, max=100)
    compared_frames: int = option(
        20_000, 'frames that are compared, evenly taken of all', min=100, max=200_000
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something about one episode: ``value`` is above ``limit``.

    ``frames`` are the stretches [start, stop) of the episode that it is about.
    """

    kind: str
    episode: int
    bag: str
    value: float
    limit: float
    text: str
    frames: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about the episodes of a cache, in their order."""

    options: QualityOptions
    findings: tuple[Finding, ...]
    episodes: int
    frames: int

    @property
    def counts(self) -> Mapping[str, int]:
        """Episodes with a finding, by kind."""
        found = Counter(kind for kind, _ in {(f.kind, f.episode) for f in self.findings})
        return {kind: found[kind] for kind in KINDS}

    def left_out(self, cache: Cache, kinds: Sequence[str] = DEFAULT_KINDS) -> NDArray[np.bool_]:
        """
        Return which frames (N,) of the cache are to be left out.

        :raises UnknownNameError: a kind that there is not
        """
        mask, known = np.zeros(len(cache), bool), _known(kinds)
        for finding in self.findings:
            if finding.kind in known:
                start = cache.episodes[finding.episode].start
                for first, last in finding.frames:
                    mask[start + first : start + last] = True
        return mask

    def to_json(self, cache: Cache) -> dict[str, Any]:
        """Return the report with all that is needed to use it later."""
        return {
            'version': VERSION,
            'dt_s': cache.dt_s,
            'episodes': self.episodes,
            'frames': self.frames,
            'options': asdict(self.options),
            'counts': dict(self.counts),
            'findings': [
                {**asdict(finding), 'sha256': cache.episodes[finding.episode].sha256}
                for finding in self.findings
            ],
        }


def report(
    cache: Cache, options: QualityOptions | None = None, progress: Progress | None = None
) -> Report:
    """
    Look through all episodes of a cache; memory does not grow with their number.

    :param progress: called with the number of episodes that are done, and of all
    """
    options = options or QualityOptions()
    findings: list[Finding] = []
    moves = quality_checks.columns_that_move(cache)
    for number, episode in enumerate(cache.episodes):
        frames = cache.frames(number)
        for found in quality_checks.checks(frames, moves, options):
            findings.append(Finding(found[0], number, episode.bag, *found[1:]))
        if progress is not None:
            progress(number + 1, len(cache.episodes))
    findings += _disagreements(cache, options)
    findings.sort(key=lambda finding: (finding.episode, list(KINDS).index(finding.kind)))
    return Report(options, tuple(findings), len(cache.episodes), len(cache))


def _disagreements(cache: Cache, options: QualityOptions) -> Iterator[Finding]:
    scores, limit = disagreement.scores(
        cache, options.neighbours, options.compared_frames, options.disagrees
    )
    for number, score in scores.items():
        if score > limit:
            episode = cache.episodes[number]
            text = (
                f'acts {score:.2f} standard deviations away from other episodes where '
                'observations are nearest'
            )
            whole = ((0, episode.length),)
            yield Finding('disagrees', number, episode.bag, score, limit, text, whole)


def read_left_out(
    file: str | Path, cache: Cache, kinds: Sequence[str] = DEFAULT_KINDS
) -> NDArray[np.bool_]:
    """
    Return which frames (N,) of a cache a report that was written says to leave out.

    Episodes are known by the hashes of their bags; the report may be about more or fewer.

    :raises BagError: the file is damaged, or about frames with another period
    :raises UnknownNameError: a kind that there is not
    """
    mask = np.zeros(len(cache), bool)
    known = _known(kinds)
    by_hash = {episode.sha256: episode for episode in cache.episodes}
    try:
        content = files.parsed(files.read(file))
        if content['version'] != VERSION or content['dt_s'] != cache.dt_s:
            raise BagError(
                f'{file}: version {content["version"]} about frames of {content["dt_s"]} s, must '
                f'be version {VERSION} about frames of {cache.dt_s} s'
            )
        for finding in content['findings']:
            episode = by_hash.get(finding['sha256'])
            if episode is None or finding['kind'] not in known:
                continue
            for first, last in finding['frames']:
                if not 0 <= first <= last <= episode.length:
                    raise ValueError(f'frames {first} to {last} of {episode.length}')
                mask[episode.start + first : episode.start + last] = True
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BagError(f'{file}: no report of the quality of data: {damage(error)}') from error
    return mask


def _known(kinds: Sequence[str]) -> set[str]:
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownNameError('kind of finding', kind, KINDS)
    return set(kinds)
