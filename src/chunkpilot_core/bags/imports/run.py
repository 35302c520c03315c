"""Brings other people's data in: opens it with a mapping, writes one bag for each episode."""

from collections.abc import Callable
from dataclasses import dataclass
import hashlib
from pathlib import Path

from chunkpilot_core import files
from chunkpilot_core.bags.cache_index import check_camera
from chunkpilot_core.bags.imports import mapping as mappings
from chunkpilot_core.bags.imports import space as spacing
from chunkpilot_core.bags.imports.mapping import Mapping
from chunkpilot_core.bags.imports.source import Source
from chunkpilot_core.bags.imports.writing import EpisodeWriter
from chunkpilot_core.errors import BagError, ConfigError, UnknownNameError
from chunkpilot_core.types import F64
import numpy as np

NOTE = 'import.json'
FORMATS = ('lerobot', 'mcap', 'rosbag1')
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What there is after an import."""

    path: Path
    episodes: int
    new_episodes: int
    rows: int
    space_hash: str
    dt_s: float


def bring_in(
    kind: str,
    source: Path,
    map_file: Path,
    out: Path,
    progress: Progress | None = None,
    *,
    incomplete: bool = False,
) -> Imported:
    """
    Write the episodes of a data set as bags; those that are there already stay.

    :param kind: one of ``FORMATS``
    :param incomplete: of a LeRobot dataset that lacks frames, its whole episodes are taken
    :raises ConfigError: the mapping file is wrong
    :raises BagError: the data can't be read, does not fit the mapping, or the folder holds another
        import
    """
    mapping = mappings.load(map_file)
    for camera in mapping.images:
        check_camera(camera)
    opened = open_source(kind, source, mapping, incomplete=incomplete)
    show = progress or (lambda what, done, total: None)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _claim(out, kind, source, mapping)
        return _write(opened, mapping, out, show)
    except OSError as error:
        raise BagError(f'{out}: not written: {error}') from error


def open_source(kind: str, source: Path, mapping: Mapping, *, incomplete: bool = False) -> Source:
    """
    Open data of others.

    :raises BagError: it can't be read or does not fit the mapping
    """
    if kind not in FORMATS:
        raise UnknownNameError('format', kind, FORMATS)
    if not source.exists():
        raise BagError(f'{source}: no such file or folder')
    if kind == 'lerobot':
        from chunkpilot_core.bags.lerobot.source import LeRobotSource

        return LeRobotSource(source, mapping, incomplete=incomplete)
    if incomplete:
        raise ConfigError(
            f'--incomplete is of lerobot, not of {kind}: there is nothing to compare'
        )
    from chunkpilot_core.bags.imports import readers
    from chunkpilot_core.bags.imports.topics import TopicSource

    if kind == 'rosbag1':
        return TopicSource(_found(source, '*.bag'), mapping, readers.ros1)
    if source.is_dir() and not (source / 'metadata.yaml').exists():
        below = sorted(file.parent for file in source.glob('*/metadata.yaml'))
        return TopicSource(below or _found(source, '*.mcap'), mapping, readers.ros2)
    return TopicSource([source], mapping, readers.ros2)


def _found(source: Path, pattern: str) -> list[Path]:
    paths = sorted(source.glob(pattern)) if source.is_dir() else [source]
    if not paths:
        raise BagError(f'{source}: no {pattern} in it')
    return paths


def _claim(out: Path, kind: str, source: Path, mapping: Mapping) -> None:
    """Refuse a folder that holds episodes of something else."""
    note = out / NOTE
    said = {'format': kind, 'source': str(source.resolve()), 'mapping_sha256': mapping.sha256}
    if note.exists():
        try:
            there = files.parsed(files.read(note))
        except (OSError, ValueError) as error:
            raise BagError(f'{note}: {error}') from error
        if there != said:
            raise BagError(f'{out}: holds an import of other data or with another mapping')
        return
    if any(out.iterdir()):
        raise BagError(f'{out}: is not empty, and holds no import')
    files.write_json(note, said)


def _write(source: Source, mapping: Mapping, out: Path, show: Progress) -> Imported:
    extent = spacing.Extent()
    if not mapping.space:  # one look at everything for its range, a second one to write
        for number, recording in enumerate(source.recordings(), start=1):
            extent.add(_finite(recording.actions, recording.name))
            show('ranges of actions', number, source.total)
    space = spacing.make(mapping, source.widths(), source.dt_s, extent)
    writer = EpisodeWriter(mapping, space, source.names())
    episodes = new = rows = 0
    for recording in source.recordings():
        episodes += 1
        rows += len(recording)
        path = out / _file_name(recording.name)
        if not path.exists():
            _finite(recording.actions, recording.name)
            writer.write(recording, path)
            new += 1
        show('episodes', episodes, source.total)
    if not episodes:
        raise BagError(f'{out}: no episodes in the data')
    return Imported(out, episodes, new, rows, space.hash, source.dt_s)


def _finite(actions: F64, name: str) -> F64:
    bad = np.argwhere(~np.isfinite(actions))
    if len(bad):
        row, column = bad[0].tolist()
        raise BagError(f'{name}: action {column} of row {row} is {actions[row, column]}')
    return actions


def _file_name(name: str) -> str:
    """Return a name of a folder for the name of an episode, which comes from outside."""
    plain = ''.join(c if c.isalnum() or c in '._-' else '_' for c in name).lstrip('.')
    if plain == name and len(plain) <= 100:
        return plain
    return f'{plain[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}'
