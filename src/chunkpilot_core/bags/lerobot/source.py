"""
Reads LeRobot datasets, v3.0 and v2.x, as episodes of an import.

Only files inside of the dataset's own folders are opened, whatever its metadata says; numbers come
through pyarrow in batches, images as they are stored, video frames through OpenCV.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AnyMapping
from functools import partial
from pathlib import Path

from chunkpilot_core import files, pictures
from chunkpilot_core.bags.imports.mapping import Action, Mapping, MAX_VALUES, Signal
from chunkpilot_core.bags.imports.recording import MAX_ROWS, Names, Picture, Recording
from chunkpilot_core.bags.imports.source import Source
from chunkpilot_core.bags.lerobot import contents, video
from chunkpilot_core.bags.lerobot.contents import Info
from chunkpilot_core.errors import BagError, damage, UnknownNameError
from chunkpilot_core.types import EpisodeOutcome, F64, NS_PER_S
import numpy as np
from numpy.typing import NDArray
import pyarrow as pa
import pyarrow.parquet as pq

VERSIONS = ('v2.0', 'v2.1', 'v3.0')
BATCH_ROWS = 1024
MAX_TASKS = 1_000_000
FIRST_NS = NS_PER_S  # datasets have no dates: the first row of every episode is at one second
_INDEX = ('episode_index', 'task_index')


class LeRobotSource(Source):
    """One dataset folder."""

    def __init__(self, root: Path, mapping: Mapping, *, incomplete: bool = False) -> None:
        """
        Read the metadata and compare it with how many frames there are.

        :param incomplete: frames may lack; episodes that are not whole are left out
        :raises BagError: no dataset, of another version, or without a column of the mapping; or
            with other episodes and frames than its metadata says
        """
        self._root, self._mapping, self._incomplete = root, mapping, incomplete
        info = Info.read(root)
        if info.version not in VERSIONS:
            raise BagError(
                f'{root}: LeRobot format {info.version!r}, known: {", ".join(VERSIONS)}'
            )
        fps = mapping.rate or info.fps
        if not 1e-3 <= fps <= 1e4:
            raise BagError(f'{root}: {fps} frames per second, allowed 0.001 to 10000')
        self.dt_s = 1.0 / fps
        self._version, self._features = info.version, info.features
        self._columns = self._check_columns()
        self._tasks = self._read_tasks()
        self._lengths = contents.lengths(root, info.version)
        self.total = len(self._lengths)
        if not incomplete:
            contents.check(root, info, self._lengths)

    def _inside(self, path: Path) -> Path:
        return contents.inside(self._root, path)

    def _check_columns(self) -> list[str]:
        wanted, images = self._mapping.columns, self._mapping.images.values()
        for name in [*wanted, *images]:
            if name not in self._features:
                raise BagError(str(UnknownNameError('column', name, self._features)))
        stored = [column for column in images if self._dtype(column) == 'image']
        return list(dict.fromkeys([*wanted, *stored, *_INDEX]))

    def _dtype(self, column: str) -> str:
        return str(self._features[column].get('dtype', ''))

    def _read_tasks(self) -> dict[int, str]:
        try:
            if self._version == 'v3.0':
                file = self._inside(self._root / 'meta/tasks.parquet')
                if pq.read_metadata(file).num_rows > MAX_TASKS:
                    raise BagError(f'{file}: more than {MAX_TASKS} tasks')
                table = pq.read_table(file)
                texts = next(
                    name for name in table.column_names if name in ('__index_level_0__', 'task')
                )
                pairs = zip(table['task_index'].to_pylist(), table[texts].to_pylist(), strict=True)
                return {int(index): str(text) for index, text in pairs}
            file = self._inside(self._root / 'meta/tasks.jsonl')
            entries = [files.parsed(line) for line in files.read(file).splitlines() if line]
            return {int(entry['task_index']): str(entry['task']) for entry in entries}
        except (
            OSError,
            StopIteration,
            KeyError,
            TypeError,
            ValueError,
            pa.ArrowException,
        ) as error:
            raise BagError(f'{self._root}: tasks: {damage(error)}') from error

    def names(self) -> Names:
        """Return the mapping's names, or those of the dataset."""
        return Names(
            self._names(self._mapping.state),
            self._names(self._mapping.features),
            self._names(self._mapping.goal),
        )

    def _names(self, signals: Sequence[Signal]) -> tuple[str, ...]:
        found: list[str] = []
        for signal in signals:
            own = signal.names or _chosen(self._column_names(signal.source), signal.index)
            width = self._width(signal)
            if len(own) != width:
                raise BagError(f'{signal.source}: {len(own)} names for {width} numbers')
            found += own
        return tuple(found)

    def _column_names(self, column: str) -> list[str]:
        names = self._features[column].get('names')
        if isinstance(names, dict) and len(names) == 1:  # {'motors': [...]} of older ones
            names = next(iter(names.values()))
        size = self._size(column)
        if isinstance(names, list) and len(names) == size:
            return [str(name) for name in names]
        return [column] if size == 1 else [f'{column}.{i}' for i in range(size)]

    def _size(self, column: str) -> int:
        shape = self._features[column].get('shape')
        if not isinstance(shape, list) or len(shape) != 1 or not 1 <= shape[0] <= MAX_VALUES:
            raise BagError(f'{column}: shape {shape}, must be [1] to [{MAX_VALUES}]')
        return int(shape[0])

    def _width(self, entry: Signal | Action) -> int:
        size = self._size(entry.source)
        for i in entry.index:
            if i >= size:
                raise BagError(f'{entry.source}: index {i}, it has {size} numbers')
        return len(entry.index) or size

    def widths(self) -> list[int]:
        """Return the number of columns of each entry of action."""
        return [self._width(entry) for entry in self._mapping.action]

    def recordings(self) -> Iterator[Recording]:
        """
        Iterate over the episodes.

        :raises BagError: one is not as long as the metadata says, or lacks; where that is allowed,
            those are left out
        """
        seen = 0
        for number, table in self._tables():
            told = self._lengths.get(number, 0)
            if len(table) == told:
                seen += 1
                yield self._recording(number, table)
            elif not self._incomplete:
                raise BagError(
                    f'{self._root}: episode {number} has {len(table)} frames, its metadata says '
                    f'{told}{contents.HINT}'
                )
        if seen != len(self._lengths) and not self._incomplete:
            raise BagError(
                f'{self._root}: {seen} episodes, its metadata says {len(self._lengths)}'
                f'{contents.HINT}'
            )

    def _tables(self) -> Iterator[tuple[int, pa.Table]]:
        """Iterate over the numbers of episodes and their frames."""
        waiting: list[pa.Table] = []
        current, count = -1, 0
        for batch in self._batches():
            episodes = _numbers(batch, 'episode_index', 1)[:, 0].astype(np.int64)
            borders = np.flatnonzero(np.diff(episodes)) + 1
            for start, stop in zip([0, *borders], [*borders, len(episodes)], strict=True):
                if stop <= start:
                    continue
                if episodes[start] != current and waiting:
                    yield current, pa.concat_tables(waiting)
                    waiting, count = [], 0
                current = int(episodes[start])
                waiting.append(batch.slice(start, stop - start))
                count += int(stop - start)
                if count > MAX_ROWS:
                    raise BagError(f'episode {current}: more than {MAX_ROWS} frames')
        if waiting:
            yield current, pa.concat_tables(waiting)

    def _batches(self) -> Iterator[pa.Table]:
        for path in contents.data_files(self._root):
            try:
                with pq.ParquetFile(self._inside(path)) as file:
                    missing = set(self._columns) - set(file.schema_arrow.names)
                    if missing:
                        raise BagError(f'{path}: lacks {", ".join(sorted(missing))}')
                    for batch in file.iter_batches(BATCH_ROWS, columns=self._columns):
                        yield pa.Table.from_batches([batch])
            except (OSError, ValueError, pa.ArrowException) as error:
                raise BagError(f'{path}: {error}') from error

    def _recording(self, number: int, table: pa.Table) -> Recording:
        mapping, rows = self._mapping, len(table)
        stamps = FIRST_NS + np.round(np.arange(rows) * self.dt_s * NS_PER_S).astype(np.int64)
        task = int(_numbers(table, 'task_index', 1)[0, 0])
        return Recording(
            f'episode-{number:06d}',
            self.dt_s,
            stamps,
            self._signals(table, mapping.state),
            self._signals(table, mapping.features),
            self._signals(table, mapping.goal),
            np.concatenate([self._values(table, entry) for entry in mapping.action], axis=1),
            self._outcome(table),
            self._reward(table),
            mapping.task.text or self._tasks.get(task, ''),
            partial(self._images, number, table, stamps),
            {'lerobot': self._root.resolve().name, 'lerobot_episode': str(number)},
        )

    def _signals(self, table: pa.Table, signals: Sequence[Signal]) -> NDArray[np.float32]:
        parts = [np.zeros((len(table), 0))]
        parts += [self._values(table, s) * s.scale + s.offset for s in signals]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def _values(self, table: pa.Table, entry: Signal | Action) -> F64:
        values = _numbers(table, entry.source, self._size(entry.source))
        return values[:, list(entry.index)] if entry.index else values

    def _outcome(self, table: pa.Table) -> EpisodeOutcome:
        if not self._mapping.outcome_from:
            return EpisodeOutcome[self._mapping.outcome.upper()]
        done = _numbers(table, self._mapping.outcome_from, 1).any()
        return EpisodeOutcome.SUCCESS if done else EpisodeOutcome.FAILURE

    def _reward(self, table: pa.Table) -> float:
        if not self._mapping.reward_from:
            return 0.0
        return float(_numbers(table, self._mapping.reward_from, 1).sum())

    def _images(
        self, number: int, table: pa.Table, stamps: NDArray[np.int64]
    ) -> Iterator[Picture]:
        streams: AnyMapping[str, Iterator[bytes]] = {
            camera: self._encoded(column, number, table)
            for camera, column in self._mapping.images.items()
        }
        for stamp_ns in stamps.tolist():
            for camera, stream in streams.items():
                data = next(stream, None)
                if data is not None:
                    kind = pictures.kind_of(data)
                    if not kind:
                        raise BagError(f'{camera}: images must be jpeg or png')
                    yield Picture(camera, stamp_ns, kind, data)

    def _encoded(self, column: str, number: int, table: pa.Table) -> Iterator[bytes]:
        if self._dtype(column) == 'video':
            place = video.find(self._root, self._version, column, number)
            self._inside(place.file)
            yield from video.frames(place, len(table))
            return
        for entry in table[column].to_pylist():
            data = entry.get('bytes') if isinstance(entry, dict) else None
            if not data:
                raise BagError(f'{column}: images are files of their own, not in the dataset')
            yield bytes(data)


def _chosen(names: Sequence[str], index: Sequence[int]) -> list[str]:
    return [names[i] for i in index if i < len(names)] if index else list(names)


def _numbers(table: pa.Table, column: str, size: int) -> F64:
    """Return a column of numbers or lists of equal length, shape (T, size)."""
    array = table[column].combine_chunks()
    try:
        if array.null_count:
            raise BagError(f'{column}: {array.null_count} of {len(array)} values are missing')
        if pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
            array = array.flatten()
        values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.asarray(values, np.float64).reshape(len(table), size)
    except (ValueError, pa.ArrowException) as error:
        raise BagError(f'{column}: must hold {size} numbers in every row: {error}') from error
