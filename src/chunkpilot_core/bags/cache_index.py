"""The index of a cache of frames: what its files hold, as JSON that is checked when it is read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chunkpilot_core import config, files, spaces
from chunkpilot_core.bags.frames import FrameOptions, Frames
from chunkpilot_core.errors import BagError, ChunkpilotError, damage
from chunkpilot_core.types import ActionSpace, EpisodeOutcome, RowSource
import numpy as np

VERSION = 1
INDEX = 'index.json'
MAX_BYTES = 2**30  # an index of a million episodes


@dataclass(frozen=True, slots=True)
class CachedEpisode:
    """
    One episode: rows ``start`` to ``stop`` of every array.

    ``bag`` is where it was read, ``sha256`` the bag's hash; ``valid`` counts valid frames,
    ``sources`` all frames by name of :class:`RowSource`.
    """

    id: str
    bag: str
    sha256: str
    start: int
    stop: int
    outcome: EpisodeOutcome
    reward: float
    task_kind: str
    task_text: str
    valid: int
    sources: Mapping[str, int]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, frames: Frames, bag: str, sha256: str, start: int) -> 'CachedEpisode':
        """Describe frames that are written from row ``start`` on."""
        counts = np.bincount(frames.source, minlength=len(RowSource))
        return cls(
            frames.episode_id,
            bag,
            sha256,
            start,
            start + len(frames),
            frames.outcome,
            frames.reward,
            frames.task_kind,
            frames.task_text,
            int(frames.valid.sum()),
            {source.name.lower(): int(counts[source]) for source in RowSource if counts[source]},
            dict(frames.metadata),
        )

    @property
    def length(self) -> int:
        """Number of frames."""
        return self.stop - self.start

    @property
    def rows(self) -> slice:
        """Its rows of every array."""
        return slice(self.start, self.stop)

    @property
    def success(self) -> bool:
        """Whether the task was done."""
        return self.outcome is EpisodeOutcome.SUCCESS


@dataclass(frozen=True, slots=True)
class Skipped:
    """A bag that is not in the cache, and why."""

    bag: str
    reason: str


@dataclass(slots=True)
class Layout:
    """What the frames of all episodes have in common; the first episode says."""

    dt_s: float
    space: ActionSpace
    state_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    goal_names: tuple[str, ...]
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and columns of the images of each."""

    @classmethod
    def of(cls, frames: Frames) -> 'Layout':
        """Return the layout of one episode."""
        cameras = {name: (int(a.shape[1]), int(a.shape[2])) for name, a in frames.images.items()}
        return cls(
            frames.dt_s,
            frames.space,
            frames.state_names,
            frames.feature_names,
            frames.goal_names,
            cameras,
        )

    def difference(self, other: 'Layout') -> str:
        """Say in what another layout differs, '' for nothing."""
        if other.space.hash != self.space.hash:
            return f'action space {other.space.hash}, the cache has {self.space.hash}'
        for part in ('dt_s', 'state_names', 'feature_names', 'goal_names', 'cameras'):
            own, got = getattr(self, part), getattr(other, part)
            if own != got:
                return f'{part} {_short(got)}, the cache has {_short(own)}'
        return ''

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return type of a number and shape of a row, by name of the file."""
        return {
            'state': ('<f4', (len(self.state_names),)),
            'features': ('<f4', (len(self.feature_names),)),
            'goal': ('<f4', (len(self.goal_names),)),
            'actions': ('<f4', (self.space.size,)),
            'source': ('|u1', ()),
            'valid': ('|b1', ()),
            'stamps_ns': ('<i8', ()),
            'skew_s': ('<f4', ()),
            **{f'images.{name}': ('|u1', (*size, 3)) for name, size in self.cameras.items()},
        }


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 200 else f'{text[:200]}...'


@dataclass(slots=True)
class Index:
    """All that is known of a cache beside its arrays."""

    options: FrameOptions
    generation: int = 0
    layout: Layout | None = None
    episodes: list[CachedEpisode] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    known: dict[str, list[str]] = field(default_factory=dict)
    """Of each bag: sizes and times of its files, and the hash that it had then."""

    @property
    def frames(self) -> int:
        """Rows of every array."""
        return self.episodes[-1].stop if self.episodes else 0

    def data(self, folder: Path) -> Path:
        """Return the folder of the arrays."""
        return folder / f'data-{self.generation}'

    def write(self, folder: Path) -> None:
        """Replace the index of a cache."""
        layout = self.layout and {**asdict(self.layout), 'space': asdict(self.layout.space)}
        episodes = [{**asdict(entry), 'outcome': int(entry.outcome)} for entry in self.episodes]
        content = {
            'version': VERSION,
            'options': asdict(self.options),
            'generation': self.generation,
            'layout': layout,
            'episodes': episodes,
            'skipped': [asdict(entry) for entry in self.skipped],
            'known': self.known,
        }
        files.write_json(folder / INDEX, content)

    @classmethod
    def read(cls, folder: Path) -> 'Index | None':
        """
        Read the index of a cache; None where there is none.

        :raises BagError: damaged, or of a version that this program does not know
        """
        file = folder / INDEX
        try:
            if not file.exists():
                return None
            if file.stat().st_size > MAX_BYTES:
                raise BagError(f'{file}: {file.stat().st_size} bytes, at most {MAX_BYTES} allowed')
            content = files.parsed(file.read_bytes())
            if content['version'] != VERSION:
                raise BagError(f'{file}: version {content["version"]}, must be {VERSION}')
            return cls._from_json(content)
        except BagError:
            raise
        except (OSError, ValueError, KeyError, TypeError, ChunkpilotError) as error:
            raise BagError(f'{file}: damaged, delete the cache: {damage(error)}') from error

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> 'Index':
        layout = content['layout'] and _layout(content['layout'])
        episodes, end = [], 0
        for entry in content['episodes']:
            episode = CachedEpisode(**{**entry, 'outcome': EpisodeOutcome(entry['outcome'])})
            if episode.start != end or not episode.start < episode.stop <= 2**40:
                raise ValueError(f'episode {episode.id!r} at {episode.start}, expected {end}')
            end = episode.stop
            episodes.append(episode)
        if episodes and layout is None:
            raise ValueError('episodes without a layout')
        generation = content['generation']
        if not isinstance(generation, int) or not 0 <= generation < 2**31:
            raise ValueError(f'generation {generation!r}')
        return cls(
            config.build(FrameOptions, content['options'], 'options.'),
            generation,
            layout,
            episodes,
            [Skipped(**entry) for entry in content['skipped']],
            dict(content['known']),
        )


def _layout(content: Mapping[str, Any]) -> Layout:
    cameras = {name: (int(h), int(w)) for name, (h, w) in content['cameras'].items()}
    for name in cameras:
        check_camera(name)
    names = {
        part: tuple(map(str, content[part]))
        for part in ('state_names', 'feature_names', 'goal_names')
    }
    space = spaces.from_json(content['space'])
    return Layout(float(content['dt_s']), space, **names, cameras=cameras)


def check_camera(name: str) -> None:
    """
    Refuse a name that could lead out of the folder of the arrays.

    :raises BagError: it has other characters than letters, digits, '_', '-' and inner '.'
    """
    if not name.replace('-', '_').replace('.', '_').isidentifier() or name.startswith('.'):
        raise BagError(f'camera {name!r}: letters, digits, "_", "-" and "." are allowed')
