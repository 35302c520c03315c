"""
Writes the frames of a cache as a LeRobotDataset v3.0 that LeRobot itself loads.

A LeRobot episode has no holes: an episode of ours with frames that are not valid, not known or
left out becomes several, so that no chunk of actions reaches over a hole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.bags import frame_images
from chunkpilot_core.bags.cache import Cache, CachedEpisode
from chunkpilot_core.bags.frames import Frames
from chunkpilot_core.bags.lerobot import schema, tables
from chunkpilot_core.bags.quality_checks import runs
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError
import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]
STATS_IMAGES = 30  # images of an episode that count in the statistics


@dataclass(frozen=True)
class ExportOptions:
    """What of the episodes is written."""

    outcomes: str = option(
        'all', 'episodes: all, or those that succeeded', choices=('all', 'success')
    )
    features: bool = option(True, 'write features and goal as observation.environment_state, too')
    cameras: tuple[str, ...] = option((), 'cameras whose images are written, as recorded')
    max_image_age_s: float = option(
        1.0, 'a frame without an image as young as this is left out', unit='s', min=0.0, max=60.0
    )
    min_frames: int = option(2, 'shorter stretches are left out', min=1, max=10**6)
    robot_type: str = option('', "LeRobot's name of the robot")
    file_mb: int = option(100, 'size of a data file', unit='MB', min=1, max=10_000)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    episodes: int
    frames: int
    tasks: int
    frames_left_out: int
    episodes_left_out: int


def export(
    cache: Cache,
    out: Path,
    options: ExportOptions | None = None,
    *,
    left_out: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """
    Write a dataset; it has its name when it is complete.

    :param left_out: shape (N,), frames of the cache that are not written
    :param progress: called with the number of episodes that are done, and of all
    :raises BagError: it exists, nothing is left to write, images can't be read, or the disk does
        not take it
    """
    options = options or ExportOptions()
    if out.exists():
        raise BagError(f'{out} exists already, datasets are not overwritten')
    beside = out.with_name(f'.{out.name}.unfinished')
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        done = _Export(cache, beside, options, left_out).run(progress)
        _sync(beside)
        beside.rename(out)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)  # nothing goes on from it, and disks get full
        if isinstance(error, OSError):
            raise BagError(f'{out}: not written: {error}') from error
        raise
    return Exported(out, *done)


class _Export:
    """One dataset on its way."""

    def __init__(
        self,
        cache: Cache,
        folder: Path,
        options: ExportOptions,
        left_out: NDArray[np.bool_] | None,
    ) -> None:
        self._cache, self._folder, self._options = cache, folder, options
        self._left_out = left_out
        names = (cache.feature_names + cache.goal_names) if options.features else ()
        self._environment = names
        self._fps = _fps(cache.dt_s)
        self._tasks: dict[str, int] = {}
        self._totals: dict[str, schema.Aggregate] = {}
        self._writer: tables.DatasetWriter | None = None
        self._features: dict[str, schema.Feature] = {}

    def run(self, progress: Progress | None) -> tuple[int, int, int, int, int]:
        total, skipped = len(self._cache.episodes), 0
        try:
            for number, episode in enumerate(self._cache.episodes):
                skipped += not self._episode(number, episode)
                if progress is not None:
                    progress(number + 1, total)
        finally:
            if self._writer is not None:
                self._writer.close()
        if self._writer is None:
            raise BagError(
                f'{self._cache.folder}: no episode has {self._options.min_frames} frames in a row '
                'that are valid, known and not left out'
            )
        self._finish(self._writer)
        written = self._writer.frames
        left = len(self._cache) - written
        return self._writer.episodes, written, len(self._tasks), left, skipped

    def _episode(self, number: int, episode: CachedEpisode) -> bool:
        """Write what is good of an episode; returns whether anything is."""
        if self._options.outcomes == 'success' and not episode.success:
            return False
        frames = self._cache.frames(number)
        good = np.asarray(frames.valid) & np.isfinite(frames.state).all(axis=1)
        good &= np.isfinite(self._environment_of(frames)).all(axis=1)
        if self._left_out is not None:
            good &= ~self._left_out[episode.rows]
        pictures: dict[str, frame_images.Pictures] = {}
        if self._options.cameras and good.any():
            pictures, seen = frame_images.choose(
                episode.bag,
                np.asarray(frames.stamps_ns),
                self._options.cameras,
                self._options.max_image_age_s,
            )
            good &= seen
        stretches = runs(good, self._options.min_frames)
        for stretch in stretches:
            self._stretch(frames, slice(*stretch), pictures)
        return bool(stretches)

    def _environment_of(self, frames: Frames) -> NDArray[np.float32]:
        if not self._environment:
            return np.zeros((len(frames), 0), np.float32)
        return np.concatenate((frames.features, frames.goal), axis=1)

    def _stretch(
        self, frames: Frames, at: slice, pictures: Mapping[str, frame_images.Pictures]
    ) -> None:
        writer = self._open(pictures)
        count = at.stop - at.start
        task = frames.task_text or frames.task_kind or 'unknown task'
        task_index = self._tasks.setdefault(task, len(self._tasks))
        last = np.arange(count) == count - 1
        ends = at.stop == len(frames)  # else the episode went on
        values: dict[str, NDArray[Any]] = {
            schema.STATE: frames.state[at],
            schema.ACTION: frames.actions[at],
            schema.REWARD: np.where(last & ends, frames.reward, 0.0).astype(np.float32),
            schema.DONE: last,
            schema.SUCCESS: last & ends & frames.success,
            schema.SOURCE: np.asarray(frames.source[at], np.int64),
            'timestamp': (np.arange(count) / self._fps).astype(np.float32),
            'frame_index': np.arange(count),
            'episode_index': np.full(count, writer.episodes),
            'index': np.arange(writer.frames, writer.frames + count),
            'task_index': np.full(count, task_index),
        }
        if self._environment:
            values[schema.ENVIRONMENT] = self._environment_of(frames)[at]
        images = {
            f'{schema.IMAGES}{name}': picture.encoded(range(at.start, at.stop))
            for name, picture in pictures.items()
        }
        stats = {name: schema.stats_of(array) for name, array in values.items()}
        for name, picture in pictures.items():
            chosen = np.linspace(at.start, at.stop - 1, min(count, STATS_IMAGES)).astype(int)
            stats[f'{schema.IMAGES}{name}'] = schema.stats_of(picture.pixels(chosen))
        for name, own in stats.items():
            self._totals.setdefault(name, schema.Aggregate()).add(own)
        writer.append(values, images, task, stats)

    def _open(self, pictures: Mapping[str, frame_images.Pictures]) -> tables.DatasetWriter:
        sizes = {name: picture.size for name, picture in pictures.items()}
        found = schema.features(
            self._cache.state_names, self._environment, self._cache.space, sizes
        )
        if self._writer is None:
            self._features = found
            self._writer = tables.DatasetWriter(self._folder, found, self._options.file_mb)
        elif found != self._features:
            raise BagError(f'images of {sizes}, those of episodes before have other sizes')
        return self._writer

    def _finish(self, writer: tables.DatasetWriter) -> None:
        writer.write_tasks(list(self._tasks))
        stats = {n: schema.stats_to_json(total.result()) for n, total in self._totals.items()}
        files.write_json(self._folder / schema.STATS, stats)
        info = {
            'codebase_version': schema.CODEBASE_VERSION,
            'robot_type': self._options.robot_type or None,
            'total_episodes': writer.episodes,
            'total_frames': writer.frames,
            'total_tasks': len(self._tasks),
            'chunks_size': schema.CHUNK_FILES,
            'data_files_size_in_mb': self._options.file_mb,
            'video_files_size_in_mb': schema.VIDEO_FILE_MB,
            'fps': self._fps,
            'splits': {'train': f'0:{writer.episodes}'},
            'data_path': schema.DATA_PATH,
            'video_path': None,
            'features': self._features,
            'chunkpilot': tables.provenance(self._cache),
        }
        files.write_json(self._folder / schema.INFO, info)


def _fps(dt_s: float) -> int | float:
    """Return frames per second, a whole number where it is one."""
    fps = 1.0 / dt_s
    return round(fps) if abs(fps - round(fps)) < 1e-6 * fps else fps


def _sync(folder: Path) -> None:
    """Wait until the disk has all files: a delayed write error has to come before the name."""
    for file in (path for path in folder.rglob('*') if path.is_file()):
        files.sync(file)
