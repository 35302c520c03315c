"""
What a LeRobot dataset says that it contains, compared with what is there.

A download that was cut off must not become episodes that end too early and are marked as good.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.errors import BagError, damage
import pyarrow as pa
import pyarrow.parquet as pq

MAX_EPISODES = 1_000_000
MAX_FRAMES = 1_000_000_000
HINT = ': not complete? "--incomplete" takes the whole episodes'
_INFO = 'meta/info.json'


@dataclass(frozen=True, slots=True)
class Info:
    """What ``meta/info.json`` says."""

    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    episodes: int
    frames: int

    @classmethod
    def read(cls, root: Path) -> 'Info':
        """
        Read it.

        :raises BagError: missing, damaged, or of values that can't be
        """
        try:
            info = files.parsed(files.read(inside(root, root / _INFO)))
        except (OSError, ValueError) as error:
            raise BagError(f'{root}: {_INFO}: {error}') from error
        where = f'{root}: {_INFO}'
        if not isinstance(info, dict):
            raise BagError(f'{where}: must be an object with names, is {_short(info)}')
        for name in ('codebase_version', 'fps', 'features', 'total_episodes', 'total_frames'):
            if name not in info:
                raise BagError(f'{where}: lacks {name}')
        fps, features = info['fps'], info['features']
        if not _is_number(fps) or abs(fps) > 1e9:
            raise BagError(f'{where}: fps {_short(fps)}, must be a number')
        if not isinstance(features, dict) or not all(
            isinstance(entry, dict) for entry in features.values()
        ):
            raise BagError(f'{where}: features {_short(features)}, must be an object of objects')
        return cls(
            str(info['codebase_version']),
            float(fps),
            features,
            _total(where, 'total_episodes', info['total_episodes'], MAX_EPISODES),
            _total(where, 'total_frames', info['total_frames'], MAX_FRAMES),
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _total(where: str, name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BagError(f'{where}: {name} {_short(value)}, must be a whole number up to {most}')
    return value


def _short(value: Any) -> str:
    return repr(value)[:100]


def inside(root: Path, path: Path) -> Path:
    """
    Return a path.

    :raises BagError: a link leads out of the dataset
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise BagError(f'{path}: leads out of {root}')
    return path


def data_files(root: Path) -> list[Path]:
    """
    Return the files of frames in order.

    :raises BagError: there are none
    """
    found = sorted((root / 'data').glob('chunk-*/*.parquet'))
    if not found:
        raise BagError(f'{root}: no data/chunk-*/*.parquet in it')
    return found


def lengths(root: Path, version: str) -> dict[int, int]:
    """
    Return the number of frames of each episode, as the metadata tells it.

    :raises BagError: it does not, or says what can't be
    """
    read = _rows_of_tables if version == 'v3.0' else _rows_of_lines
    try:
        rows = read(root)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise BagError(f'{root}: lengths of the episodes in meta: {damage(error)}') from error
    found: dict[int, int] = {}
    for number, length in rows:
        good = all(isinstance(n, int) and 0 <= n <= MAX_FRAMES for n in (number, length))
        if not good or number in found:
            raise BagError(f'{root}: meta says episode {_short(number)}: {_short(length)} frames')
        found[number] = length
    return found


def _rows_of_tables(root: Path) -> list[tuple[Any, Any]]:
    paths = sorted((root / 'meta/episodes').glob('chunk-*/*.parquet'))
    if not paths:
        raise ValueError('no meta/episodes/chunk-*/*.parquet in it')
    rows: list[tuple[Any, Any]] = []
    for path in paths:
        count = pq.read_metadata(inside(root, path)).num_rows
        if len(rows) + count > MAX_EPISODES:
            raise ValueError(f'more than {MAX_EPISODES} episodes')
        table = pq.read_table(path, columns=['episode_index', 'length'])
        columns = (table[name].to_pylist() for name in ('episode_index', 'length'))
        rows += zip(*columns, strict=True)
    return rows


def _rows_of_lines(root: Path) -> list[tuple[Any, Any]]:
    lines = files.read(inside(root, root / 'meta/episodes.jsonl')).splitlines()
    entries = [files.parsed(line) for line in lines if line.strip()]
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError('meta/episodes.jsonl: every line must be an object')
    return [(entry.get('episode_index'), entry.get('length')) for entry in entries]


def check(root: Path, info: Info, told: Mapping[int, int]) -> None:
    """
    Compare totals, lengths of episodes and rows of the data files, without reading those.

    :raises BagError: they differ
    """
    if len(told) != info.episodes:
        raise BagError(
            f'{root}: meta lists {len(told)} episodes, {_INFO} says total_episodes '
            f'{info.episodes}{HINT}'
        )
    if sum(told.values()) != info.frames:
        raise BagError(
            f'{root}: episodes in meta have {sum(told.values())} frames, {_INFO} says '
            f'total_frames {info.frames}{HINT}'
        )
    rows = 0
    for path in data_files(root):
        try:
            rows += pq.read_metadata(inside(root, path)).num_rows
        except (OSError, ValueError, pa.ArrowException) as error:
            raise BagError(f'{path}: {error}') from error
    if rows != info.frames:
        raise BagError(
            f'{root}: {rows} frames in data, {_INFO} says total_frames {info.frames}{HINT}'
        )
