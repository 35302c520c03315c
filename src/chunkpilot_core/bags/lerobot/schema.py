"""
The LeRobotDataset format v3.0: names of files, features, statistics.

As lerobot 0.4.4 writes and reads it (``lerobot/datasets/{utils,lerobot_dataset,compute_stats}.py``
in github.com/huggingface/lerobot).
"""

from collections.abc import Mapping, Sequence
import json
from typing import Any

from chunkpilot_core.types import ActionSpace, Kind, Rotation
import numpy as np
from numpy.typing import NDArray
import pyarrow as pa

CODEBASE_VERSION = 'v3.0'
INFO, STATS, TASKS = 'meta/info.json', 'meta/stats.json', 'meta/tasks.parquet'
DATA_PATH = 'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
EPISODES_PATH = 'meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
CHUNK_FILES = 1000  # files of a chunk folder
VIDEO_FILE_MB = 200
STATE, ENVIRONMENT, ACTION = 'observation.state', 'observation.environment_state', 'action'
REWARD, DONE, SUCCESS, SOURCE = 'next.reward', 'next.done', 'next.success', 'source'
IMAGES = 'observation.images.'
PIXELS = 150  # of the longer side of an image that count in its statistics
QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
_INDICES = {
    'timestamp': 'float32',
    'frame_index': 'int64',
    'episode_index': 'int64',
    'index': 'int64',
    'task_index': 'int64',
}
_TYPES = {'float32': pa.float32(), 'int64': pa.int64(), 'bool': pa.bool_()}
Feature = dict[str, Any]
Stats = dict[str, NDArray[np.float64]]


def features(
    state: Sequence[str],
    environment: Sequence[str],
    space: ActionSpace,
    cameras: Mapping[str, tuple[int, int]],
) -> dict[str, Feature]:
    """
    Return what each frame holds, as ``info.json`` says it.

    :param environment: names of ``observation.environment_state``, none = it is left out
    :param cameras: rows and columns of the images of each
    """
    found = {STATE: _vector(state)}
    if environment:
        found[ENVIRONMENT] = _vector(environment)
    found[ACTION] = _vector(action_names(space))
    for name, size in cameras.items():
        found[f'{IMAGES}{name}'] = {
            'dtype': 'image',
            'shape': [*size, 3],
            'names': ['height', 'width', 'channels'],
        }
    found[REWARD] = _scalar('float32')
    found[DONE] = _scalar('bool')
    found[SUCCESS] = _scalar('bool')
    found[SOURCE] = _scalar('int64')
    found.update({name: _scalar(dtype) for name, dtype in _INDICES.items()})
    return found


def _vector(names: Sequence[str]) -> Feature:
    return {'dtype': 'float32', 'shape': [len(names)], 'names': list(names)}


def _scalar(dtype: str) -> Feature:
    return {'dtype': dtype, 'shape': [1], 'names': None}


def action_names(space: ActionSpace) -> list[str]:
    """Return a name for each column of an action space."""
    names: list[str] = []
    for group in space.groups:
        if len(group.names) == group.size:
            names += group.names
        elif group.kind is Kind.GRIPPER and group.size == 1:
            names.append(group.name)
        else:
            names += [f'{group.name}.{axis}' for axis in _axes(group.rotation, group.size)]
    return names


def _axes(rotation: Rotation, size: int) -> list[str]:
    turn = {Rotation.VECTOR: ['rx', 'ry', 'rz'], Rotation.QUATERNION: ['qx', 'qy', 'qz', 'qw']}
    axes = ['x', 'y', 'z', *turn.get(rotation, [])]
    return axes if len(axes) == size else [str(i) for i in range(size)]


def data_schema(of: Mapping[str, Feature]) -> pa.Schema:
    """Return the columns of the data files; a vector of one number is a number."""
    fields = []
    for name, feature in of.items():
        if feature['dtype'] == 'image':
            kind: pa.DataType = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
        else:
            kind = _TYPES[feature['dtype']]
            if feature['shape'] != [1]:
                kind = pa.list_(kind, feature['shape'][0])
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def stats_of(values: NDArray[Any]) -> Stats:
    """
    Return the statistics of one feature in one episode.

    :param values: (T,) or (T, C); images (T, rows, columns, 3) count by channel, from 0 to 1
    """
    if values.ndim == 4:
        step = max(1, max(values.shape[1:3]) // PIXELS)
        found = stats_of(values[:, ::step, ::step].reshape(-1, 3) / 255.0)
        count = found.pop('count')
        shaped = {name: array.reshape(3, 1, 1) for name, array in found.items()}
        return {**shaped, 'count': np.full_like(count, len(values))}
    table = values.reshape(len(values), -1).astype(np.float64)
    levels = np.quantile(table, QUANTILES, axis=0)
    return {
        'min': table.min(axis=0),
        'max': table.max(axis=0),
        'mean': table.mean(axis=0),
        'std': table.std(axis=0),
        'count': np.array([float(len(table))]),
        **{f'q{round(q * 100):02d}': level for q, level in zip(QUANTILES, levels, strict=True)},
    }


class Aggregate:
    """Statistics of one feature over episodes, the way LeRobot joins them."""

    def __init__(self) -> None:
        self._count = 0.0
        self._low: Any = np.inf
        self._high: Any = -np.inf
        self._sums: dict[str, Any] = {}

    def add(self, stats: Stats) -> None:
        """Take the statistics of one episode."""
        count = float(stats['count'][0])
        self._count += count
        self._low = np.minimum(self._low, stats['min'])
        self._high = np.maximum(self._high, stats['max'])
        squares = stats['std'] ** 2 + stats['mean'] ** 2
        for name, value in {**stats, 'squares': squares}.items():
            if name not in ('count', 'min', 'max', 'std'):
                self._sums[name] = self._sums.get(name, 0.0) + count * value

    def result(self) -> Stats:
        """Return those of all; quantiles are means of the episodes' own, weighted by frames."""
        means = {name: value / self._count for name, value in self._sums.items()}
        variance = means.pop('squares') - means['mean'] ** 2
        ends = {'min': self._low, 'max': self._high, 'std': np.sqrt(np.maximum(variance, 0.0))}
        return {**ends, **means, 'count': np.array([self._count])}


def stats_to_json(stats: Stats) -> dict[str, Any]:
    """Return statistics as lists; counts are whole numbers."""
    lists = {name: value.tolist() for name, value in stats.items()}
    return {**lists, 'count': [int(value) for value in lists['count']]}


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Return the table of tasks, whose index pandas finds by the metadata."""
    index = '__index_level_0__'
    entry = {'metadata': None, 'numpy_type': 'int64', 'pandas_type': 'int64'}
    text = {'metadata': None, 'numpy_type': 'object', 'pandas_type': 'unicode'}
    metadata = {
        'index_columns': [index],
        'column_indexes': [
            {
                'name': None,
                'field_name': None,
                'pandas_type': 'unicode',
                'numpy_type': 'object',
                'metadata': {'encoding': 'UTF-8'},
            }
        ],
        'columns': [
            {'name': 'task_index', 'field_name': 'task_index', **entry},
            {'name': None, 'field_name': index, **text},
        ],
        'creator': {'library': 'pyarrow', 'version': pa.__version__},
        'pandas_version': '2.2.0',
    }
    schema = pa.schema(
        [('task_index', pa.int64()), (index, pa.string())],
        metadata={'pandas': json.dumps(metadata)},
    )
    columns = [list(range(len(tasks))), list(tasks)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
