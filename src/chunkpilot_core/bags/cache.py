"""
Frames of many episodes as memory-mapped files: training streams them from disk.

One ``.npy`` file per field holds all episodes one after the other; ``index.json`` says where each
begins. Files only grow, and the index is replaced after them: a build that was killed goes on
where the last index ends, and whoever reads sees whole episodes only. Where a bag was changed or
left out, a new generation of files is begun beside the old one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import hashlib
from pathlib import Path

from chunkpilot_core.bags import growing
from chunkpilot_core.bags.cache_build import alone, Build, Progress
from chunkpilot_core.bags.cache_index import CachedEpisode, INDEX, Index, Skipped
from chunkpilot_core.bags.frames import FrameOptions, Frames
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import ActionSpace, F32
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Cache:
    """
    N frames of all episodes, ``dt_s`` apart within each; arrays are memory-mapped, read only.

    ``state`` (N, S), ``features`` (N, F), ``goal`` (N, G), ``actions`` (N, A), ``source`` (N,),
    ``valid`` (N,), ``stamps_ns`` (N,), ``skew_s`` (N,) as in :class:`Frames`; ``images`` by camera
    (N, rows, columns, 3). ``episodes[i].rows`` are the rows of an episode.
    """

    folder: Path
    episodes: tuple[CachedEpisode, ...]
    skipped: tuple[Skipped, ...]
    options: FrameOptions
    dt_s: float
    space: ActionSpace
    state_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    goal_names: tuple[str, ...]
    state: F32
    features: F32
    goal: F32
    actions: F32
    source: NDArray[np.uint8]
    valid: NDArray[np.bool_]
    stamps_ns: NDArray[np.int64]
    skew_s: F32
    images: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: str | Path) -> 'Cache':
        """
        Map the arrays of a cache, which may still be growing.

        :raises BagError: there is none, or it is damaged
        """
        folder = Path(folder)
        index = Index.read(folder)
        if index is None or index.layout is None or not index.episodes:
            raise BagError(f'{folder}: no {INDEX} of a cache of bags in it')
        layout = index.layout
        arrays = {
            name: growing.mapped(index.data(folder) / f'{name}.npy', dtype, tail, index.frames)
            for name, (dtype, tail) in layout.arrays().items()
        }
        images = {name: arrays.pop(f'images.{name}') for name in layout.cameras}
        return cls(
            folder,
            tuple(index.episodes),
            tuple(index.skipped),
            index.options,
            layout.dt_s,
            layout.space,
            layout.state_names,
            layout.feature_names,
            layout.goal_names,
            **arrays,
            images=images,
        )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all inputs: state, features, goal."""
        return self.state_names + self.feature_names + self.goal_names

    @property
    def sha256(self) -> str:
        """Hash of all bags and of how frames were made of them, for manifests."""
        parts = [self.space.hash, repr(self.dt_s), repr(self.options)]
        parts += [episode.sha256 for episode in self.episodes]
        return hashlib.sha256('\n'.join(parts).encode()).hexdigest()

    def frames(self, number: int) -> Frames:
        """Return one episode; its arrays are views of the mapped files."""
        episode = self.episodes[number]
        at = episode.rows
        return Frames(
            episode.id,
            self.dt_s,
            self.space,
            self.stamps_ns[at],
            self.state_names,
            self.state[at],
            self.feature_names,
            self.features[at],
            self.goal_names,
            self.goal[at],
            self.actions[at],
            self.source[at],
            self.valid[at],
            self.skew_s[at],
            episode.outcome,
            episode.reward,
            episode.task_kind,
            episode.task_text,
            episode.metadata,
            {name: array[at] for name, array in self.images.items()},
        )


def build(
    bags: Sequence[Path],
    folder: str | Path,
    options: FrameOptions | None = None,
    *,
    strict: bool = False,
    progress: Progress | None = None,
) -> Cache:
    """
    Bring a cache up to date with bags: only those are read that are not in it yet.

    :param bags: one episode each; what else was in the cache leaves it
    :param strict: raise on the first bag that makes no frames, instead of noting it in ``skipped``
    :param progress: called with the number of bags that are done, and of all
    :raises BagError: no bag makes frames, the folder can't be written or is being built by another
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            index = Build(folder, options or FrameOptions(), strict, progress).run(bags)
    except OSError as error:
        raise BagError(f'{folder}: cache not written: {error}') from error
    if not index.episodes:
        reasons = '; '.join(f'{entry.bag}: {entry.reason}' for entry in index.skipped[:3])
        raise BagError(f'{folder}: none of {len(bags)} bags makes frames: {reasons or "no bags"}')
    return Cache.open(folder)


__all__ = ['Cache', 'CachedEpisode', 'FrameOptions', 'Skipped', 'build']
