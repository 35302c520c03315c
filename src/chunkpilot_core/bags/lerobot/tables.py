"""The parquet files of a LeRobotDataset v3.0: frames, episodes, tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chunkpilot_core import pictures
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.lerobot import schema
import numpy as np
from numpy.typing import NDArray
import pyarrow as pa
import pyarrow.parquet as pq

EPISODES_AT_ONCE = 100  # rows of the table of episodes that wait to be written


class DatasetWriter:
    """Appends episodes to data files of a bounded size, and to the table of episodes."""

    def __init__(self, folder: Path, features: Mapping[str, schema.Feature], file_mb: int) -> None:
        self.episodes = self.frames = 0
        self._folder, self._features, self._bytes = folder, features, file_mb * 2**20
        self._schema = schema.data_schema(features)
        self._number = 0
        self._data: pq.ParquetWriter | None = None
        self._written = 0
        self._rows: list[dict[str, Any]] = []
        self._index: pq.ParquetWriter | None = None

    def append(
        self,
        values: Mapping[str, NDArray[Any]],
        images: Mapping[str, Sequence[bytes]],
        task: str,
        stats: Mapping[str, schema.Stats],
    ) -> None:
        """
        Write one episode.

        :param values: by feature (T,) or (T, C)
        :param images: by feature, T compressed images
        """
        count = len(values['index'])
        table = pa.Table.from_arrays(
            [
                _images(images[field.name]) if field.name in images
                else _column(values[field.name], field.type)
                for field in self._schema
            ],
            schema=self._schema,
        )  # fmt: skip
        if self._data is not None and self._written + table.nbytes > self._bytes:
            self._data.close()
            self._data = None
            self._number += 1
        if self._data is None:
            file = self._folder / schema.DATA_PATH.format(**self._place(self._number))
            file.parent.mkdir(parents=True, exist_ok=True)
            self._data, self._written = pq.ParquetWriter(file, self._schema), 0
        self._data.write_table(table)
        self._written += table.nbytes
        self._rows.append(self._row(count, task, stats))
        self.episodes += 1
        self.frames += count
        if len(self._rows) >= EPISODES_AT_ONCE:
            self._flush()

    def _place(self, number: int) -> dict[str, int]:
        chunk, file = divmod(number, schema.CHUNK_FILES)
        return {'chunk_index': chunk, 'file_index': file}

    def _row(self, count: int, task: str, stats: Mapping[str, schema.Stats]) -> dict[str, Any]:
        place = self._place(self._number)
        row: dict[str, Any] = {
            'episode_index': self.episodes,
            'tasks': [task],
            'length': count,
            'data/chunk_index': place['chunk_index'],
            'data/file_index': place['file_index'],
            'dataset_from_index': self.frames,
            'dataset_to_index': self.frames + count,
        }
        for name, own in stats.items():
            for key, value in schema.stats_to_json(own).items():
                row[f'stats/{name}/{key}'] = value
        return {**row, 'meta/episodes/chunk_index': 0, 'meta/episodes/file_index': 0}

    def _flush(self) -> None:
        if not self._rows:
            return
        table = pa.Table.from_pylist(self._rows, self._index.schema if self._index else None)
        if self._index is None:
            file = self._folder / schema.EPISODES_PATH.format(chunk_index=0, file_index=0)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._index = pq.ParquetWriter(file, table.schema)
        self._index.write_table(table)
        self._rows.clear()

    def write_tasks(self, tasks: Sequence[str]) -> None:
        """Write the table of tasks."""
        pq.write_table(schema.tasks_table(tasks), self._folder / schema.TASKS)

    def close(self) -> None:
        """Complete the files."""
        self._flush()
        for writer in (self._data, self._index):
            if writer is not None:
                writer.close()


def _column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    return pa.array(np.asarray(values).reshape(len(values)), kind)


def _images(encoded: Sequence[bytes]) -> pa.Array:
    names = [f'frame-{i:06d}.{_suffix(data)}' for i, data in enumerate(encoded)]
    parts = [pa.array(list(encoded), pa.binary()), pa.array(names, pa.string())]
    return pa.StructArray.from_arrays(parts, ['bytes', 'path'])


def _suffix(data: bytes) -> str:
    return 'png' if pictures.kind_of(data) == 'png' else 'jpg'


def provenance(cache: Cache) -> dict[str, Any]:
    """Return what LeRobot has no place for: the action space, and which bags these are."""
    return {
        'space': asdict(cache.space),
        'state_names': list(cache.state_names),
        'feature_names': list(cache.feature_names),
        'goal_names': list(cache.goal_names),
        'cache_sha256': cache.sha256,
        'bags': {episode.id: episode.sha256 for episode in cache.episodes},
    }
